"""Which operators a file may name: those that compute from their arguments, and touch nothing else.

Reading, converting, auditing and running call operators by the names in a file. So a file may name an operator only if
what it does is bounded by its arguments: it computes, and it may change an argument in place. Files, network, devices,
processes and settings of the process (threads, seeds, modes) are out of reach. The rule is stated on schemas: an
operator of ``aten`` on tensors, numbers and lists of them computes; what takes text, or handles no tensor, must be in
the lists here.
"""

from __future__ import annotations

import re
from functools import cache

from mobopt.ir.schemas import Schema, schema_of
from mobopt.ir.types import Type


def _names(text: str) -> frozenset[str]:
    return frozenset(re.split(r"\s+", text.strip()))


_OWN_NAMESPACES = frozenset({"vulkan_prepack", "metal_prepack", "metal", "prepacked"})
"""What mobile builds of PyTorch add; mobopt computes it itself."""

_TORCHS_NAMESPACES = _names(
    """
    _c10d_functional _c10d_functional_autograd _dtensor _native _quantized _test c10d debug_mode_ops debugprims export
    inductor inductor_prims mkl mkldnn mkldnn_prepacked onednn onnx prims profiler quantization quantized rngprims
    sparse static_runtime symm_mem
    """
)
"""Libraries that come with torch and are no part of a model that mobopt converts."""

_ON_TEXT_AND_CONTAINERS = _names(
    """
    Delete __contains__ __getitem__ __is__ __isnot__ __not__ _set_item _unwrap_optional append bin capitalize center chr
    clear copy count device dict endswith expandtabs extend find format get hash hex index insert isalnum isalpha
    isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper items join keys len list ljust
    lower lstrip oct ord partition percentFormat pop popitem remove replace reverse rfind rindex rjust rpartition rsplit
    rstrip select setdefault slice sort sorted split splitlines startswith str strip swapcase title update upper values
    zfill
    """
)
_ON_NUMBERS = _names(
    """
    Bool Complex Float Int Size __and__ __derive_index __lshift__ __or__ __range_length __round_to_zero_floordiv
    __rshift__ __xor__ _infer_size _size_if_not_equal acos acosh add add_ all angle any asin asinh atan atan2 atanh
    broadcast_shapes can_cast ceil copysign cos cosh degrees div div_ divide divide_ divmod eq erf erfc exp expm1 fabs
    factorial floor floordiv fmod frexp gamma gcd ge gt isfinite isinf isnan ldexp le lgamma log log10 log1p lt
    mathremainder modf mul mul_ ne neg polar pow promote_types radians remainder result_type round sin sinh sqrt sub sum
    tan tanh
    """
)
_OF_THE_LANGUAGE = _names(
    """
    get_autocast_dtype has_torch_function is_autocast_cpu_enabled is_autocast_enabled is_grad_enabled is_scripting
    is_vulkan_available set_grad_enabled warn
    """
)
"""These say nothing in mobopt: gradients are off, and a warning becomes a line of the log."""

_TENSORS_WITH_TEXT = _names(
    """
    __interpolate __upsample _convolution_mode conv1d conv2d conv3d div div_ divide divide_ einsum fft_fft fft_fft2
    fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft
    fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn gelu gelu_ index_reduce index_reduce_ linalg_cond linalg_eigh
    linalg_eigvalsh linalg_lstsq linalg_matrix_norm linalg_norm linalg_qr linalg_svd linalg_svdvals meshgrid nanquantile
    pad pad_sequence quantile scatter scatter_ scatter_reduce scatter_reduce_ searchsorted segment_reduce stft
    """
)
"""The text chooses how they compute."""

_UNCHECKED = _names(
    """
    _backward _cslt_compress _cslt_sparse_mm _cufft_clear_plan_cache _empty_affine_quantized
    _empty_per_channel_affine_quantized _index_put_impl _index_put_impl_ _make_dep_token _propagate_xla_data
    _reshape_alias _unsafe_masked_index _unsafe_masked_index_put_accumulate backward from_file record_stream
    retain_grad set_data
    """
)
"""Operators on tensors that trust their arguments, leave the graph, or reach beyond the tensors."""

_OF_TRAINING_AND_DEVICES = re.compile(r"backward|cudnn|miopen|mps_|mkldnn|_unsafe$")
"""Names of operators that no model for inference has, and that crash or trust their arguments."""

_LANGUAGE = _names(
    """
    DictConstruct EnumName EnumValue GetAttr If IfThenElse ListConstruct ListUnpack Loop NumToTensor Print
    RaiseException SetAttr StringIndex TupleConstruct TupleIndex TupleSlice TupleUnpack Uninitialized abs data device
    dtype grad index is_contiguous is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_ort
    is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu isinstance itemsize layout max min name nbytes ndim
    rangelist requires_grad shape tolist type unchecked_cast unchecked_unwrap_optional
    """
)
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
    if namespace in _OWN_NAMESPACES:
        return ""
    if namespace == "prim":
        return refusal_of_language(schema.name)
    if namespace != "aten":
        return f"{schema.qualified_name} belongs to the library {namespace!r}, and what it does is not known to mobopt"
    if _only_computes(schema, name):
        return ""
    reason = f"is no part of a model: {_MKLDNN}" if "mkldnn" in name else "reaches beyond its arguments"
    return f"{schema.qualified_name} {reason}"


def refusal_of_language(name: str) -> str:
    """The same for an operator of the language, ``prim::...``, which may have no schema."""
    if name.removeprefix("prim::") in _LANGUAGE:
        return ""
    if "mkldnn" in name.lower():
        return f"{name} is no part of a model: {_MKLDNN}"
    return f"{name} is no part of a model that only computes"


def is_of_library(qualified_name: str) -> bool:
    """Whether an operator is neither torch's own nor of mobile builds: some library has registered it."""
    return qualified_name.partition("::")[0] not in _OWN_NAMESPACES | {"aten", "prim"} | _TORCHS_NAMESPACES


def _only_computes(schema: Schema, name: str) -> bool:
    if name in _UNCHECKED or _OF_TRAINING_AND_DEVICES.search(name):
        return False
    if name in _ON_TEXT_AND_CONTAINERS or name in _OF_THE_LANGUAGE:
        return True
    kinds = [argument.type for argument in schema.arguments]
    spelled = [str(kind) for kind in (*kinds, *schema.returns)]
    if any(foreign in text for foreign in _FOREIGN_TYPES for text in spelled):
        return False
    if not any("Tensor" in text for text in spelled):
        return name in _ON_NUMBERS
    if not schema.returns and not schema.is_mutating:
        return name.startswith(("_assert_", "_validate_"))
    return name in _TENSORS_WITH_TEXT or not any(_is_text(kind) for kind in kinds)


def _is_text(kind: Type) -> bool:
    return "str" in str(kind)
