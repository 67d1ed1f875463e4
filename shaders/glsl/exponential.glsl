// Exponential and hyperbolic functions. The argument is reduced to |r| <= ln(2) / 2 with ln(2) in two parts (W. J. Cody and W. Waite,
// Software Manual for the Elementary Functions, 1980); polynomials here and in the other files are minimax, fitted for relative
// error in float64 with coefficients rounded to float32.
#ifndef EXPONENTIAL_GLSL
#define EXPONENTIAL_GLSL
#include "float_bits.glsl"

vec4 reduced_by_ln2(vec4 x, vec4 count) {
    precise vec4 rest = (x - count * 0.693359375) - count * -2.12194440e-4;
    return rest;
}

// exp(r) - 1 for |r| <= ln(2) / 2.
vec4 reduced_expm1(vec4 r) {
    precise vec4 result = r + r * r * polynomial(r, 0.49999997, 0.166665465, 0.0416674353, 0.00836625881, 0.00138706493);
    return result;
}

// x 2^n, in two steps, as 2^n may be out of range where the result isn't.
vec4 scaled(vec4 x, ivec4 n) {
    ivec4 first = n >> 1;
    precise vec4 result = (x * power_of_two(first)) * power_of_two(n - first);
    return result;
}

// exp(x + low) 2^shift, where low is a small correction.
vec4 scaled_exponential(vec4 x, vec4 low, int shift) {
    vec4 inside = clamp(x, vec4(-105.0), vec4(90.0));
    vec4 count = roundEven(inside * 1.44269504);
    precise vec4 r = reduced_by_ln2(inside, count) + low;
    precise vec4 y = 1.0 + reduced_expm1(r);
    return or_nan(scaled(y, ivec4(count) + shift), x);
}

// exp(x), or exp(x + low) with a small correction, for x <= 0 to about two ulp, zero where that is subnormal: as good where it is squared
// or added to one, and cheaper, for networks spend their time here. NaN gives anything. The multiple of ln(2) is rounded by adding
// 3 2^22 + 127, beside which a float has no bits below one: the last bits of the sum are the exponent of the power of two.
const float ROUNDING = 12583039.0;

vec4 decay_bound(vec4 x) { return max(x, -88.0); } // the power of two of -88 is zero

vec4 rounded_multiple(vec4 x) {
    precise vec4 result = x * 1.44269504 + ROUNDING;
    return result;
}

vec4 decay_of_reduced(vec4 r, vec4 multiple) {
    precise vec4 y = 1.0 + (r + r * r * polynomial(r, 0.499992311, 0.166671157, 0.0418902338, 0.00831245258));
    return y * intBitsToFloat(floatBitsToInt(multiple) << 23);
}

vec4 decay(vec4 x) {
    vec4 inside = decay_bound(x);
    precise vec4 multiple = rounded_multiple(inside), count = multiple - ROUNDING;
    return decay_of_reduced(reduced_by_ln2(inside, count), multiple);
}

vec4 decay(vec4 x, vec4 low) {
    vec4 inside = decay_bound(x);
    precise vec4 multiple = rounded_multiple(inside), count = multiple - ROUNDING;
    precise vec4 r = reduced_by_ln2(inside, count) + low;
    return decay_of_reduced(r, multiple);
}

vec4 exponential(vec4 x) { return scaled_exponential(x, vec4(0.0), 0); }

vec4 exponential2(vec4 x) {
    vec4 inside = clamp(x, vec4(-151.0), vec4(129.0));
    vec4 count = roundEven(inside);
    precise vec4 y = 1.0 + reduced_expm1((inside - count) * 0.693147181);
    return or_nan(scaled(y, ivec4(count)), x);
}

// 2^n expm1(r) + (2^n - 1), halved so that the largest arguments don't overflow.
vec4 expm1(vec4 x) {
    vec4 inside = clamp(x, vec4(-18.0), vec4(90.0));
    vec4 count = roundEven(inside * 1.44269504);
    vec4 half_power = power_of_two(min(ivec4(count), 128) - 1);
    precise vec4 half_result = half_power * reduced_expm1(reduced_by_ln2(inside, count)) + (half_power - 0.5);
    vec4 result = mix(half_result + half_result, vec4(intBitsToFloat(INFINITY)), greaterThan(x, vec4(88.8)));
    return or_nan(keep_tiny(result, x), x);
}

vec4 hyperbolic_sine(vec4 x) {
    vec4 a = abs(x), s = x * x;
    precise vec4 half_exponential = scaled_exponential(a, vec4(0.0), -1);
    precise vec4 large = half_exponential - 0.25 / half_exponential;
    precise vec4 small = a + a * (s * polynomial(s, 0.166666672, 0.00833331048, 0.000198428956, 2.78221319e-06));
    return or_nan(keep_tiny(with_sign(mix(large, small, lessThan(a, vec4(1.0))), x), x), x);
}

vec4 hyperbolic_cosine(vec4 x) {
    precise vec4 half_exponential = scaled_exponential(abs(x), vec4(0.0), -1);
    precise vec4 result = half_exponential + 0.25 / half_exponential;
    return or_nan(result, x);
}

vec4 hyperbolic_tangent(vec4 x) {
    vec4 a = abs(x), s = x * x;
    precise vec4 e = decay(-2.0 * a);
    precise vec4 large = (1.0 - e) / (1.0 + e);
    precise vec4 small = a + a * (s * polynomial(s, -0.333332807, 0.133314058, -0.0537365153, 0.0206281673, -0.00569229666));
    return or_nan(keep_tiny(with_sign(mix(large, small, lessThan(a, vec4(0.625))), x), x), x);
}
#endif
