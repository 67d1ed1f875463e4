// The logarithm of the gamma function, its derivative, and Hurwitz's zeta function, of which higher derivatives are made: near the
// zeros by polynomials, for large arguments by asymptotic series, between by recurrence, and for negative ones by reflection (NIST
// Digital Library of Mathematical Functions, 5.5, 5.11 and 25.11).
#ifndef GAMMA_GLSL
#define GAMMA_GLSL
#include "logarithm.glsl"
#include "power.glsl"
#include "trigonometric.glsl"

const float PI = 3.14159265;

// The distance to the nearest whole number, with a sign: sines of its multiple by pi are those of x, but for a sign.
vec4 beside_whole(vec4 x) {
    precise vec4 result = x - roundEven(x);
    return result;
}

vec4 log_gamma_of_positive(vec4 x) {
    precise vec4 large = max(x, vec4(8.0));
    precise vec4 u = 1.0 / large;
    precise vec4 series = 0.418938533 + u * polynomial(u * u, 0.0833333333, -0.00277777778, 0.000793650794);
    precise vec4 far = (large - 0.5) * (logarithm(large) - 1.0) + series;

    // By the polynomial between 1.5 and 2.5.
    bvec4 below_one = lessThan(x, vec4(0.5)), below_two = lessThan(x, vec4(1.5));
    precise vec4 steps = mix(clamp(roundEven(x - 2.0), vec4(0.0), vec4(6.0)), vec4(0.0), below_two);
    precise vec4 z = mix(mix((x - 2.0) - steps, x - 1.0, below_two), x, below_one);
    precise vec4 product = mix(mix(vec4(1.0), x, below_two), x * (x + 1.0), below_one);
    for (int k = 1; k <= 6; ++k) product *= mix(vec4(1.0), x - float(k), greaterThanEqual(steps, vec4(k)));
    vec4 logarithm_of_steps = logarithm(product);
    precise vec4 inside = z * polynomial(z, 0.422784328, 0.322466969, -0.0673532337, 0.0205835551, -0.0073667746, 0.00286344183,
                                         -0.00131162209, 0.000605507405);
    precise vec4 near = inside + mix(logarithm_of_steps, -logarithm_of_steps, below_two);
    return mix(near, far, greaterThanEqual(x, vec4(8.0)));
}

vec4 log_gamma(vec4 x) {
    vec4 a = abs(x);
    vec4 above = mix(log_gamma_of_positive(a), -logarithm(a), lessThan(a, vec4(1e-10)));
    precise vec4 sine_of_it = abs(sine(PI * beside_whole(a)));
    precise vec4 below = logarithm(PI / (a * sine_of_it)) - above;
    vec4 infinity = vec4(intBitsToFloat(INFINITY));
    below = mix(mix(below, above, lessThan(a, vec4(1e-10))), infinity, is_zero(beside_whole(a)));
    return or_nan(mix(mix(above, below, is_negative(x)), infinity, is_inf(x)), x);
}

vec4 digamma_of_positive(vec4 x) {
    precise vec4 large = max(x, vec4(6.0));
    precise vec4 u = 1.0 / large;
    precise vec4 s = u * u;
    precise vec4 far =
        logarithm(large) - (0.5 * u + s * polynomial(s, 0.0833333333, -0.00833333333, 0.00396825397, -0.00416666667));

    // By the polynomial between 1 and 2, where it has a zero, at 1.46163213 + 1.24381499e-8.
    bvec4 below_one = lessThan(x, vec4(1.0));
    vec4 steps = clamp(floor(x) - 1.0, vec4(0.0), vec4(4.0));
    precise vec4 z = mix(x - steps, x + 1.0, below_one);
    precise vec4 sum = mix(vec4(0.0), -1.0 / x, below_one);
    for (int k = 4; k >= 1; --k) sum += mix(vec4(0.0), 1.0 / (x - float(k)), greaterThanEqual(steps, vec4(k)));
    precise vec4 inside = ((z - 1.46163213) - 1.24381499e-8)
                        * polynomial(z - 1.5, 0.951055884, -0.423625261, 0.240539327, -0.148518354, 0.0950986445, -0.0603325218,
                                     0.0394822806, -0.0349891409, 0.0236827899);
    precise vec4 near = inside + sum;
    return mix(near, far, greaterThanEqual(x, vec4(6.0)));
}

vec4 digamma(vec4 x) {
    vec4 a = abs(x);
    vec4 above = digamma_of_positive(a);
    vec4 f = beside_whole(a);
    precise vec4 below = (above + 1.0 / a) + PI / tangent(PI * f);
    below = only_where(notEqual(f, vec4(0.0)), below);
    vec4 result = mix(mix(above, x, is_inf(x)), only_where(not(is_inf(x)), below), is_negative(x));
    return or_nan(mix(result, with_sign(vec4(intBitsToFloat(INFINITY)), -x), is_zero(x)), x);
}

// The sum of factor * (k + q)^-s for k from 0 on, by Euler and Maclaurin's formula. What is below zero is what a sum over all whole
// numbers has more, for whole s. Large numbers are shrunk before they are raised, with the factor in place of what that takes: the
// power alone may be subnormal, which devices take for zero.
vec4 hurwitz_zeta(vec4 s, vec4 q, vec4 factor) {
    bvec4 below = lessThan(q, vec4(0.0));
    precise vec4 f = beside_whole(q);
    vec4 distance = abs(f);
    precise vec4 half_s = 0.5 * s;
    bvec4 odd = notEqual(floor(half_s), half_s);
    vec4 turned = mix(vec4(1.0), vec4(-1.0), odd);
    precise vec4 shrunk_factor = factor * power(vec4(256.0), 1.0 - s);
    vec4 total = vec4(0.0);
    for (int part = 0; part < 3; ++part) {
        vec4 from = part == 0 ? mix(q, distance, below) : part == 1 ? 1.0 - distance : 1.0 - q;
        vec4 weight = part == 0 ? vec4(1.0) : part == 1 ? turned : -turned;
        if (part < 2) weight = mix(weight, -weight, both(odd, both(below, is_negative(f))));
        if (part > 0) weight = mix(vec4(0.0), weight, below);
        from = mix(vec4(1.0), from, notEqual(weight, vec4(0.0)));
        bvec4 moves = lessThan(from, vec4(4096.0)); // large numbers are where the formula is right, and would round steps
        precise vec4 sum = vec4(0.0), a = from, last;
        for (int k = 0; k < 10; ++k) {
            precise vec4 base = k < 9 ? a : a * mix(vec4(1.0 / 256.0), vec4(1.0), moves);
            last = (k < 9 ? factor : mix(shrunk_factor, factor, moves)) * power(base, (k < 9 ? 0.0 : 1.0) - s);
            if (k < 9) {
                sum += mix(vec4(0.0), last, moves);
                a += vec4(moves);
            }
        }
        precise vec4 u = 1.0 / a;
        precise vec4 t = u * u;
        precise vec4 third = s * (s + 1.0) * (s + 2.0) * u * t;
        precise vec4 terms = s * u * 0.0833333333 - third * 0.00138888889 + third * (s + 3.0) * (s + 4.0) * t * 3.30687831e-05;
        precise vec4 tail = mix(last * (1.0 / (s - 1.0) + (0.5 + terms) * u), vec4(0.0), is_zero(last));
        total += weight * mix(sum + tail, sum, is_inf(sum));
    }
    vec4 infinity = with_sign(vec4(intBitsToFloat(INFINITY)), factor);
    bvec4 whole = bvec4(ivec4(is_zero(f)) | ivec4(is_inf(q)));
    // In torch's order: what an infinite number or exponent gives has no value.
    vec4 result = only_where(not(both(is_inf(q), not(below))), or_nan(or_nan(total, q), s));
    result = only_where(not(both(is_inf(s), greaterThan(q, vec4(1.0)))), result);
    result = mix(result, only_where(equal(floor(s), s), result), both(below, not(whole)));
    result = mix(result, infinity, both(whole, lessThanEqual(q, vec4(0.0))));
    result = mix(result, only_where(bvec4(false), result), lessThan(s, vec4(1.0)));
    return mix(result, infinity, equal(s, vec4(1.0)));
}
#endif
