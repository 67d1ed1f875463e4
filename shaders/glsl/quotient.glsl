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

// The quotient after one step of Newton's method, for rounding to whole numbers: where the true one is a float, this is it.
vec4 rounded_quotient(vec4 a, vec4 b) {
    vec4 lost;
    vec4 ratio = quotient(a, b);
    precise vec4 product = two_product(ratio, b, lost);
    precise vec4 correction = ((a - product) - lost) / b;
    bvec4 countable = both(greaterThan(abs(ratio), vec4(0.5)), lessThan(abs(ratio), vec4(1e10)));
    return mix(ratio, ratio + correction, both(countable, lessThan(max(abs(a), abs(b)), vec4(1e37))));
}
#endif
