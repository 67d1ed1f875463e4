// base ^ exponent = 2^(exponent log2(|base|)), where the logarithm and its product with the exponent are sums of two floats, so that
// results of any size keep their precision (after the plan of FDLIBM's e_pow.c: log2 by atanh, with leading parts whose products
// are exact).
#ifndef POWER_GLSL
#define POWER_GLSL
#include "exponential.glsl"
#include "logarithm.glsl"

// log2(x) as a leading part of 12 bits and the rest, for x > 0.
vec4 two_part_log2(vec4 x, out vec4 rest) {
    vec4 exponent;
    precise vec4 f = fraction_of(x, exponent);
    precise vec4 divisor = 2.0 + f;
    precise vec4 divisor_high = leading(divisor);
    precise vec4 divisor_low = f - (divisor_high - 2.0);
    precise vec4 s_high = leading(f / divisor);
    precise vec4 s_low = ((f - s_high * divisor_high) - s_high * divisor_low) / divisor;
    precise vec4 s = s_high + s_low;
    precise vec4 z = s * s;
    precise vec4 tail = s_low + s * (z * polynomial(z, 0.333333313, 0.200004861, 0.142493993, 0.121393606));
    // 2 / ln(2) in two parts, of which the first has 12 bits.
    precise vec4 scaled_high = s_high * 2.884765625;
    precise vec4 scaled_low = tail * 2.884765625 + (s_high + tail) * 6.24456778e-4;
    precise vec4 sum = exponent + scaled_high;
    precise vec4 below = scaled_low + (scaled_high - (sum - exponent));
    precise vec4 high = leading(sum + below);
    rest = below - (high - sum);
    return high;
}

vec4 positive_power(vec4 base, vec4 exponent) {
    precise vec4 log_low;
    precise vec4 log_high = two_part_log2(base, log_low);
    precise vec4 y = clamp(exponent, vec4(-3e10), vec4(3e10));
    precise vec4 y_high = leading(y);
    precise vec4 high = y_high * log_high;
    precise vec4 low = (y - y_high) * log_high + y * log_low;
    precise vec4 inside = clamp(high + low, vec4(-151.0), vec4(129.0));
    precise vec4 count = roundEven(inside);
    precise vec4 rest = clamp((high - count) + low, vec4(-1.0), vec4(1.0)); // more where the result is out of range
    precise vec4 result = 1.0 + reduced_expm1(rest * 0.693147181);
    return scaled(result, ivec4(count));
}

vec4 power(vec4 base, vec4 exponent) {
    vec4 magnitude = abs(base);
    vec4 result = positive_power(magnitude, exponent);
    // Zero and infinity become one another for negative exponents.
    bvec4 infinite = is_inf(base);
    bvec4 at_end = notEqual(infinite, is_zero(base));
    vec4 limit = mix(vec4(0.0), vec4(intBitsToFloat(INFINITY)), equal(infinite, greaterThan(exponent, vec4(0.0))));
    result = mix(result, limit, at_end);

    bvec4 whole = equal(floor(exponent), exponent);
    precise vec4 half_exponent = 0.5 * exponent;
    bvec4 odd = both(both(whole, notEqual(floor(half_exponent), half_exponent)), lessThan(abs(exponent), vec4(16777216.0)));
    result = mix(result, -result, both(is_negative(base), odd));
    result = mix(result, only_where(whole, result), both(is_negative(base), not(at_end)));
    result = or_nan(or_nan(result, base), exponent);
    result = mix(result, vec4(1.0), both(is_inf(exponent), equal(magnitude, vec4(1.0))));
    result = mix(result, vec4(1.0), equal(base, vec4(1.0)));
    return mix(result, vec4(1.0), is_zero(exponent));
}
#endif
