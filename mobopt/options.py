"""The choices that a conversion has: backends, optimisations that can be blocked, runtimes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import Literal, get_args

from mobopt.errors import ArgumentTypeError, InputError, UnsupportedError


class MobileOptimizerType(IntEnum):
    """Optimisations that can be blocked, with the values of torch's C++ enum of this name."""

    CONV_BN_FUSION = 0
    """Batch norms go into the weights of convolutions."""
    INSERT_FOLD_PREPACK_OPS = 1
    """Weights of layers are packed for the backend, once."""
    REMOVE_DROPOUT = 2
    """Dropout goes."""
    FUSE_ADD_RELU = 3
    """An addition and the relu after it become one operator."""
    HOIST_CONV_PACKED_PARAMS = 4
    """Packed weights become attributes of the module itself."""
    CONV_1D_TO_2D = 5
    """Convolutions of one dimension become those of two, which backends have."""
    VULKAN_AUTOMATIC_GPU_TRANSFER = 6
    """Inputs go to the GPU, and outputs come back, within the graph."""


BACKENDS = ("cpu", "vulkan", "metal")
RUNTIMES = ("1.13", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6")
"""PyTorch Mobile releases that a bundle can be made for."""
DEFAULT_RUNTIME = "2.1"
OWN_RUNTIME = "mobopt"
"""mobopt's own Vulkan runtime, which computes everything right: nothing is rewritten for the sake of a phone."""
FORMATS = {".pt": "TorchScript", ".pt2": "ExportedProgram", ".onnx": "ONNX", ".pte": "ExecuTorch"}
"""What a model can be migrated to, by the ending of the new file."""
LEGALIZE_LEVELS = ("off", "safe", "full")
"""How far a conversion rewrites what the target computes wrongly or lacks; see ``passes/legalize.py``."""
DEFAULT_LEGALIZE = "full"
FallbackChoice = Literal["cpu", "error"]
"""What mobopt's own runtime does with operators without a GPU kernel: run them on the CPU, or name them in an error."""
Precision = Literal["fp32", "fp16", "bf16"]
"""How the float32 tensors of a model lie in a device's memory; what is computed with them is float32 in any case."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class PrecisionChoice:
    """What is asked of precision.

    Attributes:
        precision: ``fp16`` and ``bf16`` (float16, bfloat16) halve what weights and tensors between operators take.
        fp32_nodes: patterns with ``*`` and ``?`` of operators (``aten::softmax``) or lines of source (``model.py:7 in
            encoder.attention``) whose nodes keep float32.
    """

    precision: Precision = "fp32"
    fp32_nodes: tuple[str, ...] = ()

    @staticmethod
    def of(precision: str, fp32_nodes: str | Iterable[str] = ()) -> PrecisionChoice:
        """Check what a caller gave: a pattern, or several.

        Raises:
            InputError: there is no such precision, a pattern is no text, or patterns are given for float32.
        """
        if precision not in PRECISIONS:
            raise InputError(
                f"precision is {precision!r}; give {', '.join(map(repr, PRECISIONS[:-1]))} or {PRECISIONS[-1]!r}"
            )
        patterns = (fp32_nodes,) if isinstance(fp32_nodes, str) else tuple(fp32_nodes)
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern:
                raise InputError(f"fp32_nodes has {pattern!r}; give patterns such as '*attention*'")
        if patterns and precision == "fp32":
            raise InputError(
                "fp32_nodes says what stays float32 of a model in halves; give precision='fp16' or 'bf16' with it"
            )
        return PrecisionChoice(precision, patterns)

    @property
    def is_half(self) -> bool:
        """Whether anything is halved."""
        return self.precision != "fp32"


SINGLE = PrecisionChoice()


INT8_DYNAMIC, INT8_STATIC = "int8_dynamic", "int8_static"
WITH_INPUTS = (INT8_DYNAMIC, INT8_STATIC)
"""Schemes that round the inputs of layers, too."""
QUANTIZATIONS = ("int8_weights", "int4_weights", *WITH_INPUTS)
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class Quantization:
    """How the weights of layers are rounded to integers.

    Attributes:
        scheme: one of :data:`QUANTIZATIONS`. With ``int8_dynamic``, inputs of linear layers are rounded too, in each
            call, by their own range; with ``int8_static`` those of convolutions and linear layers, by the range that
            example inputs show, and what lies between them stays integers.
        group: how many weights of a linear layer share a scale, along the inner dimension, if they have 4 bits.
        keep: patterns of the names of layers that keep their floats, ``layers.0.*``.
    """

    scheme: str = QUANTIZATIONS[0]
    group: int = GROUPS[0]
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What a conversion is asked for.

    Attributes:
        backend: one of :data:`BACKENDS`.
        runtime: the oldest release of PyTorch Mobile that must load the result and compute it right, or
            :data:`OWN_RUNTIME`.
        blocked: optimisations to leave out.
        legalize: one of :data:`LEGALIZE_LEVELS`.
        xnnpack: whether the CPU variant has XNNPACK's operators, which stock builds since 2.13 lack.
        copy_to_host: whether the Metal variant ends in ``metal::copy_to_host``, as releases before 1.13 want it.
        clear_inputs: whether the Vulkan variant for phones clamps inputs before convolutions that would read what lies
            in memory beyond their last channel; without legalisation nothing is clamped.
        image_limit: largest extent of a 3-D image on the device, for Vulkan; None: what most phones have.
        quantization: how weights are rounded, for :data:`OWN_RUNTIME`, with :data:`WITH_INPUTS` also for the backend
            cpu, with :data:`INT8_STATIC` for Vulkan's newest release; None: they are not.
    """

    backend: str = "vulkan"
    runtime: str = DEFAULT_RUNTIME
    blocked: frozenset[MobileOptimizerType] = frozenset()
    legalize: str = DEFAULT_LEGALIZE
    xnnpack: bool = False
    copy_to_host: bool = False
    clear_inputs: bool = True
    image_limit: int | None = None
    quantization: Quantization | None = None

    @property
    def is_for_phones(self) -> bool:
        """Whether a release of PyTorch Mobile runs the result."""
        return self.runtime != OWN_RUNTIME

    @property
    def asks_for_sizes(self) -> bool:
        """Whether it depends on sizes of inputs what the target computes right."""
        return self.backend != "cpu" and self.legalize != "off" and self.runtime != OWN_RUNTIME


def parse_backend(backend: str) -> str:
    """The backend's name in lower case.

    Raises:
        ArgumentTypeError: it is not one of :data:`BACKENDS`, in any case of letters.
    """
    name = backend.lower()
    if name not in BACKENDS:
        raise ArgumentTypeError("Unknown backend, must be one of 'CPU', 'Vulkan' or 'Metal'")
    return name


def parse_runtime(runtime: str, others: tuple[str, ...] = (OWN_RUNTIME,)) -> str:
    """Check the name of a PyTorch Mobile release, or of one of the other runtimes.

    Raises:
        UnsupportedError: mobopt writes no bundles for it.
    """
    if runtime not in (*RUNTIMES, *others):
        raise UnsupportedError(f"runtime is {runtime!r}; bundles can be made for {', '.join((*RUNTIMES, *others))}")
    return runtime


def parse_format(path: Path) -> str:
    """The ending of a new file, one of :data:`FORMATS`.

    Raises:
        InputError: no format has this ending.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        known = ", ".join(f"{ending} ({name})" for ending, name in FORMATS.items())
        raise InputError(f"the output {path} ends in {path.suffix or 'nothing'!r}, which names no format; use {known}")
    return ending


def parse_legalize(level: str) -> str:
    """Check a level of legalisation.

    Raises:
        InputError: it is not one of :data:`LEGALIZE_LEVELS`.
    """
    if level not in LEGALIZE_LEVELS:
        raise InputError(f"legalize is {level!r}; choose one of {', '.join(LEGALIZE_LEVELS)}")
    return level


def parse_quantization(quantize: object, group: object, keep: Iterable[object]) -> Quantization | None:
    """How weights are to be rounded; None if they are not.

    Args:
        quantize: one of :data:`QUANTIZATIONS`, or None.
        group: one of :data:`GROUPS`, or None for the first.
        keep: patterns of names of layers.

    Raises:
        ArgumentTypeError: a pattern is no text.
        InputError: another scheme or group, or one of what only the scheme has a meaning for.
    """
    patterns = tuple([keep] if isinstance(keep, str) else keep)
    if not all(isinstance(item, str) for item in patterns):
        raise ArgumentTypeError(f"keep_float has {patterns!r}; give patterns of names of layers, such as 'layers.0.*'")
    if quantize is None:
        if patterns or group is not None:
            raise InputError(f"quantize_group and keep_float are for quantize={' or '.join(map(repr, QUANTIZATIONS))}")
        return None
    if quantize not in QUANTIZATIONS:
        raise InputError(f"quantize is {quantize!r}; choose one of {', '.join(QUANTIZATIONS)}")
    if group is not None and (group not in GROUPS or quantize != "int4_weights"):
        raise InputError(
            f"quantize_group is {group!r} with {quantize}; int4_weights takes {', '.join(map(str, GROUPS))}"
        )
    return Quantization(str(quantize), GROUPS[0] if group is None else int(str(group)), tuple(map(str, patterns)))


def parse_blocklist(blocklist: object) -> frozenset[MobileOptimizerType]:
    """Members of :class:`MobileOptimizerType` that a caller wants blocked.

    Args:
        blocklist: None or a set; its items are our members, torch's own, or names.

    Raises:
        ArgumentTypeError: it is not a set, or an item is none of these.
        InputError: a name is unknown.
    """
    if blocklist is None:
        return frozenset()
    if not isinstance(blocklist, (set, frozenset)):
        raise ArgumentTypeError(
            f"optimization_blocklist is a {type(blocklist).__name__}; give a set of MobileOptimizerType"
        )
    return parse_optimizations(blocklist)


def parse_optimizations(items: Iterable[object]) -> frozenset[MobileOptimizerType]:
    """Members that the items mean; see :func:`parse_blocklist`."""
    return frozenset(_parse_optimization(item) for item in items)


def _parse_optimization(item: object) -> MobileOptimizerType:
    if isinstance(item, MobileOptimizerType):
        return item
    # torch's own enum is known by its name, so that torch need not be imported.
    name = getattr(item, "name", None) if type(item).__name__.endswith("MobileOptimizerType") else item
    if not isinstance(name, str):
        raise ArgumentTypeError(f"optimization_blocklist has {item!r}; give members of MobileOptimizerType")
    members = MobileOptimizerType.__members__
    key = name.upper().replace("-", "_")
    if key not in members:
        close = get_close_matches(key, members, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(members)}"
        raise InputError(f"there is no optimisation {name!r}; {hint}")
    return members[key]


def check_fallback(fallback: str) -> None:
    """Refuse what is no :data:`FallbackChoice`.

    Raises:
        InputError: it is none.
    """
    if fallback not in get_args(FallbackChoice):
        raise InputError(f"fallback is {fallback!r}; it must be 'cpu' or 'error'")
