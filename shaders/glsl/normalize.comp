#version 450
// (x - mean) / sqrt(variance + eps) * weight + bias over the reduced dimensions, or x / sqrt(mean square + eps) * weight + bias, or
// x / sqrt(max(sum of squares, eps)) * weight + bias. The variance as in moments.comp, in two passes; a third one writes.
#extension GL_GOOGLE_include_directive : require
#include "moments.glsl"

layout(constant_id = 9) const int NORM = 1;
layout(constant_id = 10) const int WEIGHT_ACCESS = -1; // -1: there is none
layout(constant_id = 11) const int BIAS_ACCESS = -1;
#include "norm.glsl"
#include "float_bits.glsl"
#define FINISH_ID 12
#include "finished_result.glsl"

WRITES(0, result)
READS(1, data)
READS(2, weights)
READS(3, biases)

#include "rewriting_push.glsl"
#include "normalize_push.glsl"

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    int strides = INPUT_WORD + 1 + KEPT_RANK;
    int steps = reduced_steps();
    float share = number_at(SHARE_WORD), eps = number_at(EPS_WORD);

    vec4 center = vec4(0.0);
    if (NORM == CENTERED) {
        vec4 own = vec4(0.0);
        STRETCHES(first, steps) {
            vec4 part = vec4(0.0);
            STEPS_OF(s, first, steps) {
                Step step = reduced_step(s, strides);
                vec4 value = intBitsToFloat(LOAD_STEP(data, start, step, item));
                part += LANES_REDUCED != 0 ? mix(vec4(0.0), value, lanes_of(step)) : value;
            }
            own += part;
        }
        center = total_of(own) * share;
    }
    vec4 own_distance = vec4(0.0), own_square = vec4(0.0);
    STRETCHES(first, steps) {
        vec4 distance = vec4(0.0), square = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            vec4 off = intBitsToFloat(LOAD_STEP(data, start, step, item)) - center;
            if (LANES_REDUCED != 0) off = mix(vec4(0.0), off, lanes_of(step));
            distance += off;
            square += off * off;
        }
        own_distance += distance;
        own_square += square;
    }
    totals_of(own_distance, own_square);
    if (NORM == CENTERED) {
        vec4 moved = own_distance * share;
        own_square = not_negative(own_square - own_distance * moved);
        center += moved;
    }
    vec4 scale = 1.0 / sqrt(NORM == EUCLIDEAN ? at_least(own_square, eps) : own_square * share + eps);

    if (!item.exists) return;
    int target = kept_offset(item, OUTPUT_WORD);
    int weight_start = kept_offset(item, WEIGHT_WORD);
    int bias_start = weight_start - words[WEIGHT_WORD] + words[BIAS_WORD];
    for (int s = item.thread; s < steps; s += THREADS) {
        Step step = reduced_step(s, strides);
        int place = reduced_step(s, OUTPUT_REDUCED_WORD).offset;
        int last = LANES_REDUCED != 0 ? step.last : item.last;
        vec4 value = (intBitsToFloat(LOAD_STEP(data, start, step, item)) - center) * scale;
        int other = reduced_step(s, WEIGHT_WORD + 1 + KEPT_RANK).offset, apart = lane_stride(WEIGHT_WORD);
        if (WEIGHT_ACCESS >= 0) value *= intBitsToFloat(LOAD_LANES4(weights, WEIGHT_ACCESS, weight_start + other, apart, last));
        if (BIAS_ACCESS >= 0) value += intBitsToFloat(LOAD_LANES4(biases, BIAS_ACCESS, bias_start + other, apart, last));
        ivec4 bits = floatBitsToInt(finished_result(STORE_MODE >> 1, value));
        STORE_LANES4(result, STORE_MODE, target + place, lane_stride(OUTPUT_WORD), last, bits)
    }
}
