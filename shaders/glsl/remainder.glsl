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

// The exact remainder of |a| / |b|, times 2^shift, by long division with at most 20 bits of the quotient in each step: 14 steps at most.
vec4 magnitude_modulo(vec4 a, vec4 b, ivec4 shift) {
    ivec4 exponent, start;
    ivec4 divisor = mantissa_of(b, exponent), dividend = mantissa_of(a, start);
    ivec4 places = mix(start - exponent, ivec4(0), is_zero(a));
    bvec4 smaller = lessThan(places, ivec4(0));
    precise vec4 reciprocal = 1.0 / vec4(divisor);
    ivec4 rest = dividend - mix(ivec4(0), divisor, greaterThanEqual(dividend, divisor));
    while (any(greaterThan(places, ivec4(0)))) {
        ivec4 step = clamp(places, ivec4(0), ivec4(20));
        ivec4 digits = ivec4(vec4(rest) * reciprocal * power_of_two(step)); // off by one at most
        rest = (rest << step) - digits * divisor;
        rest += mix(ivec4(0), divisor, lessThan(rest, ivec4(0)));
        rest -= mix(ivec4(0), divisor, greaterThanEqual(rest, divisor));
        places -= step;
    }
    return composed(mix(rest, dividend, smaller), mix(exponent, start, smaller) + shift);
}

// fmod(a, b) 2^shift; the sign is the dividend's, as in C.
vec4 shifted_modulo(vec4 a, vec4 b, ivec4 shift) {
    bvec4 finite = lessThan(floatBitsToInt(a) & MAGNITUDE, ivec4(INFINITY));
    vec4 result = mix(magnitude_modulo(a, b, shift), a, both(finite, is_inf(b)));
    result = mix(result, a, is_zero(a));
    return or_nan(only_where(both(finite, not(is_zero(b))), with_sign(result, a)), b);
}

vec4 modulo_truncated(vec4 a, vec4 b) { return shifted_modulo(a, b, ivec4(0)); }

// Where the remainder is subnormal, a sum or difference with it might lose it: there the operands are larger by this power of two.
ivec4 lift(vec4 b) { return mix(ivec4(0), ivec4(24), lessThan(abs(b), vec4(1e-30))); }

// The sign is the divisor's, as in Python.
vec4 modulo(vec4 a, vec4 b) {
    ivec4 shift = lift(b);
    vec4 rest = shifted_modulo(a, b, shift);
    precise vec4 result = (rest + b * power_of_two(shift)) * power_of_two(-shift);
    precise vec4 unadjusted = rest * power_of_two(-shift);
    bvec4 adjusted = both(not(is_zero(rest)), notEqual(is_negative(rest), is_negative(b)));
    return mix(unadjusted, result, adjusted);
}

// The largest whole number not above the quotient, by torch's way (c10/util/generic_math.h): from an exact remainder.
vec4 floor_divide(vec4 a, vec4 b) {
    ivec4 shift = mix(ivec4(0), lift(b), lessThan(abs(a), vec4(1e-18)));
    vec4 rest = shifted_modulo(a, b, shift);
    precise vec4 ratio = quotient(a * power_of_two(shift) - rest, b * power_of_two(shift));
    bvec4 adjusted = both(not(is_zero(rest)), notEqual(is_negative(rest), is_negative(b)));
    ratio -= vec4(adjusted);
    precise vec4 whole = floor(ratio);
    whole += vec4(greaterThan(ratio - whole, vec4(0.5)));
    vec4 zero = intBitsToFloat((floatBitsToInt(a) ^ floatBitsToInt(b)) & ~MAGNITUDE);
    return mix(mix(whole, zero, equal(ratio, vec4(0.0))), a / b, is_zero(b));
}
#endif
