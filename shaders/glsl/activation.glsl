// What an activation does to what a kernel has computed; see Activation in runtimes/vulkan/kernels/activation.py.
#include "activations.glsl"
#include "elements.glsl"
#include "fake_quantize.glsl"

const int GATE_FLAG = 128;
const int GATE_BOUNDS = 255 << 20; // bounds from 0 to 255

// A function, and then that, if the code has bounds, or what it is applied to times a rounded function.
vec4 exact_activation(int code, vec4 value, float first, float second) {
    vec4 applied = activated(code & GATE_FLAG - 1, value, vec4(first), vec4(second));
    if ((code & GATE_FLAG) != 0) {
        precise vec4 passing = value * fake_quantized(GATE_BOUNDS, applied, second, -1.0 / second);
        return code >> 8 != 0 ? fake_quantized(code, passing, first, -1.0 / first) : passing;
    }
    return code >> 8 != 0 ? fake_quantized(code, applied, first, second) : applied;
}

// What an activation gives that is rounded to a form next, unless the result stands for tensors of halves: those are as the operators'
// own.
vec4 activation_for(int form, int code, vec4 value, float first, float second) {
    if (form == ROUNDED && has_rough_form(code)) return roughly_activated(code, value);
    return exact_activation(code, value, first, second);
}
