"""Layers of nets: convolutions, products of matrices, normalisations, pooling, recurrent layers, resampling."""

from mobopt.ops.records.record import Entries, Like, Trait, joined, operators

_CONVOLUTIONS = joined(
    [
        *(
            operators(
                f"conv{rank}d",
                *(Trait.CONVOLUTION, Trait.COMPUTES),
                rank=Like.FIRST,
                spatial=rank,
                channels=Like.WEIGHT,
            )
            for rank in (1, 2, 3)
        ),
        *(
            operators(
                f"conv_transpose{rank}d",
                Trait.CONVOLUTION,
                rank=Like.FIRST,
                spatial=rank,
                channels=Like.TRANSPOSED_WEIGHT,
            )
            for rank in (1, 2, 3)
        ),
        operators("_convolution convolution convolution_overrideable", Trait.CONVOLUTION, rank=Like.FIRST),
        operators("_convolution_mode", Trait.CONVOLUTION, Trait.COMPUTES, rank=Like.FIRST),
        operators("conv_tbc", Trait.CONVOLUTION),
    ]
)
_PRODUCTS = joined(
    [
        operators("linear", Trait.PRODUCT, rank=Like.ROWS, contracted="input"),
        operators("matmul", Trait.PRODUCT, contracted="self"),
        operators("mm", Trait.PRODUCT, rank=2, contracted="self"),
        operators("bmm", Trait.PRODUCT, rank=3, contracted="self"),
        operators("addmm", Trait.PRODUCT, rank=2, contracted="mat1"),
        operators("baddbmm", Trait.PRODUCT, rank=3, contracted="batch1"),
        operators("addbmm", Trait.PRODUCT, rank=2),
        operators("mv", Trait.PRODUCT, rank=1, contracted="self"),
        operators("addmv", Trait.PRODUCT, rank=1, contracted="mat"),
        operators("bilinear linalg_multi_dot tensordot", Trait.PRODUCT),
        operators("inner", Trait.PRODUCT, contracted="self"),
        operators("dot vdot", Trait.PRODUCT, rank=0, contracted="self"),
        operators("addr ger outer", Trait.PRODUCT, rank=2),
        operators("einsum", Trait.PRODUCT, Trait.HANDS_BACK, Trait.COMPUTES),
        operators("gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell", Trait.PRODUCT),
        operators("scaled_dot_product_attention _scaled_dot_product_attention_math", Trait.PRODUCT, Trait.RANDOM),
        operators("_scaled_dot_product_flash_attention_for_cpu", Trait.PRODUCT, Trait.RANDOM),
    ]
)
_NORMALIZATIONS = joined(
    [
        operators(
            """
            _native_batch_norm_legit _native_batch_norm_legit_no_training batch_norm group_norm instance_norm layer_norm
            rms_norm
            """,
            *(Trait.NORMALIZATION, Trait.KEEPS_SIZES),
        ),
        operators("native_batch_norm native_layer_norm", Trait.NORMALIZATION, Trait.KEEPS_SIZES, Trait.OTHER_ON_META),
        operators(
            "native_group_norm",
            *(Trait.NORMALIZATION, Trait.KEEPS_SIZES, Trait.OTHER_ON_META, Trait.READS_STRIDES),
        ),
    ]
)
_OWN_NORMALIZATIONS = operators("l2_normalize", Trait.NORMALIZATION, Trait.KEEPS_SIZES, namespace="mobopt")
_SOFTMAXES = operators("_log_softmax _softmax log_softmax softmax", *(Trait.SOFTMAX, Trait.KEEPS_SIZES, Trait.DELICATE))
_POOLS = joined(
    operators(
        f"""
        adaptive_avg_pool{rank}d adaptive_max_pool{rank}d avg_pool{rank}d max_pool{rank}d max_pool{rank}d_with_indices
        """,
        Trait.POOLING,
        rank=Like.FIRST,
        spatial=rank,
        channels=Like.FIRST,
    )
    for rank in (1, 2, 3)
)
_OTHER_POOLS = operators(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d fractional_max_pool2d fractional_max_pool3d",
    Trait.POOLING,
    rank=Like.FIRST,
    channels=Like.FIRST,
)
_RECURRENT = operators("gru lstm rnn_relu rnn_tanh", Trait.RECURRENT, Trait.RANDOM)
_RESAMPLED = joined(
    [
        operators("upsample_linear1d", Trait.RESAMPLING, rank=3, channels=Like.FIRST),
        operators("upsample_bilinear2d upsample_bicubic2d", Trait.RESAMPLING, rank=4, channels=Like.FIRST),
        operators("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", Trait.RESAMPLING, rank=4, channels=Like.FIRST),
        operators("upsample_trilinear3d", Trait.RESAMPLING, rank=5, channels=Like.FIRST),
        operators("__interpolate __upsample", Trait.RESAMPLING, Trait.COMPUTES, rank=Like.FIRST),
    ]
)
_ON_PACKED_WEIGHTS = joined(
    [
        operators(
            "run_conv1d_context run_conv2d_context run_tconv2d_context run_qconv2d_context conv2d_clamp_run",
            Trait.CONVOLUTION,
            rank=Like.FIRST,
            namespace="vulkan_prepack",
        ),
        operators("run_linear_context", Trait.PRODUCT, rank=Like.FIRST, contracted="X", namespace="vulkan_prepack"),
        operators("run_qlinear_context", Trait.PRODUCT, rank=Like.FIRST, namespace="vulkan_prepack"),
        operators(
            "run_batchnorm_context run_layernorm_context",
            *(Trait.NORMALIZATION, Trait.KEEPS_SIZES),
            namespace="vulkan_prepack",
        ),
        operators("run_gru_context run_lstm_context", Trait.RECURRENT, namespace="vulkan_prepack"),
        operators("conv2d_run", Trait.CONVOLUTION, rank=Like.FIRST, namespace="metal_prepack"),
        operators("linear_run", Trait.PRODUCT, rank=Like.FIRST, namespace="metal_prepack"),
        operators(
            "conv2d_clamp_run conv2d_transpose_clamp_run",
            Trait.CONVOLUTION,
            rank=Like.FIRST,
            namespace="prepacked",
        ),
        operators("linear_clamp_run", Trait.PRODUCT, rank=Like.FIRST, namespace="prepacked"),
    ]
)
_QUANTIZED = operators("dequantize", Trait.EXPANDS, Trait.COMPUTES, rank=Like.FIRST, namespace="mobopt")
_ON_QUANTIZED_TENSORS = operators(
    """
    add add_relu batch_norm1d batch_norm1d_relu batch_norm2d batch_norm2d_relu batch_norm3d batch_norm3d_relu cat
    cat_relu celu conv1d conv1d_relu conv2d conv2d_relu conv3d conv3d_relu conv_transpose1d conv_transpose2d
    conv_transpose3d elu group_norm hardswish instance_norm layer_norm leaky_relu linear linear_dynamic
    linear_dynamic_fp16 linear_relu linear_relu_dynamic linear_relu_dynamic_fp16 max_pool1d max_pool2d mul mul_relu
    prelu relu6 sigmoid softmax
    """,
    Trait.COMPUTES,
    namespace="quantized",
)

_ON_QUANTIZED_IMAGES = operators("add sub mul div", Trait.COMPUTES, namespace="vulkan_quantized")

LAYERS: Entries = joined(
    [
        *(_CONVOLUTIONS, _PRODUCTS, _NORMALIZATIONS, _SOFTMAXES, _POOLS, _OTHER_POOLS, _RECURRENT, _RESAMPLED),
        *(_OWN_NORMALIZATIONS, _ON_PACKED_WEIGHTS, _QUANTIZED, _ON_QUANTIZED_TENSORS, _ON_QUANTIZED_IMAGES),
    ]
)
