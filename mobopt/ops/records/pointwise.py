"""Operators that compute each element by itself, also where the element comes out as it went in."""

from mobopt.ops.records.record import Entries, Trait, joined, operators

_ARITHMETIC = operators(
    """
    _add_relu _conj_physical __and__ __lshift__ __or__ __rshift__ __xor__ abs absolute add addcmul angle
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor clamp clamp_max clamp_min clip
    complex copysign deg2rad eq fmax fmin gcd ge greater greater_equal gt isfinite isinf isnan isneginf
    isposinf isreal lcm le lerp less less_equal logical_and logical_not logical_or logical_xor lt max.other maximum
    min.other minimum mul multiply ne not_equal pow.Tensor_Scalar rad2deg rsub sgn sign signbit square sub subtract
    """,
    Trait.ELEMENTWISE,
)
_DIVISIONS = operators("addcdiv div divide true_divide", Trait.ELEMENTWISE, Trait.DIVIDES)
_DELICATE = operators(
    """
    float_power floor_divide fmod frac heaviside hypot isclose ldexp logaddexp logaddexp2 polar pow reciprocal
    remainder
    """,
    *(Trait.ELEMENTWISE, Trait.DELICATE),
)
_NEIGHBOURS = operators("nextafter", Trait.ELEMENTWISE, Trait.DELICATE, Trait.READS_BITS)
_CHOICES = operators(
    "masked_fill neg negative where.Scalar where.ScalarOther where.ScalarSelf where.self",
    Trait.ELEMENTWISE,
    Trait.BY_PARTS,
)
_ROUNDING = operators("ceil fix floor round trunc", Trait.ELEMENTWISE, Trait.DELICATE)
_STEPS = operators("fake_quantize rounded_gate", Trait.ELEMENTWISE, Trait.DELICATE, namespace="mobopt")
_FUNCTIONS = operators(
    """
    acos acosh arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh cos cosh digamma
    erfinv exp exp2 expm1 frexp i0 igamma igammac lgamma log log10 log1p log2 logit mvlgamma polygamma rsqrt
    sin sinc sinh sqrt tan xlogy special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_digamma special_entr special_erfcx special_erfinv
    special_exp2 special_expm1 special_gammainc special_gammaincc special_gammaln
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
    special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_logit
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_round
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_sinc special_spherical_bessel_j0 special_xlog1py special_xlogy
    special_zeta
    """,
    *(Trait.ELEMENTWISE, Trait.DELICATE),
)
_OF_COMPLEX = operators("conj_physical", Trait.ELEMENTWISE, Trait.HANDS_BACK)
_ACTIVATIONS = operators(
    """
    celu elu erf erfc gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish nan_to_num relu relu6
    selu sigmoid silu softplus softshrink special_erf special_erfc special_expit tanh threshold
    """,
    Trait.ELEMENTWISE,
)
_COPIES = joined(
    [
        operators("_to_copy alias clone contiguous detach lift lift_fresh lift_fresh_copy positive to", Trait.IDENTITY),
        operators("alias_copy detach_copy resolve_conj resolve_neg", Trait.IDENTITY),
        operators(
            """
            _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short type_as
            """,
            Trait.IDENTITY,
            Trait.HANDS_BACK,
        ),
        operators("cpu cuda", Trait.IDENTITY, Trait.TRANSFER, Trait.HANDS_BACK),
        operators("copy_to_host", Trait.IDENTITY, Trait.TRANSFER, namespace="metal"),
        operators("detach_", Trait.IDENTITY, Trait.VIEWS_IN_PLACE, Trait.LATE_FUNCTIONAL_FORM),
        operators("copy_ fill_", Trait.KEEPS_SIZES, Trait.LATE_FUNCTIONAL_FORM, Trait.CONVERTS_ON_WRITE),
        operators("zero_", Trait.KEEPS_SIZES, Trait.LATE_FUNCTIONAL_FORM),
        operators("requires_grad_", Trait.LATE_FUNCTIONAL_FORM),
        operators("_resize_output_ set_ resize_ resize_as_", Trait.LATE_FUNCTIONAL_FORM, Trait.OWN_STRIDES),
    ]
)
_DROPOUTS = joined(
    [
        operators(
            "alpha_dropout dropout feature_alpha_dropout feature_dropout",
            *(Trait.DROPOUT, Trait.RANDOM, Trait.HANDS_BACK, Trait.KEEPS_SIZES),
        ),
        operators(
            "_fused_dropout native_dropout rrelu rrelu_with_noise rrelu_with_noise_functional",
            *(Trait.RANDOM, Trait.KEEPS_SIZES),
        ),
    ]
)
_BY_WEIGHT = operators("prelu _prelu_kernel", Trait.KEEPS_SIZES)

POINTWISE: Entries = joined(
    [
        _ARITHMETIC,
        _DIVISIONS,
        _DELICATE,
        _NEIGHBOURS,
        _CHOICES,
        _ROUNDING,
        _STEPS,
        _FUNCTIONS,
        _OF_COMPLEX,
        _ACTIVATIONS,
        _COPIES,
        _DROPOUTS,
        _BY_WEIGHT,
    ]
)
