// What a kernel does to each number that it computes before it stores it, from constant FINISH_ID on; see
// runtimes/vulkan/kernels/result_finish.py. Without ACTIVATED defined it can round it, and nothing else.
#ifdef ACTIVATED
#include "activation.glsl"
#else
#include "fake_quantize.glsl"
#endif

layout(constant_id = FINISH_ID) const int FINISH = 0; // 0: nothing
layout(constant_id = FINISH_ID + 1) const float FINISH_FIRST = 0.0;
layout(constant_id = FINISH_ID + 2) const float FINISH_SECOND = 0.0;

vec4 finished_result(int form, vec4 value) {
    if (FINISH == 0) return value;
#ifdef ACTIVATED
    return activation_for(form, FINISH, value, FINISH_FIRST, FINISH_SECOND);
#else
    return fake_quantized(FINISH, value, FINISH_FIRST, FINISH_SECOND);
#endif
}
