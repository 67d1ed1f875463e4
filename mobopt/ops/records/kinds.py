"""Which numbers operators' CPU kernels take for their first tensor: what eager refuses is refused here, too, as other
kernels would give integers, cut off. Found by calling each with integers and truth values (PyTorch 2.13)."""

import torch

from mobopt.ops.records.record import Trait

_OF_FLOATS = """
    _batch_norm_with_update _native_batch_norm_legit _safe_softmax adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d addcdiv batch_norm
    binary_cross_entropy binary_cross_entropy_with_logits cdist celu cholesky_inverse cholesky_solve
    complex cosine_similarity cross_entropy_loss ctc_loss dist elu frac frexp gelu geqrf glu grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm hardshrink hardsigmoid hardswish huber_loss hypot igamma igammac
    instance_norm kl_div layer_norm leaky_relu lerp linalg_cholesky linalg_cholesky_ex linalg_det
    linalg_householder_product linalg_inv linalg_inv_ex linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_matrix_norm linalg_norm linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_vector_norm log_sigmoid log_softmax logaddexp logaddexp2
    logcumsumexp logdet max_pool1d mish mse_loss
    native_batch_norm native_group_norm native_layer_norm nextafter polar prelu rms_norm round.decimals rrelu
    scaled_dot_product_attention selu silu smooth_l1_loss soft_margin_loss softmax softplus softshrink triangular_solve
    upsample_linear1d upsample_trilinear3d
    """
_PACKED = """
    conv2d_clamp_run run_conv1d_context run_conv2d_context run_linear_context run_tconv2d_context
    """
_OF_FLOATS_OR_BYTES = """
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d
    """
_OF_NUMBERS = """
    abs ceil floor hardtanh max_pool2d max_pool3d median nanmedian reflection_pad1d reflection_pad2d
    reflection_pad3d relu relu6 round threshold trunc
    """
_ALIKE = """
    _convolution _convolution_mode bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    convolution linear matmul mm mv
    """
_BYTES = frozenset({torch.uint8})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
TAKEN: dict[Trait, frozenset[torch.dtype]] = {
    Trait.OF_FLOATS: frozenset(),
    Trait.OF_FLOATS_OR_BYTES: _BYTES,
    Trait.OF_NUMBERS: _INTEGERS,
}
"""The dtypes besides those of floats and complex numbers that operators of each trait take."""
KINDS = {
    **{f"aten::{name}": Trait.OF_FLOATS for name in _OF_FLOATS.split()},
    **{f"vulkan_prepack::{name}": Trait.OF_FLOATS for name in _PACKED.split()},
    **{f"aten::{name}": Trait.OF_FLOATS_OR_BYTES for name in _OF_FLOATS_OR_BYTES.split()},
    **{f"aten::{name}": Trait.ALIKE for name in _ALIKE.split()},
    **{f"aten::{name}": Trait.OF_NUMBERS for name in _OF_NUMBERS.split()},
}
"""The trait of an operator, by its name, or its name with overload."""
