// Bessel functions of orders 0 and 1. Of the first and second kind beyond 2: modulus and phase (NIST Digital Library of Mathematical
// Functions, 10.18), which have no zeros; below that by power series, with a logarithm for the second kind, as modified ones are below 1.
#ifndef BESSEL_GLSL
#define BESSEL_GLSL
#include "exponential.glsl"
#include "logarithm.glsl"
#include "trigonometric.glsl"

// Of the first kind, modified; `scaled` by exp(-|x|).
vec4 modified_bessel_i(vec4 x, int order, bool scaled) {
    vec4 a = abs(x), s = a * a;
    precise vec4 large = max(a, vec4(7.75)), u = 1.0 / large;
    vec4 inside = min(s, vec4(60.0625));
    precise vec4 near, far;
    if (order == 0) {
        near = polynomial(inside, 1.00000012, 0.24999918, 0.0156256501, 0.000433851616, 6.80351332e-06, 6.64049793e-08,
                          5.21329202e-10, 1.41813677e-12, 1.8902577e-14);
        far = polynomial(u, 0.398942262, 0.0498700105, 0.027868636, 0.0345293991, -0.0212687571, 0.413619608);
    } else {
        near = a * polynomial(inside, 0.5, 0.062499918, 0.00260422053, 5.4240747e-05, 6.79587004e-07, 5.56702462e-09,
                              3.64552763e-11, 9.80003296e-14, 1.00547935e-15);
        far = polynomial(u, 0.398942292, -0.149605945, -0.0465405881, -0.0470190309, 0.0182559527, -0.481853843);
    }
    far /= sqrt(large);  // devices may take u for zero, where it is subnormal
    if (scaled) {
        near *= scaled_exponential(-a, vec4(0.0), 0);
    } else {
        precise vec4 root = scaled_exponential(0.5 * min(a, vec4(100.0)), vec4(0.0), 0);
        far = (far * root) * root;
    }
    vec4 result = mix(near, far, greaterThan(a, vec4(7.75)));
    if (!scaled) result = only_where(not(is_inf(x)), mix(result, vec4(intBitsToFloat(INFINITY)), greaterThan(a, vec4(100.0))));
    return or_nan(order == 1 ? mix(result, -result, lessThan(x, vec4(0.0))) : result, x);
}

// Of the second kind, modified; `scaled` by exp(x).
vec4 modified_bessel_k(vec4 x, int order, bool scaled) {
    vec4 b = min(x, vec4(1.0)), s = b * b;
    precise vec4 t = 1.0 / (x + 0.5);
    precise vec4 near, far;
    if (order == 0) {
        near = polynomial(s, 0.115931518, 0.278982878, 0.0252490286, 0.000845724251, 1.53004621e-05)
             - logarithm(b) * polynomial(s, 0.99999994, 0.250001609, 0.0156166665, 0.000447579951);
        far = polynomial(t, 1.25331414, -0.156661183, 0.00967785716, -0.0411763601, 0.0364497453, -0.0430619717, 0.0289022345,
                         -0.00987124443);
    } else {
        near = 1.0 / b
             + b * (polynomial(s, -0.307965755, -0.0853707194, -0.00464219321, -0.000112505862, -1.59427475e-06)
                    + logarithm(b) * polynomial(s, 0.5, 0.0625001639, 0.00260332134, 5.56152809e-05));
        far = polynomial(t, 1.25331414, 0.469990402, 0.0882194489, 0.0976226851, -0.026644472, 0.0680732131, -0.0404430218,
                         0.0209782813);
    }
    far /= sqrt(x);
    precise vec4 factor = scaled_exponential(scaled ? b : -x, vec4(0.0), 0);
    if (scaled) near *= factor;
    else far *= factor;
    vec4 result = mix(near, far, greaterThan(x, vec4(1.0)));
    result = mix(result, vec4(0.0), is_inf(x));
    result = mix(result, vec4(intBitsToFloat(INFINITY)), is_zero(x));
    return or_nan(only_where(greaterThanEqual(x, vec4(0.0)), result), x);
}

// The first kind, or the second one, at a >= 2.
vec4 oscillating_bessel(vec4 a, int order, bool second) {
    precise vec4 u = 1.0 / a;
    precise vec4 modulus, phase;
    if (order == 0) {
        modulus = polynomial(u, 0.797884583, -2.61312425e-06, -0.0497206524, -0.00320835062, 0.117604271, -0.207854986, 0.176418364,
                             -0.0624329783);
        phase = u * polynomial(u, -0.124999978, -2.63361216e-07, 0.06494461, 0.0060678483, -0.299429029, 0.663862467, -0.683909476,
                               0.288127482);
    } else {
        modulus = polynomial(u, 0.797884524, 4.93068273e-06, 0.149340913, 0.00540850777, -0.210062593, 0.313299179, -0.227677301,
                             0.0686612353);
        phase = u * polynomial(u, 0.37500003, -9.60634679e-06, -0.163491845, -0.0134608354, 0.53119421, -1.04235697, 0.982759178,
                               -0.387865633);
    }
    // The wave turned by a quarter of pi, or by three, which sums of sine and cosine are.
    precise vec4 x_sine = sine(a), x_cosine = cosine(a);
    precise vec4 turned_cosine = order == 0 ? x_cosine + x_sine : x_sine - x_cosine;
    precise vec4 turned_sine = order == 0 ? x_sine - x_cosine : -(x_sine + x_cosine);
    precise vec4 phase_sine = sine(phase), phase_cosine = cosine(phase);
    precise vec4 wave = second ? turned_sine * phase_cosine + turned_cosine * phase_sine
                               : turned_cosine * phase_cosine - turned_sine * phase_sine;
    wave *= 0.707106781;
    return modulus * wave / sqrt(a);
}

vec4 near_bessel_j(vec4 a, int order) {
    vec4 s = a * a;
    if (order == 0) return polynomial(s, 1.0, -0.249999985, 0.0156249534, -0.000433978101, 6.75755837e-06, -6.23817087e-08);
    return a * polynomial(s, 0.5, -0.0625, 0.00260416279, -5.42495873e-05, 6.76346076e-07, -5.2526139e-09);
}

vec4 bessel_j(vec4 x, int order) {
    vec4 a = abs(x);
    vec4 result = mix(near_bessel_j(min(a, vec4(2.0)), order), oscillating_bessel(max(a, vec4(2.0)), order, false),
                      greaterThan(a, vec4(2.0)));
    result = only_where(not(is_inf(x)), result);
    return or_nan(order == 1 ? mix(result, -result, is_negative(x)) : result, x);
}

vec4 bessel_y(vec4 x, int order) {
    const float TWO_OVER_PI = 0.636619772;
    vec4 b = clamp(x, vec4(0.0), vec4(2.0)), s = b * b;
    precise vec4 near = logarithm(b) * near_bessel_j(b, order);
    if (order == 0) {
        near = TWO_OVER_PI * near
             + polynomial(s, -0.0738042966, 0.177605987, -0.0160738919, 0.000538521796, -9.45571082e-06, 9.47255501e-08);
    } else {
        near = TWO_OVER_PI * (near - 1.0 / b)
             + b * polynomial(s, -0.196057096, 0.0543486848, -0.0029552998, 7.16366994e-05, -9.89768409e-07, 8.27801028e-09);
    }
    vec4 result = mix(near, oscillating_bessel(max(x, vec4(2.0)), order, true), greaterThan(x, vec4(2.0)));
    result = only_where(not(is_inf(x)), mix(result, vec4(intBitsToFloat(0xff800000)), is_zero(x)));
    return or_nan(only_where(greaterThanEqual(x, vec4(0.0)), result), x);
}
#endif
