"""Which operators a file may name: those that compute from their arguments, and touch nothing else.

Reading, converting, auditing and running call operators by the names in a file. So a file may name an operator only if
what it does is bounded by its arguments: it computes, and it may change an argument in place. Files, network, devices,
processes and settings of the process (threads, seeds, modes) are out of reach. The rule is stated on schemas: an
operator of ``aten`` on tensors, numbers and lists of them computes; what takes text, or handles no tensor, must have
the trait :attr:`~mobopt.ops.records.Trait.COMPUTES`, and what has the trait ``UNCHECKED`` is refused.
"""

from __future__ import annotations

import re
from functools import cache

from mobopt.ir.schemas import Schema, schema_of
from mobopt.ir.types import Type
from mobopt.ops.records import Trait, has_trait, record_of


def _names(text: str) -> frozenset[str]:
    return frozenset(re.split(r"\s+", text.strip()))


_OWN_NAMESPACES = frozenset({"vulkan_prepack", "vulkan_quantized", "metal_prepack", "metal", "prepacked", "mobopt"})
"""What mobile builds of PyTorch add, and mobopt itself; mobopt computes it."""

_TORCHS_NAMESPACES = _names(
    """
    _c10d_functional _c10d_functional_autograd _dtensor _native _quantized _test c10d debug_mode_ops debugprims export
    inductor inductor_prims mkl mkldnn mkldnn_prepacked onednn onnx prims profiler quantization quantized rngprims
    sparse static_runtime symm_mem
    """
)
"""Libraries that come with torch and are no part of a model that mobopt converts."""

_OF_TRAINING_AND_DEVICES = re.compile(r"backward|cudnn|miopen|mps_|mkldnn|_unsafe$")
"""Names of operators that no model for inference has, and that crash or trust their arguments."""

_FOREIGN_TYPES = ("Stream", "Future", "RRef", "Storage", "PyObject", "Await", "Capsule")

_MKLDNN = (
    "torch.jit.optimize_for_inference made it for this computer's processor; convert the module that it was made from"
)


@cache
def refusal(qualified_name: str) -> str:
    """Why a file may not name an operator; empty if it may.

    Raises:
        UnsupportedError: there is no such operator.
    """
    schema = schema_of(qualified_name)
    namespace, _, name = schema.name.partition("::")
    if namespace in _OWN_NAMESPACES or is_quantized(schema.name):
        return ""
    if namespace == "prim":
        return refusal_of_language(schema.name)
    if is_of_library(schema.name) and Trait.COMPUTES in record_of(schema.name).traits:
        return ""
    if namespace != "aten":
        return f"{schema.qualified_name} belongs to the library {namespace!r}, and what it does is not known to mobopt"
    if _only_computes(schema, name):
        return ""
    reason = f"is no part of a model: {_MKLDNN}" if "mkldnn" in name else "reaches beyond its arguments"
    return f"{schema.qualified_name} {reason}"


def is_quantized(name: str) -> bool:
    """Whether an operator computes on quantised tensors, and is known to mobopt."""
    return name.startswith("quantized::") and has_trait(name, Trait.COMPUTES)


def refusal_of_language(name: str) -> str:
    """The same for an operator of the language, ``prim::...``, which may have no schema."""
    if has_trait(name, Trait.COMPUTES):
        return ""
    if "mkldnn" in name.lower():
        return f"{name} is no part of a model: {_MKLDNN}"
    return f"{name} is no part of a model that only computes"


def is_of_library(qualified_name: str) -> bool:
    """Whether an operator is neither torch's own nor of mobile builds: some library has registered it."""
    return qualified_name.partition("::")[0] not in _OWN_NAMESPACES | {"aten", "prim"} | _TORCHS_NAMESPACES


def _only_computes(schema: Schema, name: str) -> bool:
    traits = record_of(schema.qualified_name).traits
    if Trait.UNCHECKED in traits or _OF_TRAINING_AND_DEVICES.search(name):
        return False
    kinds = [argument.type for argument in schema.arguments]
    spelled = [str(kind) for kind in (*kinds, *schema.returns)]
    if any(foreign in text for foreign in _FOREIGN_TYPES for text in spelled):
        return False
    handles_tensors = any("Tensor" in text for text in spelled)
    if handles_tensors and not schema.returns and not schema.is_mutating:
        return name.startswith(("_assert_", "_validate_"))
    return Trait.COMPUTES in traits or (handles_tensors and not any(_is_text(kind) for kind in kinds))


def _is_text(kind: Type) -> bool:
    return "str" in str(kind)
