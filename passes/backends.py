"""The passes of each backend, and why each stands where it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mobopt.errors import InputError
from mobopt.ops.targets import Target
from mobopt.ops.targets.table import IMAGE_LIMIT, computes_quantized
from mobopt.options import (
    INT8_STATIC,
    OWN_RUNTIME,
    RUNTIMES,
    WITH_INPUTS,
    MobileOptimizerType,
    Settings,
)
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.channel_shuffle import RecognizeChannelShuffle
from mobopt.passes.clear_lanes import ClearLanes
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.constant_propagation import ConstantPropagation
from mobopt.passes.conv1d_to_2d import Conv1dTo2d
from mobopt.passes.copy_to_host import CopyToHost
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.expand_quantized import ExpandQuantized
from mobopt.passes.expand_weights import ExpandWeights
from mobopt.passes.facts import Examples
from mobopt.passes.fix_channels import FixChannels
from mobopt.passes.fix_ranks import FixRanks
from mobopt.passes.fold_batch_norm import FoldBatchNorm
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.fuse_add_relu import FuseAddRelu
from mobopt.passes.fuse_clamp import FuseClamp
from mobopt.passes.hoist_conv_packed_params import HoistConvPackedParams
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.known_conditions import KnownConditions
from mobopt.passes.legalize import Legalize
from mobopt.passes.loop_unrolling import LoopUnrolling
from mobopt.passes.manager import Pass
from mobopt.passes.metal_rewrites import MetalRewrites
from mobopt.passes.number_operands import NumberOperands
from mobopt.passes.places_in_memory import PlacesInMemory
from mobopt.passes.quantize_dynamic import QuantizeDynamic
from mobopt.passes.quantize_static import QuantizeStatic
from mobopt.passes.quantize_weights import QuantizeWeights
from mobopt.passes.remove_dropout import RemoveDropout
from mobopt.passes.remove_list_mutation import RemoveListMutation
from mobopt.passes.repeat import Repeat
from mobopt.passes.set_flag import SetFlag
from mobopt.passes.transfer import Transfer

SIMPLIFY = Repeat(
    (
        ConstantFolding(),  # before branches are resolved: it makes their conditions constant
        ConstantPropagation(),  # before unrolling: it resolves what loops count to
        LoopUnrolling(),  # before the next round folds what the copies compute
        RemoveListMutation(),  # after unrolling, which puts what fills a list into one block
        CommonSubexpressionElimination(),  # before conditions are compared: equal ones become one
        KnownConditions(),  # after that; its constants are folded in the next round
        DeadCodeElimination(),  # last in a round
    )
)
"""Everything that makes work for constant folding, in rounds."""

_NO_EXAMPLES = Examples()


Steps = list[tuple[Pass, str]]
"""Passes, and why each stands where it does."""


def steps_for(settings: Settings, examples: Examples = _NO_EXAMPLES) -> Steps:
    """The passes of a conversion, in order, with none left out that the settings block.

    Args:
        settings: what is asked for.
        examples: inputs whose sizes decide what the target computes right.

    Raises:
        InputError: the settings contradict each other.
    """
    _check(settings)
    if settings.runtime == OWN_RUNTIME:  # every release's operators will do, and nothing is to be rewritten
        settings = replace(settings, runtime=RUNTIMES[0], legalize="off")
        steps = _BUILDERS[settings.backend](settings, examples)
        return [(_for_own_runtime(item, settings), why) for item, why in steps]
    first, *others = _BUILDERS[settings.backend](settings, examples)
    expanded = (ExpandWeights(), "no release has weights of few bits, and what follows looks for constant ones")
    return [first, expanded, *others]


def _for_own_runtime(item: Pass, settings: Settings) -> Pass:
    """A pass with what mobopt's runtime can do, and releases can't."""
    if isinstance(item, Functionalize):
        return replace(item, may_differ=True)
    if isinstance(item, FoldBatchNorm):  # integers are coarser than halves, so what they are made of is folded
        return replace(item, keeps_halves=settings.quantization is None)
    return item


def _first(examples: Examples) -> Steps:
    """What every backend begins with."""
    return [
        (SIMPLIFY, "first: later passes match constants, and see no branches that are never taken"),
        (NumberOperands(examples), "operands have become constants; dtypes decide nothing yet"),
        (Canonicalize(), "before all that match convolutions and linear layers"),
        (RemoveDropout(), "before folding and fusing: dropout stands between a layer and what it is fused with"),
    ]


def _last(flag: str) -> Steps:
    """What every backend ends with."""
    return [
        (SIMPLIFY, "what the rewrites before it have left behind"),
        (SetFlag(flag), "last: the file is what it says"),
    ]


def _vulkan(settings: Settings, examples: Examples) -> Steps:
    target = None if settings.legalize == "off" else target_of(settings)
    transfers = MobileOptimizerType.VULKAN_AUTOMATIC_GPU_TRANSFER not in settings.blocked
    lanes = [] if target is None else [ClearLanes(target, settings.clear_inputs)]
    return [
        *_first(examples),
        (
            Functionalize(transfers, examples),
            "before clamps are fused and repeated work is found, which look at pure operators",
        ),
        *_fix_ranks(settings, examples),
        (FoldBatchNorm(), "before packing, while weights are plain tensors"),
        *([] if target is not None else _quantize(settings, examples)),
        *_legalize(settings, examples),
        *_quantize_images(settings, examples, target),
        (
            InsertPrepack("vulkan", settings.runtime, target, examples),
            "the layers have the forms that it knows, and keep them",
        ),
        *_packing(),
        (HoistConvPackedParams(), "independent of the others"),
        (DeadCodeElimination(), "before transfers, which dead readers would ask for"),
        (Transfer(target=target, examples=examples), "after all fusion, which it would stand between"),
        *((item, "transfers are seen as what they are") for item in lanes),
        *_last("optimized_for_vulkan"),
    ]


def _metal(settings: Settings, examples: Examples) -> Steps:
    copies = [CopyToHost()] if settings.copy_to_host else []
    return [
        *_first(examples),
        (Functionalize(False, examples), "before clamps are fused, which looks at pure operators"),
        *_fix_ranks(settings, examples),
        (FoldBatchNorm(), "before packing, while weights are plain tensors"),
        (MetalRewrites(), "before legalisation: it leaves fewer kinds of operators"),
        *_legalize(settings, examples),
        (InsertPrepack("metal", settings.runtime), "the layers have the forms that it knows, and keep them"),
        *_packing(),
        (HoistConvPackedParams(), "independent of the others"),
        *((item, "after all fusion, at the very end of the graph") for item in copies),
        *_last("optimized_for_metal"),
    ]


def _cpu(settings: Settings, examples: Examples) -> Steps:
    packing: Steps = [
        (
            InsertPrepack("xnnpack", settings.runtime),
            "before additions are fused: a convolution takes its relu first",
        ),
        *_packing(),
    ]
    return [
        *_first(examples),
        (FoldBatchNorm(), "before a convolution of one dimension becomes one of two, and a squeeze follows it"),
        (Conv1dTo2d(), "normalisations are folded; packing knows no convolution of one dimension"),
        *_quantize(settings, examples),
        *_legalize(settings, examples),
        *(packing if settings.xnnpack else []),
        (HoistConvPackedParams(), "independent of the others"),
        (FuseAddRelu(), "dropout has gone, and convolutions have taken their own relu"),
        *_last("mobile_optimized"),
    ]


def _quantize(settings: Settings, examples: Examples) -> Steps:
    if settings.quantization is None:
        return []
    why = "normalisations are folded, and weights are not packed yet"
    scheme = settings.quantization.scheme
    if scheme not in WITH_INPUTS:
        return [(QuantizeWeights(settings.quantization), why)]
    steps: Steps = [(QuantizeDynamic(settings.quantization), why)]
    if scheme == INT8_STATIC:
        steps = [(QuantizeStatic(settings.quantization, examples), why)]
        if settings.backend == "cpu":
            pure = Functionalize(False, examples)
            steps = [(pure, "before quantising, which looks at pure operators"), *steps]
    if settings.backend == "cpu":
        return steps
    return [*steps, (ExpandQuantized(False), "GPUs have floats for it, which are rounded to as many bits")]


def _quantize_images(settings: Settings, examples: Examples, target: Target | None) -> Steps:
    """For phones' GPUs, which have integers in the layers that they compute right of floats."""
    if settings.quantization is None or target is None:
        return []
    step = QuantizeStatic(settings.quantization, examples, target)
    return [(step, "layers have the forms that the target computes right, and weights are not packed yet")]


def _packing() -> Steps:
    return [
        (FuseClamp(), "between packing and folding: the range is an argument of the packing operator"),
        (FoldPrepack(), "the ranges are in"),
    ]


def _fix_ranks(settings: Settings, examples: Examples) -> Steps:
    """GPU files are for one rank, of four dimensions at most; branches on it would be judged although never taken."""
    if settings.legalize == "off":
        return []
    return [
        (FixRanks(examples), "the forms of layers tell ranks; targets are not asked yet"),
        (SIMPLIFY, "branches for other ranks are known now"),
        (RecognizeChannelShuffle(examples), "before numbers of channels are fixed, which it looks at"),
        (DeadCodeElimination(), "the parts of shuffles are read by nobody"),
        (FixChannels(examples), "before targets are asked"),
        (PlacesInMemory(examples), "tensors lie as in the model, before rewrites make them in other ways"),
    ]


def _legalize(settings: Settings, examples: Examples) -> Steps:
    """For the backend, then for the CPU of that release, which runs what the backend lacks."""
    targets = dict.fromkeys((target_of(settings), Target("cpu", settings.runtime)))
    passes = [Legalize(target, settings.legalize, examples, settings.blocked) for target in targets]
    return [
        step
        for item in passes
        for step in (
            (item, f"what {item.target} lacks is rewritten before packing fixes the layers' form"),
            (DeadCodeElimination(), "what rewrites no longer read"),
        )
    ]


def target_of(settings: Settings) -> Target:
    """The backend that settings ask for, with the limits of the device."""
    return Target(settings.backend, settings.runtime, settings.image_limit or IMAGE_LIMIT)


def _check(settings: Settings) -> None:
    if settings.runtime == OWN_RUNTIME and settings.backend != "vulkan":
        raise InputError(f"runtime {OWN_RUNTIME} is for the backend vulkan; the backend is {settings.backend}")
    if settings.quantization is not None and settings.runtime != OWN_RUNTIME:
        _check_quantization(settings, settings.quantization.scheme)
    if settings.xnnpack and settings.backend != "cpu":
        raise InputError(f"xnnpack is for the backend cpu; the backend is {settings.backend}")
    if settings.copy_to_host and settings.backend != "metal":
        raise InputError(f"copy-to-host is for the backend metal; the backend is {settings.backend}")
    if settings.image_limit is not None and settings.backend != "vulkan":
        raise InputError(f"a device's image limit is for the backend vulkan; the backend is {settings.backend}")


def _check_quantization(settings: Settings, scheme: str) -> None:
    """Of a conversion for phones."""
    if scheme not in WITH_INPUTS:
        raise InputError(
            f"weights are quantised for the runtime {OWN_RUNTIME}, and the runtime is {settings.runtime}: no release "
            f"of PyTorch Mobile computes with such weights on a GPU; {' and '.join(WITH_INPUTS)} are for phones' CPUs "
            "(backend cpu)"
        )
    if settings.backend == "cpu":
        return
    if scheme != INT8_STATIC or settings.backend != "vulkan":
        raise InputError(
            f"{scheme} is for the backend cpu and for the runtime {OWN_RUNTIME}; the backend is "
            f"{settings.backend}, whose kernels compute no such layers"
        )
    releases = [name for name in RUNTIMES if computes_quantized(Target("vulkan", name))]
    if settings.runtime not in releases:
        raise InputError(
            f"{scheme} with the backend vulkan needs GPU kernels of integers that were seen to be right: those of "
            f"PyTorch {' and '.join(releases)}, and the runtime is {settings.runtime}. Give runtime {releases[0]} or "
            f"{OWN_RUNTIME}, or the backend cpu, which has such layers in every release"
        )
    if settings.legalize == "off":
        raise InputError(f"{scheme} asks what the target computes right, and legalize is 'off'; give 'safe' or 'full'")


_BUILDERS: dict[str, Callable[[Settings, Examples], Steps]] = {
    "vulkan": _vulkan,
    "metal": _metal,
    "cpu": _cpu,
}
