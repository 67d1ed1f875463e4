// What happens to the accumulators of a convolution or matrix product before they are stored:
// after(before(sum + bias) + residual). The structure is in specialization constants 0 to 7, so a driver compiles the rest
// away; see Epilogue in runtimes/vulkan/kernels/epilogue.py.
#include "activations.glsl"
#include "elements.glsl"
#include "fake_quantize.glsl"

layout(constant_id = 0) const int HAS_BIAS = 0;
layout(constant_id = 1) const int BEFORE = MOVE;
layout(constant_id = 2) const float BEFORE_FIRST = 0.0;
layout(constant_id = 3) const float BEFORE_SECOND = 0.0;
layout(constant_id = 4) const int HAS_RESIDUAL = 0;
layout(constant_id = 5) const int AFTER = MOVE;
layout(constant_id = 6) const float AFTER_FIRST = 0.0;
layout(constant_id = 7) const float AFTER_SECOND = 0.0;

// Forms of elements, three bits each: of the activations, weights, residuals and results, and of what is between the steps below; see
// ProductOperands.forms in runtimes/vulkan/kernels/product.py. The shader that includes this says which constant it is.
layout(constant_id = FORMS_ID) const int FORMS = 0;
const int RESULT_FORM = FORMS >> 9 & 7;
const int STEP_FORM = FORMS >> 12 & 7;

const int GATE_FLAG = 128;
const int GATE_BOUNDS = 255 << 20; // bounds from 0 to 255

// A function, and then that, if the code has bounds, or what it is applied to times a rounded function; see Activation in
// runtimes/vulkan/kernels/activation.py.
vec4 exact_activation(int code, vec4 value, float first, float second) {
    vec4 applied = activated(code & GATE_FLAG - 1, value, vec4(first), vec4(second));
    if ((code & GATE_FLAG) != 0) {
        precise vec4 passing = value * fake_quantized(GATE_BOUNDS, applied, second, -1.0 / second);
        return code >> 8 != 0 ? fake_quantized(code, passing, first, -1.0 / first) : passing;
    }
    return code >> 8 != 0 ? fake_quantized(code, applied, first, second) : applied;
}

// What an activation gives that is rounded next, unless the result stands for tensors of halves: those are as the operators' own.
vec4 activation(int code, vec4 value, float first, float second) {
    if (RESULT_FORM == ROUNDED && has_rough_form(code)) return roughly_activated(code, value);
    return exact_activation(code, value, first, second);
}

// What a step gives as the next one gets it, where each of them stands for an operator on halves.
vec4 between(vec4 value) { return intBitsToFloat(widened(STEP_FORM, narrowed(STEP_FORM, floatBitsToInt(value)))); }

vec4 before_residual(vec4 sum) {
    if (BEFORE != MOVE) sum = between(sum);
    return activation(BEFORE, sum, BEFORE_FIRST, BEFORE_SECOND);
}

vec4 with_residual(vec4 sum, vec4 residual) { return between(sum) + residual; }

vec4 after_residual(vec4 sum) {
    if (AFTER != MOVE) sum = between(sum);
    return activation(AFTER, sum, AFTER_FIRST, AFTER_SECOND);
}
