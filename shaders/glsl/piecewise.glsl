// Activation functions that are straight lines in pieces.
#ifndef PIECEWISE_GLSL
#define PIECEWISE_GLSL
#include "float_bits.glsl"
#include "opcode.glsl"

// Drivers make minima and maxima of comparisons with selections, which lose NaN and the sign of zero: those are put back.
vec4 bounded(vec4 x, vec4 low, vec4 high) {
    vec4 result = mix(x, low, lessThan(x, low));
    result = mix(result, high, lessThan(high, result));
    return mix(or_nan(result, x), x, both(is_zero(x), is_zero(result)));
}

// Zero for what is negative, by its bits: between -0.0 and -infinity.
vec4 rectified(vec4 x) {
    ivec4 bits = floatBitsToInt(x);
    bvec4 negative = both(greaterThan(bits, ivec4(0x80000000)), lessThanEqual(bits, ivec4(0xff800000)));
    return intBitsToFloat(mix(bits, ivec4(0), negative));
}

// Zero of the sign of x, and NaN where x is.
vec4 signed_zero(vec4 x) { return or_nan(intBitsToFloat(floatBitsToInt(x) & ~MAGNITUDE), x); }

vec4 piecewise(int opcode, vec4 a, vec4 b, vec4 c) {
    switch (opcode) {
    case RELU: return rectified(a);
    case CLAMP: return or_nan(or_nan(bounded(a, b, c), c), b);
    case PRELU: return mix(a * b, a, greaterThan(a, vec4(0.0)));
    case HARDSWISH: return a * (bounded(a + 3.0, vec4(0.0), vec4(6.0)) * (1.0 / 6.0));
    case HARDSIGMOID: return bounded(a + 3.0, vec4(0.0), vec4(6.0)) * (1.0 / 6.0);
    case HARDSHRINK: return mix(a, vec4(0.0), lessThanEqual(abs(a), b));
    case SOFTSHRINK: return mix(mix(signed_zero(a), a + b, lessThan(a, -b)), a - b, greaterThan(a, b));
    case THRESHOLD: return mix(a, c, lessThanEqual(a, b));
    }
    return a;
}
#endif
