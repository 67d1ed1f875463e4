// Remainders of floats, and quotients rounded to whole numbers by them.
#ifndef REMAINDER_GLSL
#define REMAINDER_GLSL
#include "quotient.glsl"

// |x| = mantissa 2^exponent with 24 bits in the mantissa; subnormals are read as integers, which no device flushes.
ivec4 mantissa_of(vec4 x, out ivec4 exponent) {
    ivec4 bits = floatBitsToInt(x) & MAGNITUDE;
    bvec4 subnormal = lessThan(bits, ivec4(0x00800000));
    bits = mix(bits, floatBitsToInt(vec4(bits)), subnormal);
    exponent = (bits >> 23) - mix(ivec4(150), ivec4(150 + 149), subnormal);
    return (bits & 0x007fffff) | 0x00800000;
}

// mantissa 2^exponent for a mantissa of at most 24 bits, exactly, where it is a float.
vec4 composed(ivec4 mantissa, ivec4 exponent) {
    ivec4 bits = floatBitsToInt(vec4(mantissa)) + (exponent << 23);
    ivec4 places = exponent + 149;
    ivec4 subnormal = mix(mantissa << places, mantissa >> -places, lessThan(places, ivec4(0)));
    bvec4 is_subnormal = lessThan((floatBitsToInt(vec4(mantissa)) >> 23) + exponent, ivec4(1));
    return intBitsToFloat(mix(mix(bits, subnormal, is_subnormal), ivec4(0), equal(mantissa, ivec4(0))));
}

// The exact remainder of |a| / |b|, by long division with at most 20 bits of the quotient in each step: 14 steps at most.
vec4 magnitude_modulo(vec4 a, vec4 b) {
    ivec4 exponent, start;
    ivec4 divisor = mantissa_of(b, exponent), rest = mantissa_of(a, start);
    ivec4 places = mix(start - exponent, ivec4(0), is_zero(a));
    bvec4 smaller = lessThan(places, ivec4(0));
    precise vec4 reciprocal = 1.0 / vec4(divisor);
    rest -= mix(ivec4(0), divisor, greaterThanEqual(rest, divisor));
    while (any(greaterThan(places, ivec4(0)))) {
        ivec4 step = clamp(places, ivec4(0), ivec4(20));
        ivec4 digits = ivec4(vec4(rest) * reciprocal * power_of_two(step)); // off by one at most
        rest = (rest << step) - digits * divisor;
        rest += mix(ivec4(0), divisor, lessThan(rest, ivec4(0)));
        rest -= mix(ivec4(0), divisor, greaterThanEqual(rest, divisor));
        places -= step;
    }
    return mix(composed(rest, exponent), abs(a), smaller);
}

// The sign of the result is the dividend's (fmod, as in C) or the divisor's (remainder, as in Python).
vec4 modulo_truncated(vec4 a, vec4 b) {
    bvec4 finite = lessThan(floatBitsToInt(a) & MAGNITUDE, ivec4(INFINITY));
    vec4 result = mix(magnitude_modulo(a, b), a, both(finite, is_inf(b)));
    result = mix(result, a, is_zero(a));
    return or_nan(only_where(both(finite, not(is_zero(b))), with_sign(result, a)), b);
}

vec4 modulo(vec4 a, vec4 b) {
    vec4 result = modulo_truncated(a, b);
    bvec4 adjusted = both(not(is_zero(result)), notEqual(is_negative(result), is_negative(b)));
    return mix(result, result + b, adjusted);
}

// The largest whole number not above the quotient, by torch's way (c10/util/generic_math.h): from an exact remainder.
vec4 floor_divide(vec4 a, vec4 b) {
    vec4 remainder = modulo_truncated(a, b);
    precise vec4 ratio = quotient(a - remainder, b);
    bvec4 adjusted = both(not(is_zero(remainder)), notEqual(is_negative(remainder), is_negative(b)));
    ratio -= vec4(adjusted);
    precise vec4 whole = floor(ratio);
    whole += vec4(greaterThan(ratio - whole, vec4(0.5)));
    vec4 zero = intBitsToFloat((floatBitsToInt(a) ^ floatBitsToInt(b)) & ~MAGNITUDE);
    return mix(mix(whole, zero, equal(ratio, vec4(0.0))), a / b, is_zero(b));
}
#endif
