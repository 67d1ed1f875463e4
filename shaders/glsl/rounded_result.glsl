// How a kernel rounds what it computes before it stores it, from constant STEPS_ID on; see runtimes/vulkan/kernels/result_rounding.py.
#include "fake_quantize.glsl"

layout(constant_id = STEPS_ID) const int STEPS = 0; // 0: not at all
layout(constant_id = STEPS_ID + 1) const float STEPS_SCALE = 1.0;
layout(constant_id = STEPS_ID + 2) const float STEPS_INVERSE = 1.0;

vec4 rounded_result(vec4 value) { return STEPS != 0 ? fake_quantized(STEPS, value, STEPS_SCALE, STEPS_INVERSE) : value; }
