// Division of floats.
#ifndef QUOTIENT_GLSL
#define QUOTIENT_GLSL
#include "float_bits.glsl"

// Drivers may divide by way of the reciprocal, which is zero for the largest divisors.
vec4 quotient(vec4 a, vec4 b) {
    vec4 scale = mix(vec4(1.0), vec4(0.0625), greaterThan(abs(b), vec4(4e37)));
    precise vec4 result = (a * scale) / (b * scale);
    return result;
}

// The quotient after one step of Newton's method, for rounding to whole numbers: where the true one is a float, this is it. Both are
// scaled to where no part of their product is subnormal or infinite.
vec4 rounded_quotient(vec4 a, vec4 b) {
    vec4 scale = mix(vec4(1.0), vec4(1.84467441e19), lessThan(abs(a), vec4(1e-18)));
    scale = mix(scale, vec4(5.42101086e-20), greaterThan(abs(a), vec4(1e18)));
    precise vec4 dividend = a * scale, divisor = b * scale;
    vec4 ratio = dividend / divisor;
    vec4 lost;
    precise vec4 product = two_product(ratio, divisor, lost);
    precise vec4 rest = (dividend - product) - lost;
    vec4 correction = rest / divisor;
    bvec4 countable = both(greaterThan(abs(ratio), vec4(0.5)), lessThan(abs(ratio), vec4(1e10)));
    return mix(quotient(a, b), ratio + correction, countable);
}
#endif
