"""The drop-in face: ``optimize_for_mobile`` as torch has it, on a stock torch.

Argument names, defaults, the order of checks and the texts of errors are those of
``torch.utils.mobile_optimizer`` (PyTorch 2.13).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from mobopt.errors import ArgumentTypeError, InputError, PassError, UnsupportedError
from mobopt.frontends.module_source import check_examples
from mobopt.frontends.open_source import is_onnx_model, source_of
from mobopt.frontends.quantized_source import source_for
from mobopt.frontends.script_module_source import names_to_preserve
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.module import MobileModule
from mobopt.ops.targets.device_profiles import image_limit_of
from mobopt.options import (
    DEFAULT_LEGALIZE,
    DEFAULT_RUNTIME,
    INT8_STATIC,
    MobileOptimizerType,
    Precision,
    PrecisionChoice,
    Settings,
    parse_backend,
    parse_blocklist,
    parse_legalize,
    parse_quantization,
    parse_runtime,
)
from mobopt.passes.expand_quantized import expansion_remark
from mobopt.passes.facts import Examples, may_have_halves
from mobopt.passes.manager import PassRun, run_passes
from mobopt.passes.notes import Note
from mobopt.passes.pipelines import PassPipeline, pipeline_for
from mobopt.passes.quantize_weights import poorly_quantized
from mobopt.runtimes.bounds import DeclaredBounds
from mobopt.samples.agreement import agreement_of
from mobopt.samples.example_inputs import NONE, ChosenInputs, ExampleInputs, choose_inputs, given_inputs, with_bounds
from mobopt.samples.unknown_sizes import by_size_text, unknown_text

if TYPE_CHECKING:
    from onnx import ModelProto

ILL_CONDITIONED = (
    "optimised, it differs by {:.1e} of the output's scale, and what single precision rounds takes the model itself as "
    "far from the result of float64"
)
__all__ = ["MobileOptimizerType", "optimize_for_mobile"]


def optimize_for_mobile(
    script_module: torch.jit.ScriptModule | torch.nn.Module | ExportedProgram | ModelProto | str | os.PathLike[str],
    optimization_blocklist: set[Any] | None = None,
    preserved_methods: Sequence[str | bytes] | None = None,
    backend: str = "CPU",
    *,
    example_inputs: ExampleInputs | None = None,
    dynamic_shapes: Any = None,
    bounds: DeclaredBounds | None = None,
    runtime: str = DEFAULT_RUNTIME,
    legalize: str = DEFAULT_LEGALIZE,
    xnnpack: bool = False,
    copy_to_host: bool = False,
    clear_inputs: bool = True,
    device_profile: str | None = None,
    passes: PassPipeline | None = None,
    quantize: str | None = None,
    quantize_group: int | None = None,
    keep_float: Sequence[str] = (),
    calibration_inputs: Sequence[Sequence[Any]] = (),
    explain: bool = False,
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
) -> MobileModule:
    """Optimise a model for PyTorch Mobile; the model itself is not changed.

    Args:
        script_module: a scripted or traced module, an ExportedProgram, an ``onnx.ModelProto``, the path of a file of
            one of them, or an nn.Module, which is exported with ``example_inputs``, and traced, with a warning, where
            ``torch.export`` can't take it. Modules are optimised as in evaluation mode.
        optimization_blocklist: optimisations to leave out: members of :class:`MobileOptimizerType`, ours or torch's,
            or their names. Every member is honoured on every backend.
        preserved_methods: names of methods and attributes to keep beside ``forward``.
        backend: ``'CPU'``, ``'Vulkan'`` or ``'Metal'``, in any case.
        example_inputs: arguments of ``forward``, or of several methods by their names, ``{"forward": [x], "encode":
            [y]}``; if given, the result is compared with the module on them. Their sizes decide what the target
            computes right. Without them, bundled inputs serve, for ``forward`` also the shapes that tracing remembers,
            or a guess from the first layers. With the backend Vulkan, what no example tells of runs on the phone's CPU.
        dynamic_shapes: of an nn.Module, the sizes of inputs that may change, as ``torch.export.export`` takes them;
            the result refuses inputs of other sizes than the example's elsewhere.
        bounds: the sizes that inputs may have, by method, for each tensor of its arguments, of each dimension the least
            and the largest, or None: ``{"forward": [[(1, 16), None, None, None]]}``. The result is right for all of
            them, and refuses others. Where nothing is said, the size is the export's range, or else the example's.
            What the target computes right for some of them alone runs on the phone's CPU.
        runtime: the oldest PyTorch Mobile release that must load the result and compute it right; ``'mobopt'`` for
            mobopt's own runtime only, which needs no rewrites for the sake of phones.
        legalize: ``'off'``, ``'safe'`` or ``'full'``: how far to rewrite what the target computes wrongly or lacks;
            ``'full'`` may fix the result to the example's sizes where nothing else is right, or much cheaper.
        xnnpack: with the backend CPU, use XNNPACK's operators, which stock PyTorch has up to 2.12.
        copy_to_host: with the backend Metal, end in ``metal::copy_to_host``, as releases before 1.13 did.
        clear_inputs: with the backend Vulkan and a release of PyTorch, clamp an input whose channels are no multiple of
            four before a convolution reads it: PyTorch's kernels multiply what lies in memory beyond its last channel
            with zero, and NaN left there by another model stays NaN. False: it is read as PyTorch's own files read it.
        device_profile: with the backend Vulkan, name of a device in ``mobopt/ops/targets/device_profiles.toml`` whose
            limit of images decides what is divided, or left to the CPU; without it, that of most phones, 2048.
        passes: the passes to run, in place of those that the arguments above choose: ``PassPipeline.default(backend)``
            with the same arguments, in which passes were put in, replaced or left out.
        quantize: with the runtime ``'mobopt'``, round the weights of layers: ``'int8_weights'``, with a scale for each
            output channel, or ``'int4_weights'``, where linear layers have 4 bits and a scale for each group of
            weights, and other layers 8. They take a quarter or an eighth of the memory, on the device too, and
            arithmetic stays float32. ``'int8_dynamic'``, also for the backend CPU, has the weights of linear layers as
            the first does, and rounds their inputs to 8 bits in each call; ``'int8_static'``, likewise, lets
            convolutions, linear layers and what lies between them compute with integers of 8 bits throughout, in steps
            that ``example_inputs`` show. Phones' CPUs have kernels of integers for both, their GPUs, with the runtime
            ``'2.6'``, for ``'int8_static'``.
        quantize_group: with ``'int4_weights'``, how many weights share a scale: 32 (the default), 64 or 128.
        keep_float: patterns of the names of layers that keep their weights, such as ``'lm_head'`` or ``'layers.0.*'``.
        calibration_inputs: with ``'int8_static'``, arguments of further calls of ``forward``, from which it learns as
            well: ``[(image,) for image in images]``.
        explain: print what each pass did, and what it left alone and why.
        precision: with the backend Vulkan, ``'fp16'`` or ``'bf16'``: when the module is called, weights and tensors
            between operators lie in the device's memory as float16 or bfloat16, but for those that rounding would harm,
            as float16 also on ``example_inputs``. Arithmetic, inputs, results and files stay float32.
        fp32_nodes: a pattern, or several, of operators (``'aten::softmax'``) or lines of source (``'*attention*'``)
            whose nodes keep float32.

    Returns:
        The optimised module: callable (on the best Vulkan device, or on the CPU for CPU and Metal), and saved
        with ``torch.jit.save`` or ``_save_for_lite_interpreter``.

    Warns:
        UserWarning: nothing is known of the sizes of inputs, or of some tensors, on which it depends what a phone's
            GPU computes right, or the GPU is right for only some of the sizes that inputs may have; an nn.Module was
            traced; the model is ill-conditioned; a layer loses much of its weight to rounding.

    Raises:
        ArgumentTypeError: a TypeError: no model, an nn.Module without example inputs, an unknown backend, or a
            blocklist that is not a set.
        MissingMethodError: an AttributeError: a method to preserve doesn't exist.
        BundleError: the file can't be read, or is optimised already.
        InputError: the blocklist names an unknown optimisation, the pipeline is for other arguments, there is no such
            precision, no node matches a pattern, or calibration inputs are none, or aren't for ``'int8_static'``.
        UnsupportedError: the module, the backend or the runtime needs what mobopt lacks.
        PassError: the optimised module differs from the original on the example inputs.
    """
    choice = PrecisionChoice.of(precision, fp32_nodes)
    names = _names_to_preserve(script_module, preserved_methods or (), example_inputs)
    settings = Settings(
        parse_backend(backend),
        parse_runtime(runtime),
        parse_blocklist(optimization_blocklist),
        parse_legalize(legalize),
        xnnpack,
        copy_to_host,
        clear_inputs,
        image_limit_of(device_profile, parse_backend(backend)),
        parse_quantization(quantize, quantize_group, keep_float),
    )
    if isinstance(script_module, MobileModule):
        raise UnsupportedError("the module is optimised already; optimise the module that it was made from")
    source = source_of(script_module, names, example_inputs, dynamic_shapes)
    source = source_for(source, settings.backend, settings.is_for_phones)
    calibration = checked_calibration(calibration_inputs, settings)
    optimized = optimize(source, settings, example_inputs, passes, bounds=bounds, calibration=calibration)
    if settings.asks_for_sizes and (
        unknown := unknown_text(optimized.original, optimized.notes, optimized.inputs, ". Give example_inputs")
    ):
        warnings.warn(unknown, stacklevel=2)
    if by_size := by_size_text(optimized.program, optimized.notes):
        warnings.warn(f"{by_size}. Declare fewer sizes, by bounds or in the export, where they suffice", stacklevel=2)
    if poor := poorly_quantized(optimized.notes):
        warnings.warn(poor, stacklevel=2)
    if remark := expansion_remark(optimized.original):
        warnings.warn(remark, stacklevel=2)
    if explain:
        sys.stdout.writelines(f"{note}\n" for note in optimized.notes)
    if example_inputs is not None:
        check_agreement(source, optimized.unrounded(), optimized.inputs)
    device = None if settings.backend == "vulkan" else "cpu"
    module = MobileModule(
        optimized.program, device, optimized.notes, bounds=optimized.inputs.bounds or None, precision=choice
    )
    if example_inputs is not None:
        module.learn_ranges(optimized.inputs.by_method)
    return module


def _names_to_preserve(model: object, preserved: Sequence[str | bytes], examples: ExampleInputs | None) -> list[str]:
    """The methods and attributes to keep beside ``forward``, of a model of a form that is taken.

    Raises:
        ArgumentTypeError: it is of none.
        MissingMethodError: one does not exist.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return names_to_preserve(model, preserved)
    if not isinstance(model, (torch.nn.Module, ExportedProgram, str, os.PathLike)) and not is_onnx_model(model):
        check_script_module(model)
    check_examples(model, examples)
    return [str(name) for name in preserved]


@dataclass(frozen=True)
class Optimized:
    """A Program before and after the passes, and what they said."""

    original: Program
    program: Program
    runs: tuple[PassRun, ...]
    inputs: ChosenInputs
    """What decided about sizes."""
    pipeline: PassPipeline
    """The passes."""

    @property
    def is_rounded(self) -> bool:
        """Whether weights were rounded to few bits."""
        return self.pipeline.without_rounding() is not self.pipeline

    def unrounded(self) -> Program:
        """What the passes make of the model without rounding weights: what should agree with it."""
        if not self.is_rounded:
            return self.program
        program = self.original.clone()
        run_passes(program, self.pipeline.without_rounding())
        return program

    @property
    def notes(self) -> tuple[Note, ...]:
        """What all passes said, in order."""
        return tuple(note for run in self.runs for note in run.result.notes)


def optimize(
    source: Source,
    settings: Settings,
    example_inputs: ExampleInputs | None = None,
    passes: PassPipeline | None = None,
    on_pass: Callable[[PassRun, Program], None] | None = None,
    bounds: DeclaredBounds | None = None,
    calibration: Sequence[Sequence[Any]] = (),
) -> Optimized:
    """Run a backend's passes on a model; arguments are checked already.

    Args:
        source: the model.
        settings: what is asked for.
        example_inputs: arguments of its methods.
        passes: a pipeline for these settings, in place of the backend's own.
        on_pass: is told of each pass, with the Program after it.
        bounds: the sizes that inputs may have.
        calibration: arguments of further calls of ``forward``, to learn how large numbers get.

    Raises:
        InputError: the model can't be run on the example inputs, bounds don't fit the inputs, or the pipeline is for
            other settings.
        UnsupportedError: the model or the backend needs what mobopt lacks.
    """
    if passes is not None:
        _check_pipeline(passes, settings)
    inputs = with_bounds(source.program, _inputs_of(source, settings, example_inputs), bounds or {})
    inputs = replace(inputs, calibration=calibration)
    pipeline = pipeline_for(settings, inputs.examples) if passes is None else passes.with_examples(inputs.examples)
    program = source.program.clone()
    runs = run_passes(program, pipeline, on_pass=on_pass)
    return Optimized(source.program, program, tuple(runs), inputs, pipeline)


def checked_calibration(calls: Sequence[Sequence[Any]], settings: Settings) -> Sequence[Sequence[Any]]:
    """Arguments of further calls, as they are asked for.

    Raises:
        InputError: they aren't sequences of arguments, or nothing learns from them.
    """
    if not isinstance(calls, Sequence) or not all(isinstance(call, (list, tuple)) for call in calls):
        raise InputError(
            f"calibration_inputs is a {type(calls).__name__} that isn't made of lists or tuples of arguments; write "
            "[(image,) for image in images]"
        )
    scheme = None if settings.quantization is None else settings.quantization.scheme
    if calls and scheme != INT8_STATIC:
        raise InputError(f"nothing learns from calibration inputs but {INT8_STATIC}, and quantize is {scheme!r}")
    return calls


def _check_pipeline(passes: PassPipeline, settings: Settings) -> None:
    if not isinstance(passes, PassPipeline):
        raise InputError(f"passes is a {type(passes).__name__}; give a PassPipeline")
    if settings.blocked:
        raise InputError(
            "a blocklist and passes both say what to leave out; give the blocklist to PassPipeline.default, or use "
            "the pipeline's remove"
        )
    for item in () if passes.settings is None else fields(settings):
        asked, made = getattr(settings, item.name), getattr(passes.settings, item.name)
        if item.name != "blocked" and asked != made:
            raise InputError(
                f"{item.name} is {asked!r}, and the pipeline is made for {made!r}; give PassPipeline.default the same"
            )


def _inputs_of(source: Source, settings: Settings, given: ExampleInputs | None) -> ChosenInputs:
    """Inputs whose sizes the passes may believe; for stock CPUs, which compute all but halves right, those given."""
    if settings.backend == "cpu" and not may_have_halves(source.program, Examples()):
        return ChosenInputs(None, NONE) if given is None else given_inputs(source.program, given)
    return choose_inputs(source, given)


def check_agreement(source: Source, program: Program, inputs: ChosenInputs) -> float:
    """Compare a model with its optimised Program, on the CPU.

    Returns:
        The largest difference, relative to the largest magnitude of the output.

    Raises:
        InputError: the model can't be run on the inputs.
        PassError: they differ by more than 1e-4 of the output's scale.
    """
    agreement = agreement_of(source, program, inputs)
    if agreement.is_rounding:
        warnings.warn(f"the model is ill-conditioned: {ILL_CONDITIONED.format(agreement.relative)}", stacklevel=3)
    if not agreement.agrees:
        raise PassError(
            f"the optimised module differs from the original by {agreement.relative:.1e} of the output's scale; block "
            f"optimisations ({', '.join(MobileOptimizerType.__members__)}) one by one to find the guilty one"
        )
    return agreement.relative


def check_script_module(script_module: object) -> None:
    """Refuse what is not a ScriptModule, in torch's words.

    Raises:
        ArgumentTypeError: it is not one.
    """
    if not isinstance(script_module, torch.jit.ScriptModule):
        raise ArgumentTypeError(f"Got {type(script_module)}, but ScriptModule is expected.")
