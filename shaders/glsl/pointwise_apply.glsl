// One pointwise instruction on four lanes of bits. The opcode is a specialization constant at every call, so one case is left.
// FUNCTIONS says which it is from: 0 is arithmetic, 1 has activations, exponentials and logarithms as well, 2 other elementary functions,
// 3 special ones; see Program.functions in runtimes/vulkan/kernels/pointwise_program.py. A driver takes long to compile what isn't used.
#include "elements.glsl"
#include "piecewise.glsl"
#include "pointwise_dtypes.glsl"
#include "quotient.glsl"
#if FUNCTIONS >= 1
#include "activations.glsl"
#endif
#if FUNCTIONS >= 2
#include "power.glsl"
#include "remainder.glsl"
#include "trigonometric.glsl"
#endif
#if FUNCTIONS >= 3
#include "bessel.glsl"
#include "error_functions.glsl"
#include "gamma.glsl"
#endif

ivec4 integer_power(ivec4 base, ivec4 exponent) {
    ivec4 result = ivec4(1);
    ivec4 square = base;
    for (int bit = 0; bit < 31; ++bit) {
        result *= mix(ivec4(1), square, equal((exponent >> bit) & 1, ivec4(1)));
        square *= square;
    }
    ivec4 sign = mix(ivec4(1), ivec4(-1), equal(exponent & 1, ivec4(1)));
    ivec4 reciprocal = mix(mix(ivec4(0), sign, equal(base, ivec4(-1))), ivec4(1), equal(base, ivec4(1)));
    return mix(result, reciprocal, lessThan(exponent, ivec4(0)));
}

// The next float from one towards another one.
ivec4 next_after(vec4 from, vec4 to) {
    ivec4 bits = floatBitsToInt(from), end = floatBitsToInt(to);
    bvec4 from_zero = is_zero(from), same = both(from_zero, is_zero(to));
    same = bvec4(ivec4(same) | ivec4(equal(bits, end)));
    // Floats of one sign are in the order of their bits.
    bvec4 upwards = lessThan(bits ^ ((bits >> 31) & MAGNITUDE), end ^ ((end >> 31) & MAGNITUDE));
    ivec4 step = mix(ivec4(-1), ivec4(1), equal(upwards, greaterThanEqual(bits, ivec4(0))));
    ivec4 next = mix(bits + step, (end & ~MAGNITUDE) | 1, from_zero);
    next = mix(next, end, same);
    return mix(mix(next, bits, is_nan(from)), end, is_nan(to));
}

// Of a number m 2^e with 0.5 <= |m| < 1: the bits of m, and e. Subnormals are read as integers, which no device flushes.
ivec4 mantissa_and_exponent(vec4 x, out ivec4 exponent) {
    ivec4 bits = floatBitsToInt(x), magnitude = bits & MAGNITUDE;
    bvec4 subnormal = lessThan(magnitude, ivec4(0x00800000));
    ivec4 normal = mix(magnitude, floatBitsToInt(vec4(magnitude)), subnormal);
    exponent = (normal >> 23) - 126 - mix(ivec4(0), ivec4(149), subnormal);
    bvec4 plain = both(notEqual(magnitude, ivec4(0)), lessThan(magnitude, ivec4(INFINITY)));
    exponent = mix(ivec4(0), exponent, plain);
    return mix(bits, (bits & ~MAGNITUDE) | (normal & 0x007fffff) | 0x3f000000, plain);
}

ivec4 exponent_of(vec4 x) {
    ivec4 exponent;
    mantissa_and_exponent(x, exponent);
    return exponent;
}

ivec4 mantissa_of(vec4 x) {
    ivec4 exponent;
    return mantissa_and_exponent(x, exponent);
}

// An operand as one that nothing is known of, since a compiler can't tell that no size is negative: it knows that a - a is 0, and so is a
// times false, which they are not of infinities and NaN, and `precise` doesn't keep Mesa 26 from it.
ivec4 unknown(ivec4 bits) { return bits ^ (words[0] >> 31); }
vec4 unrelated(ivec4 bits) { return intBitsToFloat(unknown(bits)); }

#define FLOAT(value) return floatBitsToInt(value)
#define EXACT(value) { precise vec4 exact = value; return floatBitsToInt(exact); }
#define BOOL(value) return ivec4(value)

ivec4 apply(int opcode, ivec4 i, ivec4 j, ivec4 k) {
    vec4 a = intBitsToFloat(i), b = intBitsToFloat(j), c = intBitsToFloat(k);
    switch (opcode) {
    case MOVE: return i;
    case NEG: return i ^ ~MAGNITUDE;
    case ABS: return i & MAGNITUDE;
    case SIGN: FLOAT(vec4(greaterThan(a, vec4(0.0))) - vec4(lessThan(a, vec4(0.0))));
    case FLOOR: FLOAT(floor(a));
    case CEIL: FLOAT(ceil(a));
    case ROUND: FLOAT(roundEven(a));
    case TRUNC: FLOAT(trunc(a));
    case FRAC: FLOAT(a - trunc(a));
    case RECIPROCAL: FLOAT(quotient(vec4(1.0), a));
    case SQRT: FLOAT(or_nan(sqrt(a), a));
    case RSQRT: FLOAT(1.0 / sqrt(a));
    case COPY_SIGN: return (i & MAGNITUDE) | (j & ~MAGNITUDE);
    case SIGN_BIT: BOOL(lessThan(i, ivec4(0)));
    case NEXT_AFTER: return next_after(a, b);
    case MANTISSA: return mantissa_of(a);
    case EXPONENT: return exponent_of(a);
    case IS_NAN: BOOL(is_nan(a));
    case IS_INF: BOOL(is_inf(a));
    case ADD: EXACT(a + unrelated(j));
    case SUB: EXACT(a - unrelated(j));
    case MUL: FLOAT(a * b);
    case DIV: FLOAT(quotient(a, b));
    case MAX: FLOAT(or_nan(or_nan(mix(max(a, b), a, equal(a, b)), b), a)); // of two zeros the first
    case MIN: FLOAT(or_nan(or_nan(mix(min(a, b), a, equal(a, b)), b), a));
    case EQ: BOOL(equal(a, b));
    case NE: BOOL(notEqual(a, b));
    case LT: BOOL(lessThan(a, b));
    case LE: BOOL(lessThanEqual(a, b));
    case MULADD: FLOAT(a * b + unrelated(k));
    case LERP: b = unrelated(j); EXACT(mix(b - (b - a) * (1.0 - c), a + c * (b - a), lessThan(abs(c), vec4(0.5))));
    case RELU: case CLAMP: case PRELU: case HARDSWISH: case HARDSIGMOID: case HARDSHRINK: case SOFTSHRINK: case THRESHOLD:
        FLOAT(piecewise(opcode, a, b, c));

#if FUNCTIONS >= 1
    case EXP: FLOAT(exponential(a));
    case EXP2: FLOAT(exponential2(a));
    case EXPM1: FLOAT(expm1(a));
    case LOG: FLOAT(logarithm(a));
    case LOG2: FLOAT(logarithm2(a));
    case LOG10: FLOAT(logarithm10(a));
    case LOG1P: FLOAT(log1p(a));
    case ERF: FLOAT(error_function(a));
    case LOG_SIGMOID: FLOAT(log_sigmoid(a));
    case ELU: FLOAT(mix(b * expm1(a * c), a, greaterThan(a, vec4(0.0))));
    case SOFTPLUS: FLOAT(softplus(a, b, c));
    case SIGMOID: case SILU: case MISH: case TANH: case GELU: case GELU_TANH: FLOAT(activated(opcode, a, b, c));
#endif
#if FUNCTIONS >= 2
    case SINH: FLOAT(hyperbolic_sine(a));
    case COSH: FLOAT(hyperbolic_cosine(a));
    case ASINH: FLOAT(inverse_hyperbolic_sine(a));
    case ACOSH: FLOAT(inverse_hyperbolic_cosine(a));
    case ATANH: FLOAT(inverse_hyperbolic_tangent(a));
    case SIN: FLOAT(sine(a));
    case COS: FLOAT(cosine(a));
    case TAN: FLOAT(tangent(a));
    case ASIN: FLOAT(arcsine(a));
    case ACOS: FLOAT(arccosine(a));
    case ATAN: FLOAT(arctangent(a));
    case ATAN2: FLOAT(angle(a, b));
    case POW: FLOAT(power(a, b));
    case DIV_FLOOR: FLOAT(floor_divide(a, b));
    case REMAINDER: FLOAT(modulo(a, b));
    case FMOD: FLOAT(modulo_truncated(a, b));
#endif
#if FUNCTIONS >= 3
    case ERFC: FLOAT(complementary_error_function(a));
    case ERFCX: FLOAT(scaled_complementary_error_function(a));
    case ERFINV: FLOAT(inverse_error_function(a));
    case LOG_NDTR: FLOAT(log_normal_mass(a));
    case NDTRI: FLOAT(normal_quantile(a));
    case LGAMMA: FLOAT(log_gamma(a));
    case DIGAMMA: FLOAT(digamma(a));
    case ZETA: FLOAT(hurwitz_zeta(a, b, c));
    case I0: FLOAT(modified_bessel_i(a, 0, false));
    case I0E: FLOAT(modified_bessel_i(a, 0, true));
    case I1: FLOAT(modified_bessel_i(a, 1, false));
    case I1E: FLOAT(modified_bessel_i(a, 1, true));
    case K0: FLOAT(modified_bessel_k(a, 0, false));
    case K0E: FLOAT(modified_bessel_k(a, 0, true));
    case K1: FLOAT(modified_bessel_k(a, 1, false));
    case K1E: FLOAT(modified_bessel_k(a, 1, true));
    case J0: FLOAT(bessel_j(a, 0));
    case J1: FLOAT(bessel_j(a, 1));
    case Y0: FLOAT(bessel_y(a, 0));
    case Y1: FLOAT(bessel_y(a, 1));
#endif

    case INT_TO_FLOAT: FLOAT(vec4(unknown(i)));
    case FLOAT_TO_INT:
    case FLOAT_TO_SMALL: return truncated(a);
    case INT_NEG: return -i;
    case INT_ABS: return abs(i);
    case INT_SIGN: return sign(i);
    case INT_NOT: return ~i;
    case INT_ADD: return i + j;
    case INT_SUB: return i - j;
    case INT_MUL: return i * j;
    case INT_DIV_FLOOR: return divide_floor(i, j);
    case INT_DIV_TRUNC: return divide_truncated(i, j);
    case INT_REMAINDER: return i - divide_floor(i, j) * j;
    case INT_FMOD: return i - divide_truncated(i, j) * j;
    case INT_POW: return integer_power(i, j);
    case INT_MAX: return max(i, j);
    case INT_MIN: return min(i, j);
    case INT_EQ: BOOL(equal(i, j));
    case INT_NE: BOOL(notEqual(i, j));
    case INT_LT: BOOL(lessThan(i, j));
    case INT_LE: BOOL(lessThanEqual(i, j));
    case INT_AND: return i & j;
    case INT_OR: return i | j;
    case INT_XOR: return i ^ j;
    case INT_SHIFT_LEFT: return shift_left(i, j);
    case INT_SHIFT_RIGHT: return shift_right(i, j);
    case SELECT: return mix(k, j, notEqual(i, ivec4(0)));
    case TO_HALF: return widened_halves(narrowed_to_halves(i));
    case TO_BFLOAT: return rounded_to_bfloats(i);
    case INT_INDEX: return clamp(i + j * ivec4(lessThan(i, ivec4(0))), ivec4(0), j - 1);
    }
    return i;
}
