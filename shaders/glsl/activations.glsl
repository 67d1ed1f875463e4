// Activation functions of neural networks: those that a convolution or matrix product may apply to its sums.
#ifndef ACTIVATIONS_GLSL
#define ACTIVATIONS_GLSL
#include "exponential.glsl"
#include "logarithm.glsl"
#include "piecewise.glsl"

// x / (1 + exp(-z)), given the sign of z and the square root of exp(-|z|), which doesn't vanish where the result doesn't.
vec4 gated_by(vec4 x, bvec4 negative, vec4 root) {
    precise vec4 numerator = mix(x, (x * root) * root, negative);
    precise vec4 result = numerator / (1.0 + root * root);
    return result;
}

// NaN in z gives anything, but x may be NaN.
vec4 gated(vec4 x, vec4 z) { return gated_by(x, is_negative(z), decay(-0.5 * abs(z))); }

vec4 log_sigmoid(vec4 x) {
    vec4 e = exponential(-abs(x));
    precise vec4 result = min(x, 0.0) - log_of_sum(e, e, bvec4(false));
    return or_nan(result, x);
}

// x tanh(log(1 + exp(x))), as a ratio of polynomials in q = exp(-|x|).
vec4 mish(vec4 x) {
    bvec4 negative = is_negative(x);
    precise vec4 root = decay(-0.5 * abs(x));
    precise vec4 q = root * root;
    precise vec4 square = q * q, twice = q + q;
    precise vec4 numerator = mix(x * (1.0 + twice), ((x * root) * root) * (2.0 + q), negative);
    precise vec4 result = numerator / mix(1.0 + (twice + square + square), 2.0 + (twice + square), negative);
    return result;
}

// exp(a^2) erfc(a) for a >= 0.
vec4 scaled_complement(vec4 a) {
    precise vec4 t = 1.0 / (1.0 + 0.3 * a);
    return t * polynomial(t, 0.169187412, 0.170723855, 0.148285881, 0.215108916, -0.0950325727, 0.548217654, -0.512673914,
                          0.485739172, -0.129556417);
}

vec4 error_function(vec4 x) {
    vec4 a = abs(x), s = x * x;
    precise vec4 outer = 1.0 - scaled_complement(a) * decay(-s);
    precise vec4 inner = x * polynomial(s, 1.12837911, -0.376122475, 0.112795763, -0.0266950838, 0.00489964383, -0.000556185259);
    return or_nan(mix(with_sign(outer, x), inner, lessThan(a, vec4(1.0))), x);
}

// x times the normal distribution's mass below x. Its tail by the square root of exp(-x^2 / 2), of which x^2 needs two parts.
vec4 gelu(vec4 x) {
    vec4 a = min(abs(x), 20.0);
    vec4 low;
    precise vec4 square = two_product(a, a, low);
    precise vec4 root = decay(-0.25 * square, -0.25 * low);
    precise vec4 half_complement = 0.5 * scaled_complement(a * 0.707106781);
    precise vec4 below = ((x * half_complement) * root) * root;
    precise vec4 above = x * (1.0 - (half_complement * root) * root);
    return mix(above, below, is_negative(x));
}

// 2 sqrt(2 / pi), and 0.044715 times that, each in two parts.
const float GELU_LINEAR = 1.59576917, GELU_LINEAR_LOW = -4.53406803e-08;
const float GELU_CUBIC = 0.0713548139, GELU_CUBIC_LOW = 2.3988324e-09;

// gated(x, 2 sqrt(2 / pi) (x + 0.044715 x^3)), whose second argument is in two parts, as its relative error counts up to ninety times.
vec4 gelu_tanh(vec4 x) {
    vec4 a = clamp(x, vec4(-20.0), vec4(20.0));
    vec4 square_low, cubic_low, low;
    precise vec4 square = two_product(a, a, square_low);
    precise vec4 cubic = two_product(square, vec4(GELU_CUBIC), cubic_low);
    precise vec4 factor = GELU_LINEAR + cubic;
    precise vec4 part = factor - GELU_LINEAR;
    precise vec4 factor_low = ((GELU_LINEAR - (factor - part)) + (cubic - part)) + (cubic_low + square_low * GELU_CUBIC);
    factor_low += GELU_LINEAR_LOW + square * GELU_CUBIC_LOW;
    precise vec4 high = two_product(a, factor, low);
    low += a * factor_low;
    bvec4 negative = is_negative(x);
    return gated_by(x, negative, decay(-0.5 * abs(high), 0.5 * mix(-low, low, negative)));
}

// The same by the device's own exponential and fewer terms, to 2^-16 of the result: for who rounds it to halves next, to 2^-12.
vec4 roughly_gated(vec4 x, vec4 z) { return x / (1.0 + exp2(-1.44269504 * z)); }

// The normal distribution's mass beyond |x| as exp(-x^2 / 2) times a polynomial, fitted for |x| <= 7 to 1.2e-5 of itself.
vec4 rough_gelu(vec4 x) {
    vec4 a = abs(x), t = 1.0 / (1.0 + 0.36 * a);
    vec4 share = t * polynomial(t, 0.14191387, 0.162311373, 0.0460002699, 0.245486835, -0.095710996) * exp2(-0.72134752 * a * a);
    return x * mix(1.0 - share, share, is_negative(x));
}

vec4 rough_gelu_tanh(vec4 x) { return roughly_gated(x, x * (GELU_LINEAR + GELU_CUBIC * x * x)); }

vec4 softplus(vec4 x, vec4 beta, vec4 threshold) {
    vec4 low;
    precise vec4 z = two_product(x, beta, low);
    bvec4 negative = is_negative(z);
    low = mix(vec4(0.0), mix(-low, low, negative), lessThan(abs(z), vec4(128.0)));
    vec4 e = scaled_exponential(-abs(z), low, 0);
    precise vec4 result = (mix(z, vec4(0.0), negative) + log_of_sum(e, e, bvec4(false))) / beta;
    return mix(or_nan(result, x), x, greaterThan(z, threshold));
}

vec4 activated(int opcode, vec4 a, vec4 b, vec4 c) {
    switch (opcode) {
    case SIGMOID: return or_nan(gated(vec4(1.0), a), a);
    case SILU: return gated(a, a);
    case MISH: return mish(a);
    case TANH: return hyperbolic_tangent(a);
    case GELU: return gelu(a);
    case GELU_TANH: return gelu_tanh(a);
    case MUL: return a * b; // the alpha of addmm and its like
    }
    return piecewise(opcode, a, b, c);
}

bool has_rough_form(int opcode) { return opcode == SIGMOID || opcode == SILU || opcode == GELU || opcode == GELU_TANH; }

vec4 roughly_activated(int opcode, vec4 x) {
    switch (opcode) {
    case SIGMOID: return or_nan(roughly_gated(vec4(1.0), x), x);
    case SILU: return roughly_gated(x, x);
    case GELU: return rough_gelu(x);
    }
    return rough_gelu_tanh(x);
}
#endif
