#version 450
// Softmax, or its logarithm, over the reduced dimensions.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"
#include "exponential.glsl"
#include "logarithm.glsl"

layout(constant_id = 8) const int QUOTIENT = 0;
#include "quotient_kind.glsl"
#define FINISH_ID 9
#include "finished_result.glsl"

WRITES(0, result)
READS(1, data)
shared ivec4 partial[LOCAL_SIZE];

#include "rewriting_push.glsl"

// Of an element that is `off` from the largest.
vec4 weight(vec4 off) { return or_nan(decay(off), off); }

ivec4 largest(ivec4 i, ivec4 j) {
    vec4 a = intBitsToFloat(i), b = intBitsToFloat(j);
    return floatBitsToInt(or_nan(or_nan(max(a, b), b), a));
}
ivec4 sum(ivec4 a, ivec4 b) { return floatBitsToInt(intBitsToFloat(a) + intBitsToFloat(b)); }

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    int strides = INPUT_WORD + 1 + KEPT_RANK;
    int steps = reduced_steps();

    ivec4 top = ivec4(0xff800000);
    for (int s = item.thread; s < steps; s += THREADS) {
        Step step = reduced_step(s, strides);
        ivec4 value = LOAD_STEP(data, start, step, item);
        top = largest(top, LANES_REDUCED != 0 ? mix(ivec4(0xff800000), value, lanes_of(step)) : value);
    }
    SHARE(partial, top, largest)
    if (LANES_REDUCED != 0) {
        top = largest(top, top.zwxy);
        top = largest(top, top.yxwz);
    }
    vec4 shift = intBitsToFloat(top);
    // A finite shift makes the weights of negative infinities zero; a row with another element has a sum of one at least.
    if (QUOTIENT == SAFE) shift = or_nan(max(shift, -3.40282347e38), shift);

    ivec4 total = ivec4(0);
    STRETCHES(first, steps) {
        vec4 part = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            vec4 value = weight(intBitsToFloat(LOAD_STEP(data, start, step, item)) - shift);
            part += LANES_REDUCED != 0 ? mix(vec4(0.0), value, lanes_of(step)) : value;
        }
        total = sum(total, floatBitsToInt(part));
    }
    SHARE(partial, total, sum)
    if (LANES_REDUCED != 0) {
        total = sum(total, total.zwxy);
        total = sum(total, total.yxwz);
    }
    vec4 powers = intBitsToFloat(total);
    if (QUOTIENT == SAFE) powers = or_nan(max(powers, 1.0), powers);
    vec4 scale = QUOTIENT == LOGARITHM ? logarithm(powers) : 1.0 / powers;

    if (!item.exists) return;
    int target = kept_offset(item, OUTPUT_WORD);
    for (int s = item.thread; s < steps; s += THREADS) {
        Step step = reduced_step(s, strides);
        Step place = reduced_step(s, OUTPUT_REDUCED_WORD);
        vec4 value = intBitsToFloat(LOAD_STEP(data, start, step, item)) - shift;
        ivec4 bits = floatBitsToInt(finished_result(STORE_MODE >> 1, QUOTIENT == LOGARITHM ? value - scale : weight(value) * scale));
        int last = LANES_REDUCED != 0 ? place.last : item.last;
        STORE_LANES4(result, STORE_MODE, target + place.offset, lane_stride(OUTPUT_WORD), last, bits)
    }
}
