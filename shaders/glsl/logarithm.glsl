// Logarithms and inverse hyperbolic functions. A number is 2^exponent (1 + fraction) with 1 + fraction from sqrt(1/2) to sqrt(2)
// (found in its bits as FDLIBM's logf does), and ln(2) is in two parts as in W. J. Cody and W. Waite's manual.
#ifndef LOGARITHM_GLSL
#define LOGARITHM_GLSL
#include "float_bits.glsl"

vec4 fraction_of_normal(vec4 x, out ivec4 exponent) {
    ivec4 shifted = floatBitsToInt(x) + (0x3f800000 - 0x3f3504f3);
    exponent = (shifted >> 23) - 127;
    return intBitsToFloat((shifted & 0x007fffff) + 0x3f3504f3) - 1.0;
}

// Subnormals are read as integers, which no device flushes.
vec4 fraction_of(vec4 x, out vec4 exponent) {
    bvec4 subnormal = lessThan(floatBitsToInt(x), ivec4(0x00800000));
    ivec4 whole;
    vec4 fraction = fraction_of_normal(mix(x, vec4(floatBitsToInt(x)), subnormal), whole);
    exponent = vec4(whole - mix(ivec4(0), ivec4(149), subnormal));
    return fraction;
}

// What is missing in log(1 + f) = f - missing.
vec4 curvature(vec4 f) {
    vec4 s = f * f;
    precise vec4 result = 0.5 * s - f * s * polynomial(f, 0.333333313, -0.250008196, 0.200012416, -0.166234091, 0.142015800,
                                                       -0.131596103, 0.127622172, -0.0763643906);
    return result;
}

vec4 log_of(vec4 fraction, vec4 exponent) {
    precise vec4 result = exponent * 0.693359375 + (fraction - (curvature(fraction) - exponent * -2.12194440e-4));
    return result;
}

// A logarithm's result where the argument is zero, negative, infinite or NaN.
vec4 log_domain(vec4 result, vec4 x) {
    ivec4 bits = floatBitsToInt(x);
    result = mix(result, x, greaterThanEqual(bits, ivec4(INFINITY)));
    return mix(only_where(greaterThanEqual(bits, ivec4(0)), result), vec4(intBitsToFloat(0xff800000)), is_zero(x));
}

vec4 logarithm(vec4 x) {
    vec4 exponent;
    vec4 fraction = fraction_of(x, exponent);
    return log_domain(log_of(fraction, exponent), x);
}

vec4 logarithm2(vec4 x) {
    vec4 exponent;
    vec4 fraction = fraction_of(x, exponent);
    precise vec4 natural = fraction - curvature(fraction);
    precise vec4 result = exponent + (natural + natural * 0.442695041);
    return log_domain(result, x);
}

vec4 logarithm10(vec4 x) {
    vec4 exponent;
    vec4 fraction = fraction_of(x, exponent);
    precise vec4 natural = fraction - curvature(fraction);
    precise vec4 result = exponent * 0.30078125 + (natural * 0.43359375 + (natural * 7.00731904e-4 + exponent * 2.48745664e-4));
    return log_domain(result, x);
}

// log(1 + x), or log(2 a) where `large`: the sum is rounded, and what that lost is added to the fraction. For results that are not
// of one sign with x only where x > -1.
vec4 log_of_sum(vec4 x, vec4 a, bvec4 large) {
    precise vec4 sum = 1.0 + x;
    precise vec4 lost = mix(1.0 - (sum - x), x - (sum - 1.0), lessThan(abs(x), vec4(1.0)));
    ivec4 exponent;
    precise vec4 fraction = fraction_of_normal(mix(sum, a, large), exponent);
    precise vec4 correction = mix(lost * power_of_two(-min(exponent, 126)), vec4(0.0), large);
    return log_of(fraction + correction, vec4(exponent + ivec4(large)));
}

vec4 log1p(vec4 x) {
    precise vec4 sum = 1.0 + x;
    return keep_tiny(log_domain(log_of_sum(x, x, bvec4(false)), sum), x);
}

// From here on asinh is log(2 x), and so is acosh, to float32.
const float SQUARES_FIT = 4096.0;

vec4 inverse_hyperbolic_sine(vec4 x) {
    vec4 a = abs(x);
    vec4 b = min(a, SQUARES_FIT);
    precise vec4 above_one = b + b * b / (1.0 + sqrt(1.0 + b * b));
    vec4 result = log_of_sum(above_one, a, greaterThan(a, vec4(SQUARES_FIT)));
    return or_nan(keep_tiny(with_sign(mix(result, a, is_inf(a)), x), x), x);
}

vec4 inverse_hyperbolic_cosine(vec4 x) {
    precise vec4 b = min(x, SQUARES_FIT) - 1.0;
    precise vec4 above_one = b + sqrt(b * (b + 2.0));
    vec4 result = log_of_sum(above_one, x, greaterThan(x, vec4(SQUARES_FIT)));
    return only_where(greaterThanEqual(x, vec4(1.0)), mix(result, x, is_inf(x)));
}

vec4 inverse_hyperbolic_tangent(vec4 x) {
    vec4 a = abs(x);
    bvec4 near_zero = lessThan(a, vec4(0.5));
    precise vec4 twice = a + a;
    precise vec4 ratio = mix(twice, twice * a, near_zero) / (1.0 - a);
    precise vec4 above_one = mix(ratio, twice + ratio, near_zero);
    vec4 result = mix(0.5 * log_of_sum(above_one, a, bvec4(false)), vec4(intBitsToFloat(INFINITY)), equal(a, vec4(1.0)));
    return keep_tiny(only_where(lessThanEqual(a, vec4(1.0)), with_sign(result, x)), x);
}
#endif
