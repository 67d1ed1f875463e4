// Functions of the normal distribution beside erf. Where exp(-x^2) is a factor, x^2 is in two parts.
#ifndef ERROR_FUNCTIONS_GLSL
#define ERROR_FUNCTIONS_GLSL
#include "activations.glsl"

// exp(a^2) erfc(a) for a >= 0: by its asymptotic series where it is close to 1 / (a sqrt(pi)).
vec4 scaled_complement_of_any(vec4 a) {
    precise vec4 u = 1.0 / a;
    precise vec4 far = u * polynomial(u * u, 0.564189584, -0.282094792, 0.423142188, -1.05785547);
    return mix(scaled_complement(a), far, greaterThan(a, vec4(10.0)));
}

vec4 complementary_error_function(vec4 x) {
    vec4 a = min(abs(x), 11.0), low;
    precise vec4 square = two_product(a, a, low);
    precise vec4 above = scaled_complement(a) * scaled_exponential(-square, -low, 0);
    return or_nan(mix(above, 2.0 - above, is_negative(x)), x);
}

vec4 scaled_complementary_error_function(vec4 x) {
    vec4 a = abs(x), b = min(a, 9.48), low;
    precise vec4 square = two_product(b, b, low);
    precise vec4 above = scaled_complement_of_any(a);
    precise vec4 below = scaled_exponential(square, low, 1) - above;
    return or_nan(mix(above, below, is_negative(x)), x);
}

// The logarithm of the normal distribution's mass below x.
vec4 log_normal_mass(vec4 x) {
    vec4 a = abs(x), b = min(a, 15.0), low;
    precise vec4 square = two_product(b, b, low);
    precise vec4 tail = 0.5 * scaled_complement_of_any(a * 0.707106781);
    precise vec4 below = logarithm(tail) - 0.5 * a * a;
    precise vec4 above = log1p(-tail * scaled_exponential(-0.5 * square, -0.5 * low, 0));
    return or_nan(mix(above, mix(below, -a, is_inf(a)), is_negative(x)), x);
}

// erfinv(x) / x, given w = -log(1 - x^2) (after M. Giles, Approximating the erfinv function, 2010).
vec4 inverse_error_ratio(vec4 w) {
    vec4 root = sqrt(w);
    vec4 near = polynomial(w - 2.5, 1.50140941, 0.246640727, -0.00417770771, -0.00125370757, 0.000218602174, -4.3967766e-06,
                           -3.52885513e-06, 3.4372664e-07, 2.85344122e-08);
    vec4 middle = polynomial(root - 3.0, 2.83297706, 1.00167418, 0.00943562202, -0.00762530556, 0.00576180173, -0.00366013357,
                             0.0013002198, 8.61046428e-05, -0.000165424644);
    vec4 far = polynomial(root - 7.0, 6.86901903, 1.00859702, -0.000509867619, 4.99244607e-06, 4.61511445e-06, -1.25226006e-06,
                          5.38344466e-07, -9.48021608e-08);
    return mix(mix(near, middle, greaterThan(w, vec4(5.0))), far, greaterThan(w, vec4(16.5)));
}

vec4 inverse_error_function(vec4 x) {
    vec4 a = abs(x);
    vec4 w = -mix(logarithm((1.0 - a) * (1.0 + a)), log1p(-a * a), lessThan(a, vec4(0.5)));
    vec4 inside = x * inverse_error_ratio(w);
    vec4 result = mix(inside, with_sign(vec4(intBitsToFloat(INFINITY)), x), equal(a, vec4(1.0)));
    return only_where(lessThanEqual(a, vec4(1.0)), result);
}

// Below which number the normal distribution has the mass p.
vec4 normal_quantile(vec4 p) {
    bvec4 above = greaterThan(p, vec4(0.5));
    precise vec4 q = mix(p, 1.0 - p, above);
    precise vec4 x = 1.0 - 2.0 * q;
    vec4 w = -mix(log1p(-x * x), logarithm(4.0 * q * (1.0 - q)), lessThan(q, vec4(0.25)));
    precise vec4 magnitude = 1.41421356 * (x * inverse_error_ratio(w));
    magnitude = mix(magnitude, vec4(intBitsToFloat(INFINITY)), is_zero(q));
    vec4 result = mix(-magnitude, magnitude, above);
    return only_where(both(greaterThanEqual(p, vec4(0.0)), lessThanEqual(p, vec4(1.0))), mix(result, vec4(0.0), is_zero(x)));
}
#endif
