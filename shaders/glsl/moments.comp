#version 450
// Mean and variance (or what is made of it) of the reduced elements, in two passes.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 7) const int SPREAD = 0;
const int VARIANCE = 0, DEVIATION = 1, RECIPROCAL_DEVIATION = 2;

WRITES(0, mean)
WRITES(1, spread)
READS(2, data)
shared ivec4 partial[LOCAL_SIZE];

// After the output's offset and strides: 1 / count, 1 / (count - correction), and what is added to the variance.
float parameter(int n) { return intBitsToFloat(words[OUTPUT_WORD + 1 + KEPT_RANK + n]); }

ivec4 sum(ivec4 a, ivec4 b) { return floatBitsToInt(intBitsToFloat(a) + intBitsToFloat(b)); }

vec4 total_of(ivec4 own) {
    SHARE(partial, own, sum)
    if (LANES_REDUCED != 0) {
        own = sum(own, own.zwxy);
        own = sum(own, own.yxwz);
    }
    return intBitsToFloat(own);
}

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    int strides = INPUT_WORD + 1 + KEPT_RANK;
    vec4 own = vec4(0.0);
    for (int s = item.thread; s < reduced_steps(); s += THREADS) {
        Step step = reduced_step(s, strides);
        vec4 value = intBitsToFloat(LOAD_STEP(data, start, step, item));
        own += LANES_REDUCED != 0 ? mix(vec4(0.0), value, lanes_of(step)) : value;
    }
    vec4 center = total_of(floatBitsToInt(own)) * parameter(0);
    own = vec4(0.0);
    for (int s = item.thread; s < reduced_steps(); s += THREADS) {
        Step step = reduced_step(s, strides);
        vec4 off = intBitsToFloat(LOAD_STEP(data, start, step, item)) - center;
        own += LANES_REDUCED != 0 ? mix(vec4(0.0), off * off, lanes_of(step)) : off * off;
    }
    vec4 width = total_of(floatBitsToInt(own)) * parameter(1);
    if (SPREAD == DEVIATION) width = sqrt(width);
    if (SPREAD == RECIPROCAL_DEVIATION) width = 1.0 / sqrt(width + parameter(2));
    if (!item.exists || item.thread != 0) return;
    int step = words[OUTPUT_WORD + KEPT_RANK];
    int target = kept_offset(item, OUTPUT_WORD);
    STORE_LANES4(mean, STORE_VECTOR != 0, target, step, item.last, floatBitsToInt(center))
    STORE_LANES4(spread, STORE_VECTOR != 0, target, step, item.last, floatBitsToInt(width))
}
