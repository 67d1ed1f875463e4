// Division of floats.
#ifndef QUOTIENT_GLSL
#define QUOTIENT_GLSL
#include "float_bits.glsl"

// As the driver divides, which may be by way of the reciprocal: that is zero for the largest divisors.
vec4 rough_quotient(vec4 a, vec4 b) {
    vec4 scale = mix(vec4(1.0), vec4(0.0625), greaterThan(abs(b), vec4(4e37)));
    precise vec4 result = (a * scale) / (b * scale);
    return result;
}

// With one step of Newton's method after that, for drivers may be off by 2.5 ulp: x / x is 1, and a whole quotient is whole. Both
// are scaled to where no part of their product is subnormal or infinite; beyond such quotients, the driver's must do.
vec4 quotient(vec4 a, vec4 b) {
    vec4 scale = mix(vec4(1.0), vec4(1.84467441e19), lessThan(abs(a), vec4(1e-18)));
    scale = mix(scale, vec4(5.42101086e-20), greaterThan(abs(a), vec4(1e18)));
    precise vec4 dividend = a * scale, divisor = b * scale;
    precise vec4 ratio = dividend / divisor;
    vec4 lost;
    precise vec4 product = two_product(ratio, divisor, lost);
    precise vec4 correction = ((dividend - product) - lost) / divisor;
    precise vec4 corrected = ratio + correction;
    bvec4 usual = both(greaterThan(abs(ratio), vec4(1e-10)), lessThan(abs(ratio), vec4(1e10)));
    return mix(rough_quotient(a, b), corrected, usual);
}
#endif
