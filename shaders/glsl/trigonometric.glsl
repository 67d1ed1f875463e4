// Trigonometric functions and their inverses.
#ifndef TRIGONOMETRIC_GLSL
#define TRIGONOMETRIC_GLSL
#include "float_bits.glsl"

const float HALF_PI_HIGH = 1.57079637, HALF_PI_LOW = -4.37113900e-8;

// Beyond this the four parts of pi / 2 below have too few bits.
const float FEW_TURNS = 6400.0;

// 2 / pi in words of 32 bits, the point before the second.
const uint INVERSE_0 = 0u, INVERSE_1 = 0xa2f9836eu, INVERSE_2 = 0x4e441529u, INVERSE_3 = 0xfc2757d1u, INVERSE_4 = 0xf534ddc0u,
           INVERSE_5 = 0xdb629599u, INVERSE_6 = 0x3c439041u, INVERSE_7 = 0xfe5163abu;

uvec4 shifted_word(uvec4 word, uvec4 next, uvec4 bits) { return (word << bits) | ((next >> 1) >> (31u - bits)); }

// x = quadrant pi / 2 + rest for |x| >= FEW_TURNS: the product of its 24 bits with the 96 bits of 2 / pi that matter (M. H. Payne and
// R. N. Hanek, Radian reduction for trigonometric functions, 1983).
vec4 reduced_large(vec4 x, out ivec4 quadrant) {
    uvec4 bits = floatBitsToUint(abs(x));
    uvec4 mantissa = (bits & 0x007fffffu) | 0x00800000u;
    uvec4 start = (bits >> 23) - 120u; // of the bit of weight 2 in the product, counted from the first word's first
    bvec4 by_one = notEqual(start & 32u, uvec4(0)), by_two = notEqual(start & 64u, uvec4(0)), by_four = notEqual(start & 128u, uvec4(0));
    uvec4 a = mix(uvec4(INVERSE_0), uvec4(INVERSE_2), by_two), b = mix(uvec4(INVERSE_1), uvec4(INVERSE_3), by_two);
    uvec4 c = mix(uvec4(INVERSE_2), uvec4(INVERSE_4), by_two), d = mix(uvec4(INVERSE_3), uvec4(INVERSE_5), by_two);
    uvec4 e = mix(uvec4(INVERSE_4), uvec4(INVERSE_6), by_two);
    uvec4 w0 = mix(mix(a, b, by_one), uvec4(INVERSE_4), by_four), w1 = mix(mix(b, c, by_one), uvec4(INVERSE_5), by_four);
    uvec4 w2 = mix(mix(c, d, by_one), uvec4(INVERSE_6), by_four), w3 = mix(mix(d, e, by_one), uvec4(INVERSE_7), by_four);
    uvec4 inside = start & 31u;
    uvec4 high, low, low_of_middle, carry;
    umulExtended(mantissa, shifted_word(w1, w2, inside), high, low_of_middle);
    uvec4 top = mantissa * shifted_word(w0, w1, inside) + high;
    umulExtended(mantissa, shifted_word(w2, w3, inside), high, low);
    uvec4 next = uaddCarry(low_of_middle, high, carry);
    top += carry;

    ivec4 turns = ivec4((top + 0x20000000u) >> 30);
    ivec4 part = ivec4((top << 2) | (next >> 30));
    precise vec4 fraction = vec4(part) * 2.32830644e-10 + vec4(next << 2) * 5.42101086e-20;
    precise vec4 rest = fraction * HALF_PI_HIGH + fraction * HALF_PI_LOW;
    bvec4 negative = is_negative(x);
    quadrant = mix(turns, -turns, negative);
    return mix(rest, -rest, negative);
}

// x = quadrant pi / 2 + rest, |rest| <= pi / 4; pi / 2 in three parts of 12 bits, whose products with the quadrant are exact, and a
// fourth (W. J. Cody and W. Waite).
vec4 reduced_by_half_pi(vec4 x, out ivec4 quadrant) {
    vec4 count = roundEven(clamp(x, vec4(-FEW_TURNS), vec4(FEW_TURNS)) * 0.636619772);
    precise vec4 rest = (((x - count * 1.5703125) - count * 4.837512969970703125e-4) - count * 7.549533620476723e-8) - count * 2.56334415e-12;
    quadrant = ivec4(count);
    bvec4 many = greaterThan(abs(x), vec4(FEW_TURNS));
    if (any(many)) {
        ivec4 large_quadrant;
        vec4 large_rest = reduced_large(x, large_quadrant);
        rest = mix(rest, large_rest, many);
        quadrant = mix(quadrant, large_quadrant, many);
    }
    return rest;
}

vec4 reduced_sine(vec4 r) {
    vec4 s = r * r;
    precise vec4 result = r + r * (s * polynomial(s, -0.166666552, 0.00833218917, -0.00019518286));
    return result;
}

vec4 reduced_cosine(vec4 r) {
    vec4 s = r * r;
    precise vec4 result = (1.0 - 0.5 * s) + s * s * polynomial(s, 0.0416666456, -0.00138873095, 2.44323273e-05);
    return result;
}

// sin(x + turn pi / 2).
vec4 sine_of_turned(vec4 x, int turn) {
    ivec4 quadrant;
    vec4 r = reduced_by_half_pi(x, quadrant);
    quadrant += turn;
    vec4 result = mix(reduced_sine(r), reduced_cosine(r), notEqual(quadrant & 1, ivec4(0)));
    result = mix(result, -result, notEqual(quadrant & 2, ivec4(0)));
    return only_where(lessThan(floatBitsToInt(x) & MAGNITUDE, ivec4(INFINITY)), result);
}

vec4 sine(vec4 x) { return keep_tiny(sine_of_turned(x, 0), x); }
vec4 cosine(vec4 x) { return sine_of_turned(x, 1); }

vec4 tangent(vec4 x) {
    ivec4 quadrant;
    vec4 r = reduced_by_half_pi(x, quadrant);
    vec4 s = r * r;
    precise vec4 t = r + r * (s * polynomial(s, 0.333331555, 0.13338834, 0.0534084402, 0.024440147, 0.00310408697, 0.00939463824));
    vec4 lost;
    precise vec4 inverse = -1.0 / t;
    precise vec4 product = two_product(inverse, t, lost);
    precise vec4 corrected = inverse + inverse * ((1.0 + product) + lost); // a step of Newton's method, as drivers may divide to 2.5 ulp
    vec4 result = mix(t, corrected, notEqual(quadrant & 1, ivec4(0)));
    return keep_tiny(only_where(lessThan(floatBitsToInt(x) & MAGNITUDE, ivec4(INFINITY)), result), x);
}

// asin(a) for 0 <= a <= 1/2; above that its half complement asin(sqrt((1 - a) / 2)).
vec4 half_arcsine(vec4 a, bvec4 above) {
    precise vec4 s = mix(a * a, 0.5 - 0.5 * a, above);
    precise vec4 root = mix(a, sqrt(s), above);
    precise vec4 result = root + root * (s * polynomial(s, 0.166667521, 0.0749530941, 0.0454691499, 0.0241847783, 0.0421583056));
    return result;
}

vec4 arcsine(vec4 x) {
    vec4 a = abs(x);
    bvec4 above = greaterThan(a, vec4(0.5));
    precise vec4 part = half_arcsine(a, above);
    precise vec4 complement = HALF_PI_HIGH - (part + part - HALF_PI_LOW);
    vec4 result = with_sign(mix(part, complement, above), x);
    return keep_tiny(only_where(lessThanEqual(a, vec4(1.0)), result), x);
}

vec4 arccosine(vec4 x) {
    vec4 a = abs(x);
    bvec4 above = greaterThan(a, vec4(0.5));
    precise vec4 part = half_arcsine(a, above);
    precise vec4 inner = HALF_PI_HIGH - (with_sign(part, x) - HALF_PI_LOW);
    precise vec4 twice = part + part;
    precise vec4 outer = mix(twice, 2.0 * HALF_PI_HIGH - (twice - 2.0 * HALF_PI_LOW), is_negative(x));
    return only_where(lessThanEqual(a, vec4(1.0)), mix(inner, outer, above));
}

// The angle of (x, y). The ratio of the smaller to the larger is brought below tan(pi / 8) by atan(t) = pi / 4 + atan((t - 1) / (t + 1)).
vec4 angle(vec4 y, vec4 x) {
    precise vec4 a = abs(x), b = abs(y);
    bvec4 steep = greaterThan(b, a);
    precise vec4 smaller = mix(b, a, steep), larger = mix(a, b, steep);
    bvec4 both_infinite = is_inf(smaller);
    smaller = mix(smaller, vec4(1.0), both_infinite);
    larger = mix(larger, vec4(1.0), both_infinite);
    larger = mix(larger, vec4(1.0), equal(larger, vec4(0.0)));
    vec4 scale = mix(mix(vec4(1.0), vec4(1.15292150e18), lessThan(larger, vec4(8.67361738e-19))), vec4(8.67361738e-19), greaterThan(larger, vec4(1.15292150e18)));
    smaller *= scale;
    larger *= scale;
    bvec4 upper = greaterThan(smaller, larger * 0.414213562);
    precise vec4 t = mix(smaller, smaller - larger, upper) / mix(larger, smaller + larger, upper);
    vec4 s = t * t;
    precise vec4 inner = t + t * (s * polynomial(s, -0.333333164, 0.199985266, -0.142443448, 0.105987281, -0.0608873554));
    precise vec4 result = mix(inner, 0.5 * HALF_PI_HIGH + (inner + 0.5 * HALF_PI_LOW), upper);
    result = mix(result, HALF_PI_HIGH - (result - HALF_PI_LOW), steep);
    result = mix(result, 2.0 * HALF_PI_HIGH - (result - 2.0 * HALF_PI_LOW), is_negative(x));
    return or_nan(or_nan(with_sign(result, y), x), y);
}

vec4 arctangent(vec4 x) { return keep_tiny(angle(x, vec4(1.0)), x); }
#endif
