"""The lists of passes for each backend, and what of them a blocklist takes away."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from mobopt.errors import InputError, PassError
from mobopt.ops.targets import Target
from mobopt.ops.targets.table import IMAGE_LIMIT
from mobopt.options import OWN_RUNTIME, RUNTIMES, MobileOptimizerType, Settings
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.channel_shuffle import RecognizeChannelShuffle
from mobopt.passes.clear_lanes import ClearLanes
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.constant_propagation import ConstantPropagation
from mobopt.passes.conv1d_to_2d import Conv1dTo2d
from mobopt.passes.copy_to_host import CopyToHost
from mobopt.passes.dead_code_elimination import DeadCodeElimination
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


def pipeline_for(settings: Settings, examples: Examples = _NO_EXAMPLES) -> tuple[Pass, ...]:
    """The passes of a conversion, in order.

    Args:
        settings: what is asked for.
        examples: inputs whose sizes decide what the target computes right.

    Raises:
        InputError: the settings contradict each other.
    """
    _check(settings)
    if settings.runtime == OWN_RUNTIME:  # every release's operators will do, and nothing is to be rewritten
        settings = replace(settings, runtime=RUNTIMES[0], legalize="off")
    return without(_BUILDERS[settings.backend](settings, examples), settings.blocked)


def _vulkan(settings: Settings, examples: Examples) -> tuple[Pass, ...]:
    target = None if settings.legalize == "off" else target_of(settings)
    transfers = MobileOptimizerType.VULKAN_AUTOMATIC_GPU_TRANSFER not in settings.blocked
    lanes = () if target is None else (ClearLanes(target, settings.clear_inputs),)
    return (
        SIMPLIFY,  # first: later passes match constants and see no branches that are never taken
        NumberOperands(examples),  # after that: operands have become constants; before dtypes decide anything
        Canonicalize(),  # before all that match convolutions and linear layers
        RemoveDropout(),  # before folding and fusing: dropout stands between a layer and what it is fused with
        Functionalize(transfers),  # before clamp fusion and common subexpressions, which look at pure operators
        *_fix_ranks(settings, examples),  # after canonicalize, which tells ranks; before targets are asked
        FoldBatchNorm(),  # before packing, while weights are plain tensors
        *_legalize(settings, examples),  # before packing, which fixes the layers' form
        InsertPrepack(  # after canonicalize, which makes the forms that it knows
            "vulkan", settings.runtime, target, examples
        ),
        FuseClamp(),  # between inserting and folding: the range is an argument of the packing operator
        FoldPrepack(),  # after clamp fusion
        HoistConvPackedParams(),  # independent of the others
        DeadCodeElimination(),  # before transfers, which dead readers would ask for
        Transfer(  # after all fusion, which it would stand between
            target=target, examples=examples
        ),
        *lanes,  # after transfers, which are seen as what they are
        SIMPLIFY,  # what the rewrites above have left behind
        SetFlag("optimized_for_vulkan"),  # last: the file is what it says
    )


def _metal(settings: Settings, examples: Examples) -> tuple[Pass, ...]:
    return (
        SIMPLIFY,  # first: later passes match constants
        NumberOperands(examples),  # after that: operands have become constants; before dtypes decide anything
        Canonicalize(),  # before all that match convolutions and linear layers
        RemoveDropout(),  # before folding and fusing
        Functionalize(),  # before clamp fusion, which looks at pure operators
        *_fix_ranks(settings, examples),  # after canonicalize, which tells ranks; before targets are asked
        FoldBatchNorm(),  # before packing, while weights are plain tensors
        MetalRewrites(),  # before legalisation: it leaves fewer kinds of operators
        *_legalize(settings, examples),  # before packing
        InsertPrepack("metal", settings.runtime),  # after canonicalize
        FuseClamp(),  # between inserting and folding
        FoldPrepack(),  # after clamp fusion
        HoistConvPackedParams(),  # independent of the others
        *((CopyToHost(),) if settings.copy_to_host else ()),  # after all fusion, at the very end of the graph
        SIMPLIFY,  # what the rewrites above have left behind
        SetFlag("optimized_for_metal"),  # last
    )


def _cpu(settings: Settings, examples: Examples) -> tuple[Pass, ...]:
    packing = (InsertPrepack("xnnpack", settings.runtime), FuseClamp(), FoldPrepack())
    return (
        SIMPLIFY,  # first: later passes match constants
        NumberOperands(examples),  # after that: operands have become constants; before dtypes decide anything
        Canonicalize(),  # before all that match convolutions and linear layers
        RemoveDropout(),  # before folding: dropout may stand between a convolution and its normalisation
        FoldBatchNorm(),  # before conv1d becomes conv2d, whose normalisation then follows a squeeze
        Conv1dTo2d(),  # after folding, before packing, which knows no conv1d
        *_legalize(settings, examples),  # what came to PyTorch after the release
        *(packing if settings.xnnpack else ()),  # before add and relu are fused: a convolution takes its relu first
        HoistConvPackedParams(),  # independent of the others
        FuseAddRelu(),  # after dropout has gone
        SIMPLIFY,  # what the rewrites above have left behind
        SetFlag("mobile_optimized"),  # last: the file is what it says
    )


def _fix_ranks(settings: Settings, examples: Examples) -> tuple[Pass, ...]:
    """GPU files are for one rank, of four dimensions at most; branches on it would be judged although never taken."""
    if settings.legalize == "off":
        return ()
    shuffles = RecognizeChannelShuffle(examples), DeadCodeElimination()
    return FixRanks(examples), SIMPLIFY, *shuffles, FixChannels(examples)  # shuffles look at numbers of channels


def _legalize(settings: Settings, examples: Examples) -> tuple[Pass, ...]:
    """For the backend, then for the CPU of that release, which runs what the backend lacks."""
    targets = dict.fromkeys((target_of(settings), Target("cpu", settings.runtime)))
    passes = [Legalize(target, settings.legalize, examples, settings.blocked) for target in targets]
    return tuple(item for legalize in passes for item in (legalize, DeadCodeElimination()))


def target_of(settings: Settings) -> Target:
    """The backend that settings ask for, with the limits of the device."""
    return Target(settings.backend, settings.runtime, settings.image_limit or IMAGE_LIMIT)


def _check(settings: Settings) -> None:
    if settings.runtime == OWN_RUNTIME and settings.backend != "vulkan":
        raise InputError(f"runtime {OWN_RUNTIME} is for the backend vulkan; the backend is {settings.backend}")
    if settings.xnnpack and settings.backend != "cpu":
        raise InputError(f"xnnpack is for the backend cpu; the backend is {settings.backend}")
    if settings.copy_to_host and settings.backend != "metal":
        raise InputError(f"copy-to-host is for the backend metal; the backend is {settings.backend}")
    if settings.image_limit is not None and settings.backend != "vulkan":
        raise InputError(f"a device's image limit is for the backend vulkan; the backend is {settings.backend}")


_BUILDERS: dict[str, Callable[[Settings, Examples], tuple[Pass, ...]]] = {
    "vulkan": _vulkan,
    "metal": _metal,
    "cpu": _cpu,
}

OPTIMIZER_TYPES: dict[str, tuple[type[Pass], ...]] = {
    "CONV_BN_FUSION": (FoldBatchNorm,),
    "INSERT_FOLD_PREPACK_OPS": (InsertPrepack, FuseClamp, FoldPrepack),
    "REMOVE_DROPOUT": (RemoveDropout,),
    "FUSE_ADD_RELU": (FuseAddRelu,),
    "HOIST_CONV_PACKED_PARAMS": (HoistConvPackedParams,),
    "CONV_1D_TO_2D": (Conv1dTo2d,),
    "VULKAN_AUTOMATIC_GPU_TRANSFER": (Transfer,),
}
"""The passes that each member of ``MobileOptimizerType`` names, in the order of its integer values."""


def without(pipeline: Iterable[Pass], blocklist: Iterable[Any]) -> tuple[Pass, ...]:
    """A pipeline less what a blocklist names.

    Args:
        pipeline: the passes.
        blocklist: members of ``MobileOptimizerType`` (ours or torch's), their names, or names of passes.

    Raises:
        PassError: a name is unknown; the message has the nearest ones.
    """
    blocked: set[type[Pass]] = set()
    for entry in blocklist:
        blocked.update(_passes_of(str(getattr(entry, "name", entry))))
    kept = (_unblocked(item, blocked) for item in pipeline)
    return tuple(item for item in kept if item is not None)


def _unblocked(item: Pass, blocked: set[type[Pass]]) -> Pass | None:
    """What is left of a pass; the transfer pass still has to move what runs on the CPU."""
    if type(item) not in blocked:
        return item
    return replace(item, automatic=False) if isinstance(item, Transfer) and item.target is not None else None


def _passes_of(name: str) -> tuple[type[Pass], ...]:
    if name.upper() in OPTIMIZER_TYPES:
        return OPTIMIZER_TYPES[name.upper()]
    by_name = {type(item).name: type(item) for item in (*VULKAN, *METAL, *CPU)}
    if name in by_name:
        return (by_name[name],)
    known = [*OPTIMIZER_TYPES, *by_name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4) or difflib.get_close_matches(
        name.upper(), known, n=1
    )
    hint = f"did you mean {near[0]}?" if near else f"known names are {', '.join(known)}"
    raise PassError(f"{name!r} is not an optimisation that can be blocked; {hint}")


VULKAN = pipeline_for(Settings("vulkan"))
METAL = pipeline_for(Settings("metal", copy_to_host=True))
CPU = pipeline_for(Settings("cpu"))
"""The pipelines of each backend without example inputs."""
