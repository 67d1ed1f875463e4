#ifndef FAKE_QUANTIZE_GLSL
#define FAKE_QUANTIZE_GLSL
#include "piecewise.glsl"

// The nearest multiple of a scale, half to even, between bounds, which are the upper bits of a code: 12 each, with signs. A negative
// inverse stands for a division by the scale: a product with the inverse, and a step of Newton's method.
vec4 fake_quantized(int code, vec4 value, float scale, float inverse) {
    precise vec4 steps = value * abs(inverse);
    if (inverse < 0.0) {
        vec4 lost;
        precise vec4 product = two_product(steps, vec4(scale), lost);
        precise vec4 corrected = steps - ((value - product) - lost) * inverse;
        steps = mix(steps, corrected, lessThan(abs(steps), vec4(1e6)));
    }
    precise vec4 result = bounded(roundEven(steps), vec4(code << 12 >> 20), vec4(code >> 20)) * scale;
    return result;
}
#endif
