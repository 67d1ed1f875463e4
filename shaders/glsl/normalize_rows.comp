#version 450
// What normalize.comp computes, of dense rows of whole vec4s that the registers of a subgroup hold: each is loaded once, and sums are
// those of the subgroup, so nobody waits for a workgroup. Variances as there, in two passes.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int LANES = 32; // of a subgroup
layout(constant_id = 2) const int HELD = 1;   // vec4s of an invocation
layout(constant_id = 3) const int NORM = 1;
layout(constant_id = 4) const int HAS_WEIGHT = 0;
layout(constant_id = 5) const int HAS_BIAS = 0;
layout(constant_id = 6) const int FORMS = 0; // of elements, three bits each: data, weights, biases, result
#include "norm.glsl"
#include "float_bits.glsl"
#define FINISH_ID 7
#include "finished_result.glsl"

WRITES(0, result)
READS(1, data)
READS(2, weights)
READS(3, biases)

#include "normalize_rows_push.glsl"

float across(vec4 value) { return subgroupAdd((value.x + value.y) + (value.z + value.w)); }

void main() {
    int lane = int(gl_SubgroupInvocationID);
    int row = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * (LOCAL_SIZE / LANES) + int(gl_SubgroupID);
    bool exists = row < rows;
    vec4 values[HELD], factors[HELD], shifts[HELD];
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int place = lane + i * LANES;
        bool inside = exists && place < width;
        values[i] = inside ? LOAD_FLOATS4(data, FORMS & 7, data_start + row * data_pitch + place) : vec4(0.0);
        factors[i] = HAS_WEIGHT != 0 && inside ? LOAD_FLOATS4(weights, FORMS >> 3 & 7, weight_start + place) : vec4(1.0);
        shifts[i] = HAS_BIAS != 0 && inside ? LOAD_FLOATS4(biases, FORMS >> 6 & 7, bias_start + place) : vec4(0.0);
    }
    precise float center = 0.0; // what the distances below are from, to the last bit: equal elements are to give 0
    if (NORM == CENTERED) {
        vec4 own = vec4(0.0);
        [[unroll]] for (int i = 0; i < HELD; ++i) own += values[i];
        center = across(own) * share;
    }
    vec4 distances = vec4(0.0), squares = vec4(0.0);
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        precise vec4 off = lane + i * LANES < width ? values[i] - center : vec4(0.0);
        distances += off;
        squares += off * off;
    }
    float square = across(squares);
    if (NORM == CENTERED) {
        float distance = across(distances), moved = distance * share;
        square -= distance * moved;
        if (square < 0.0) square = 0.0; // what rounding left; NaN stays
        center += moved;
    }
    float scale = 1.0 / sqrt(NORM == EUCLIDEAN ? at_least(vec4(square), eps).x : square * share + eps);
    if (!exists) return;
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int place = lane + i * LANES;
        if (place >= width) continue;
        vec4 value = (values[i] - center) * scale;
        if (HAS_WEIGHT != 0) value *= factors[i];
        if (HAS_BIAS != 0) value += shifts[i];
        STORE_FLOATS4(result, FORMS >> 9 & 7, result_start + row * result_pitch + place, finished_result(FORMS >> 9 & 7, value))
    }
}
