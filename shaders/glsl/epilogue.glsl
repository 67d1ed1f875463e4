// What happens to the accumulators of a convolution or matrix product before they are stored:
// after(before(sum + bias) + residual). The structure is in specialization constants 0 to 7, so a driver compiles the rest
// away; see Epilogue in runtimes/vulkan/kernels/epilogue.py.
#include "activation.glsl"

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

vec4 activation(int code, vec4 value, float first, float second) { return activation_for(RESULT_FORM, code, value, first, second); }

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
