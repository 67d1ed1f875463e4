"""Operators whose results depend on many elements each, and those that put elements among others."""

from mobopt.ops.records.record import Entries, Trait, joined, operators

_REDUCTIONS = joined(
    [
        operators("all any", Trait.COMPUTES),
        operators("sum", Trait.COMPUTES, Trait.DELICATE),
        operators("nanquantile quantile", Trait.COMPUTES, Trait.DELICATE, Trait.CHECKS_ELEMENTS),
        operators(
            """
            _cdist_forward _euclidean_dist cdist cosine_similarity dist frobenius_norm linalg_vector_norm logsumexp
            median nanmedian nansum norm nuclear_norm pairwise_distance pdist prod std std_mean trace var var_mean
            """,
            Trait.DELICATE,
        ),
    ]
)
_LOSSES = operators(
    """
    cosine_embedding_loss cross_entropy_loss ctc_loss hinge_embedding_loss huber_loss kl_div l1_loss
    margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd
    poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
    """,
    Trait.DELICATE,
)
_SCANS = joined(
    [
        operators("argsort cummax cummin cumprod cumsum logcumsumexp renorm", *(Trait.KEEPS_SIZES, Trait.DELICATE)),
        operators("tril triu", Trait.KEEPS_SIZES, Trait.BY_PARTS),
    ]
)
_SORTED = operators("sort", Trait.KEEPS_SIZES, Trait.COMPUTES, Trait.DELICATE)
_INTO_PLACES = joined(
    [
        operators("index_add index_fill index_put scatter_add", *(Trait.KEEPS_SIZES, Trait.BY_PARTS, Trait.DELICATE)),
        operators("index_reduce scatter scatter_reduce", *(Trait.KEEPS_SIZES, Trait.COMPUTES, Trait.DELICATE)),
    ]
)
_BY_ELEMENTS = joined(
    [
        operators(
            "_ctc_loss.Tensor _unique _unique2 bincount unique_consecutive unique_dim unique_dim_consecutive",
            Trait.SIZES_BY_ELEMENTS,
        ),
        operators("linalg_lstsq", Trait.SIZES_BY_ELEMENTS, Trait.COMPUTES),
    ]
)
_OF_IMAGES = joined(
    [
        operators("nms", Trait.SIZES_BY_ELEMENTS, Trait.COMPUTES, rank=1, namespace="torchvision"),
        operators("roi_align", *(Trait.COMPUTES, Trait.DELICATE), rank=4, namespace="torchvision"),
    ]
)
_SAMPLED = operators("affine_grid_generator grid_sampler grid_sampler_2d grid_sampler_3d", Trait.DELICATE)
_BY_NAME = operators(
    """
    fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn
    fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn linalg_cond linalg_eigh linalg_eigvalsh
    linalg_matrix_norm linalg_norm linalg_qr linalg_svd linalg_svdvals searchsorted segment_reduce stft
    """,
    *(Trait.COMPUTES, Trait.DELICATE),
)
_HISTOGRAMS = operators("histogramdd", Trait.HANDS_BACK)
_BAGS = operators("embedding_bag", Trait.READS_STRIDES)
_ONE_HOT = operators("one_hot", Trait.SIZES_BY_ELEMENTS, Trait.CHECKS_ELEMENTS)
_CHECKED = operators(
    """
    binary_cross_entropy histc inverse linalg_cholesky linalg_inv linalg_lu_factor linalg_matrix_power
    linalg_solve linalg_tensorinv linalg_tensorsolve
    """,
    *(Trait.CHECKS_ELEMENTS, Trait.DELICATE),
)

REDUCING: Entries = joined(
    [
        *(_REDUCTIONS, _LOSSES, _SCANS, _SORTED, _INTO_PLACES, _BY_ELEMENTS, _OF_IMAGES, _BY_NAME, _HISTOGRAMS, _BAGS),
        *(_ONE_HOT, _CHECKED, _SAMPLED),
    ]
)
