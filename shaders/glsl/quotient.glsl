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
#endif
