// One pointwise instruction on four lanes of bits. The opcode is a specialization constant at every call, so one case is left.
#include "pointwise_opcodes.glsl"
#include "pointwise_dtypes.glsl"

// Comparisons of bits: a driver may assume that no float is NaN.
bvec4 is_nan(vec4 x) { return greaterThan(floatBitsToInt(x) & 0x7fffffff, ivec4(0x7f800000)); }
bvec4 is_inf(vec4 x) { return equal(floatBitsToInt(x) & 0x7fffffff, ivec4(0x7f800000)); }

vec4 or_nan(vec4 result, vec4 x) { return mix(result, x, is_nan(x)); }

// The functions of GLSL outside of their domain, where drivers differ.
vec4 only_where(bvec4 defined, vec4 x) { return mix(vec4(intBitsToFloat(0x7fc00000)), x, defined); }
vec4 exponential(vec4 x) { return or_nan(exp(x), x); }
vec4 logarithm(vec4 x) {
    vec4 result = mix(log(x), vec4(intBitsToFloat(0xff800000)), equal(x, vec4(0.0)));
    return only_where(greaterThanEqual(x, vec4(0.0)), result);
}

vec4 bounded(vec4 x, vec4 low, vec4 high) { return or_nan(min(max(x, low), high), x); }

// The angle of (x, y); GLSL leaves zeros to the driver.
vec4 angle(vec4 y, vec4 x) {
    ivec4 half_turn = (floatBitsToInt(y) & 0x80000000) | 0x40490fdb;
    vec4 on_axis = mix(y, intBitsToFloat(half_turn), lessThan(floatBitsToInt(x), ivec4(0)));
    return or_nan(or_nan(mix(atan(y, x), on_axis, equal(y, vec4(0.0))), x), y);
}

vec4 sigmoid(vec4 x) { return 1.0 / (1.0 + exponential(-x)); }

// logarithm(1 + x) and exponential(x) - 1 without the cancellation near zero (W. Kahan's forms).
vec4 log1p(vec4 x) {
    vec4 sum = 1.0 + x;
    vec4 result = logarithm(sum) * (x / (sum - 1.0));
    return mix(mix(result, logarithm(sum), is_inf(sum)), x, equal(sum, vec4(1.0)));
}

vec4 expm1(vec4 x) {
    vec4 series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))));
    return mix(exponential(x) - 1.0, series, lessThan(abs(x), vec4(0.1)));
}

vec4 log_sigmoid(vec4 x) { return min(x, 0.0) - log1p(exponential(-abs(x))); }

// tanh(x) = (1 - e) / (1 + e) with e = exponential(-2|x|); an odd polynomial near zero, where that form cancels.
vec4 hyperbolic_tangent(vec4 x) {
    vec4 e = exponential(-2.0 * abs(x));
    vec4 s = x * x;
    vec4 series = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0))));
    vec4 result = sign(x) * (1.0 - e) / (1.0 + e);
    return or_nan(mix(result, series, lessThan(abs(x), vec4(0.15))), x);
}

// A Taylor series near zero, elsewhere 1 - t exponential(-x^2 + p(t)) (Numerical Recipes, 2nd edition, erfcc; error below 1.2e-7).
vec4 error_function(vec4 x) {
    vec4 a = abs(x);
    vec4 t = 1.0 / (1.0 + 0.5 * a);
    vec4 p = t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807
           + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    vec4 tail = 1.0 - t * exponential(-a * a - 1.26551223 + p);
    vec4 s = x * x;
    vec4 series = 1.1283791670955126 * x * (1.0 + s * (-1.0 / 3.0 + s * (0.1 + s * (-1.0 / 42.0 + s * (1.0 / 216.0)))));
    return or_nan(mix(sign(x) * tail, series, lessThan(a, vec4(0.5))), x);
}

vec4 power(vec4 base, vec4 exponent) {
    vec4 magnitude = pow(abs(base), exponent);
    bvec4 whole = equal(floor(exponent), exponent);
    bvec4 odd = equal(abs(exponent - 2.0 * trunc(exponent * 0.5)), vec4(1.0));
    vec4 negative = only_where(whole, mix(magnitude, -magnitude, odd));
    vec4 result = mix(magnitude, negative, lessThan(base, vec4(0.0)));
    result = mix(result, base * base, equal(exponent, vec4(2.0)));
    result = mix(result, base, equal(exponent, vec4(1.0)));
    result = mix(or_nan(or_nan(result, base), exponent), vec4(1.0), equal(base, vec4(1.0)));
    return mix(result, vec4(1.0), equal(exponent, vec4(0.0)));
}

// The sign of the result is the dividend's (fmod, as in C) or the divisor's (remainder, as in Python).
vec4 modulo_truncated(vec4 a, vec4 b) {
    vec4 result = a - b * trunc(a / b);
    return mix(result, a, is_inf(b));
}

vec4 modulo(vec4 a, vec4 b) {
    vec4 result = a - b * trunc(a / b);
    bvec4 adjust = notEqual(lessThan(result, vec4(0.0)), lessThan(b, vec4(0.0)));
    return mix(result, result + b, mix(bvec4(false), adjust, notEqual(result, vec4(0.0))));
}

// The largest whole number not above the quotient, by torch's way (c10/util/generic_math.h): from an exact remainder.
vec4 floor_divide(vec4 a, vec4 b) {
    vec4 remainder = a - b * trunc(a / b);
    vec4 quotient = (a - remainder) / b;
    bvec4 adjust = notEqual(lessThan(remainder, vec4(0.0)), lessThan(b, vec4(0.0)));
    quotient -= vec4(mix(bvec4(false), adjust, notEqual(remainder, vec4(0.0))));
    vec4 whole = floor(quotient);
    whole += vec4(greaterThan(quotient - whole, vec4(0.5)));
    return mix(whole, a / b, equal(b, vec4(0.0)));
}

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

#define FLOAT(value) return floatBitsToInt(value)
#define BOOL(value) return ivec4(value)

ivec4 apply(int opcode, ivec4 i, ivec4 j, ivec4 k) {
    vec4 a = intBitsToFloat(i), b = intBitsToFloat(j), c = intBitsToFloat(k);
    switch (opcode) {
    case MOVE: return i;
    case NEG: FLOAT(-a);
    case ABS: FLOAT(abs(a));
    case SIGN: FLOAT(mix(sign(a), vec4(0.0), is_nan(a)));
    case FLOOR: FLOAT(floor(a));
    case CEIL: FLOAT(ceil(a));
    case ROUND: FLOAT(roundEven(a));
    case TRUNC: FLOAT(trunc(a));
    case FRAC: FLOAT(a - trunc(a));
    case RECIPROCAL: FLOAT(1.0 / a);
    case SQRT: FLOAT(or_nan(sqrt(a), a));
    case RSQRT: FLOAT(1.0 / sqrt(a));
    case EXP: FLOAT(exponential(a));
    case EXP2: FLOAT(or_nan(exp2(a), a));
    case EXPM1: FLOAT(expm1(a));
    case LOG: FLOAT(logarithm(a));
    case LOG2: FLOAT(logarithm(a) * 1.4426950408889634);
    case LOG10: FLOAT(logarithm(a) * 0.4342944819032518);
    case LOG1P: FLOAT(log1p(a));
    case SIN: FLOAT(sin(a));
    case COS: FLOAT(cos(a));
    case TAN: FLOAT(tan(a));
    case ASIN: FLOAT(only_where(lessThanEqual(abs(a), vec4(1.0)), angle(a, sqrt(max(1.0 - a * a, 0.0)))));
    case ACOS: FLOAT(only_where(lessThanEqual(abs(a), vec4(1.0)), angle(sqrt(max(1.0 - a * a, 0.0)), a)));
    case ATAN: FLOAT(or_nan(atan(a), a));
    case SINH: FLOAT(0.5 * (expm1(a) - expm1(-a)));
    case COSH: FLOAT(0.5 * (exponential(a) + exponential(-a)));
    case TANH: FLOAT(hyperbolic_tangent(a));
    case ASINH: FLOAT(mix(sign(a) * log1p(abs(a) + a * a / (1.0 + sqrt(1.0 + a * a))), a, is_inf(a)));
    case ACOSH: FLOAT(only_where(greaterThanEqual(a, vec4(1.0)), log1p(a - 1.0 + sqrt(a - 1.0) * sqrt(a + 1.0))));
    case ATANH: FLOAT(0.5 * (log1p(a) - log1p(-a)));
    case ERF: FLOAT(error_function(a));
    case SIGMOID: FLOAT(sigmoid(a));
    case LOG_SIGMOID: FLOAT(or_nan(log_sigmoid(a), a));
    case RELU: FLOAT(or_nan(max(a, 0.0), a));
    case HARDSWISH: FLOAT(a * bounded(a + 3.0, vec4(0.0), vec4(6.0)) * (1.0 / 6.0));
    case HARDSIGMOID: FLOAT(bounded(a + 3.0, vec4(0.0), vec4(6.0)) * (1.0 / 6.0));
    case SILU: FLOAT(a / (1.0 + exp(-a)));
    case MISH: FLOAT(a * hyperbolic_tangent(max(a, 0.0) + log1p(exponential(-abs(a)))));
    case GELU: FLOAT(0.5 * a * (1.0 + error_function(a * 0.7071067811865476)));
    case GELU_TANH: FLOAT(0.5 * a * (1.0 + hyperbolic_tangent(0.7978845608028654 * (a + 0.044715 * a * a * a))));
    case IS_NAN: BOOL(is_nan(a));
    case IS_INF: BOOL(is_inf(a));

    case ADD: FLOAT(a + b);
    case SUB: FLOAT(a - b);
    case MUL: FLOAT(a * b);
    case DIV: FLOAT(a / b);
    case DIV_FLOOR: FLOAT(floor_divide(a, b));
    case REMAINDER: FLOAT(modulo(a, b));
    case FMOD: FLOAT(modulo_truncated(a, b));
    case POW: FLOAT(power(a, b));
    case MAX: FLOAT(or_nan(or_nan(max(a, b), b), a));
    case MIN: FLOAT(or_nan(or_nan(min(a, b), b), a));
    case ATAN2: FLOAT(angle(a, b));
    case EQ: BOOL(equal(a, b));
    case NE: BOOL(notEqual(a, b));
    case LT: BOOL(lessThan(a, b));
    case LE: BOOL(lessThanEqual(a, b));
    case PRELU: FLOAT(mix(a * b, a, greaterThan(a, vec4(0.0))));
    case HARDSHRINK: FLOAT(mix(a, vec4(0.0), lessThanEqual(abs(a), b)));
    case SOFTSHRINK: FLOAT(or_nan(sign(a) * max(abs(a) - b, 0.0), a));

    case MULADD: FLOAT(a * b + c);
    case LERP: FLOAT(mix(b - (b - a) * (1.0 - c), a + c * (b - a), lessThan(abs(c), vec4(0.5))));
    case CLAMP: FLOAT(or_nan(or_nan(bounded(a, b, c), c), b));
    case THRESHOLD: FLOAT(mix(a, c, lessThanEqual(a, b)));
    case ELU: FLOAT(mix(b * expm1(a * c), a, greaterThan(a, vec4(0.0))));
    case SOFTPLUS: FLOAT(mix(or_nan((max(a * b, 0.0) + log1p(exponential(-abs(a * b)))) / b, a), a, greaterThan(a * b, c)));

    case INT_TO_FLOAT: FLOAT(vec4(i));
    case FLOAT_TO_INT:
    case FLOAT_TO_LONG: return truncated(a);
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
    case TO_HALF: return rounded_to_half(i);
    case TO_BFLOAT: return rounded_to_bfloat(i);
    case INT_INDEX: return clamp(i + j * ivec4(lessThan(i, ivec4(0))), ivec4(0), j - 1);
    }
    return i;
}
