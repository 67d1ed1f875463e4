// Floats as bits. A driver may assume that no float is NaN or infinite, may flush subnormals, and may drop the sign of zero, so
// what depends on those is asked of the bits. In all files of functions, what must be rounded as written is `precise`; polynomials
// are not, so that drivers may use fused operations there.
#ifndef FLOAT_BITS_GLSL
#define FLOAT_BITS_GLSL
const int MAGNITUDE = 0x7fffffff;
const int INFINITY = 0x7f800000;

bvec4 is_nan(vec4 x) { return greaterThan(floatBitsToInt(x) & MAGNITUDE, ivec4(INFINITY)); }
bvec4 is_inf(vec4 x) { return equal(floatBitsToInt(x) & MAGNITUDE, ivec4(INFINITY)); }
bvec4 is_negative(vec4 x) { return lessThan(floatBitsToInt(x), ivec4(0)); }
bvec4 is_zero(vec4 x) { return equal(floatBitsToInt(x) & MAGNITUDE, ivec4(0)); }

bvec4 both(bvec4 a, bvec4 b) { return mix(bvec4(false), b, a); }

vec4 or_nan(vec4 result, vec4 x) { return mix(result, x, is_nan(x)); }
vec4 only_where(bvec4 defined, vec4 x) { return mix(vec4(intBitsToFloat(0x7fc00000)), x, defined); }

// For x that is not negative, and a least that is no NaN: the larger, and NaN for NaN.
vec4 at_least(vec4 x, float least) {
    return mix(x, vec4(least), lessThan(floatBitsToInt(x) & MAGNITUDE, ivec4(floatBitsToInt(least))));
}

vec4 with_sign(vec4 magnitude, vec4 signed_value) {
    return intBitsToFloat((floatBitsToInt(magnitude) & MAGNITUDE) | (floatBitsToInt(signed_value) & ~MAGNITUDE));
}

// For functions with f(x) = x near zero: there x itself, with zeros' signs and subnormals.
vec4 keep_tiny(vec4 result, vec4 x) { return mix(result, x, lessThan(abs(x), vec4(1e-10))); }

// For -126 <= n <= 127; zero for n = -127.
vec4 power_of_two(ivec4 n) { return intBitsToFloat((n + 127) << 23); }

// The first 12 significant bits: products of two such numbers are exact.
vec4 leading(vec4 x) { return intBitsToFloat(floatBitsToInt(x) & ~0xfff); }

// a * b, and what its rounding lost (T. J. Dekker, A floating-point technique for extending the available precision, 1971).
vec4 two_product(vec4 a, vec4 b, out vec4 lost) {
    precise vec4 product = a * b;
    precise vec4 a_high = leading(a), b_high = leading(b);
    precise vec4 a_low = a - a_high, b_low = b - b_high;
    precise vec4 rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    lost = rest;
    return product;
}

// Polynomials by Horner's rule, the constant term first.
vec4 polynomial(vec4 x, float a, float b, float c) { return a + x * (b + x * c); }
vec4 polynomial(vec4 x, float a, float b, float c, float d) { return a + x * polynomial(x, b, c, d); }
vec4 polynomial(vec4 x, float a, float b, float c, float d, float e) { return a + x * polynomial(x, b, c, d, e); }
vec4 polynomial(vec4 x, float a, float b, float c, float d, float e, float f) { return a + x * polynomial(x, b, c, d, e, f); }
vec4 polynomial(vec4 x, float a, float b, float c, float d, float e, float f, float g, float h) {
    return a + x * (b + x * polynomial(x, c, d, e, f, g, h));
}
vec4 polynomial(vec4 x, float a, float b, float c, float d, float e, float f, float g, float h, float i) {
    return a + x * polynomial(x, b, c, d, e, f, g, h, i);
}
#endif
