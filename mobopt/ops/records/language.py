"""Operators of the language, on numbers, text and containers, and those that ask what a tensor is like."""

from mobopt.ops.records.record import Entries, Trait, joined, operators

_METADATA = joined(
    [
        operators(
            """
            dim element_size is_complex is_floating_point is_same_size is_signed numel size sym_numel sym_size
            """,
            Trait.READS_METADATA_ONLY,
        ),
        operators("len", Trait.READS_METADATA_ONLY, Trait.COMPUTES),
        operators("result_type", Trait.READS_METADATA_ONLY, Trait.COMPUTES),
        operators("get_device", Trait.READS_METADATA_ONLY, Trait.READS_PLACE),
        operators(
            "is_contiguous storage_offset stride sym_is_contiguous sym_storage_offset sym_stride",
            *(Trait.READS_METADATA_ONLY, Trait.READS_PLACE, Trait.READS_STRIDES),
        ),
        operators(
            "dtype is_nested is_quantized is_sparse is_sparse_csr itemsize name nbytes ndim requires_grad shape",
            *(Trait.READS_METADATA_ONLY, Trait.COMPUTES),
            namespace="prim",
        ),
        operators(
            """
            device is_contiguous is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_ort is_vulkan is_xla
            is_xpu layout
            """,
            *(Trait.READS_METADATA_ONLY, Trait.READS_PLACE, Trait.COMPUTES),
            namespace="prim",
        ),
    ]
)
_ELEMENTS_AS_NUMBERS = joined(
    [
        operators(
            """
            ComplexImplicit FloatImplicit IntImplicit ScalarImplicit _local_scalar_dense allclose equal is_nonzero item
            """,
            Trait.VALUE_BY_ELEMENTS,
        ),
        operators("Bool Complex Float Int", Trait.VALUE_BY_ELEMENTS, Trait.COMPUTES),
        operators("tolist", Trait.VALUE_BY_ELEMENTS, Trait.COMPUTES, namespace="prim"),
    ]
)
_CONTAINERS = joined(
    [
        operators(
            """
            Delete __contains__ __not__ _unwrap_optional clear copy count dict items keys list reverse sorted values
            """,
            Trait.COMPUTES,
        ),
        operators("_set_item append extend insert update", Trait.COMPUTES, Trait.FILLS),
        operators("__getitem__ get pop popitem", Trait.COMPUTES, Trait.HANDS_BACK),
        operators("setdefault", Trait.COMPUTES, Trait.FILLS, Trait.HANDS_BACK),
        operators("__is__ __isnot__", Trait.COMPUTES, Trait.COMPARES_OBJECTS),
    ]
)
_TEXT = operators(
    """
    bin capitalize center chr device endswith expandtabs find format hash hex isalnum isalpha isdecimal isdigit
    isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip oct ord partition
    percentFormat remove replace rfind rindex rjust rpartition rsplit rstrip splitlines startswith str strip swapcase
    title upper zfill
    """,
    Trait.COMPUTES,
)
_NUMBERS = operators(
    """
    Size __derive_index __range_length __round_to_zero_floordiv _infer_size _size_if_not_equal broadcast_shapes can_cast
    degrees divmod fabs factorial floordiv gamma mathremainder modf promote_types radians
    """,
    Trait.COMPUTES,
)
_SETTINGS = joined(
    [
        operators(
            """
            get_autocast_dtype has_torch_function is_autocast_cpu_enabled is_autocast_enabled is_grad_enabled
            is_scripting is_vulkan_available
            """,
            Trait.COMPUTES,
        ),
        operators("set_grad_enabled warn", Trait.COMPUTES, Trait.TOUCHES_WORLD),
        operators("manual_seed save", Trait.TOUCHES_WORLD),
    ]
)
_LANGUAGE = joined(
    [
        operators("DictConstruct ListConstruct TupleConstruct", Trait.COMPUTES, Trait.CONSTRUCTS, namespace="prim"),
        operators(
            """
            EnumName EnumValue GetAttr If IfThenElse ListUnpack Loop NumToTensor StringIndex TupleIndex TupleSlice
            TupleUnpack Uninitialized abs data grad index isinstance max min rangelist type unchecked_cast
            unchecked_unwrap_optional
            """,
            Trait.COMPUTES,
            namespace="prim",
        ),
        operators("Print RaiseException SetAttr", Trait.COMPUTES, Trait.TOUCHES_WORLD, namespace="prim"),
        operators("AddStatValue Enter Exit", Trait.TOUCHES_WORLD, namespace="prim"),
    ]
)
_BEYOND_ARGUMENTS = operators(
    """
    _backward _cslt_compress _cslt_sparse_mm _cufft_clear_plan_cache _empty_affine_quantized
    _empty_per_channel_affine_quantized _index_put_impl _make_dep_token _propagate_xla_data _unsafe_masked_index
    _unsafe_masked_index_put_accumulate backward from_file record_stream retain_grad set_data
    """,
    Trait.UNCHECKED,
)

LANGUAGE: Entries = joined(
    [
        *(_METADATA, _ELEMENTS_AS_NUMBERS, _CONTAINERS, _TEXT, _NUMBERS, _SETTINGS, _LANGUAGE),
        _BEYOND_ARGUMENTS,
    ]
)
