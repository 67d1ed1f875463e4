#version 450
// What normalize.comp computes, of items that the registers of a workgroup hold: each vec4 is loaded once. An item is runs of whole vec4s
// a fixed distance apart, such as a group's channels of each pixel of an image; weights are those of a run. Variances as there.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int HELD = 1; // vec4s of an invocation
layout(constant_id = 2) const int NORM = 1;
layout(constant_id = 3) const int HAS_WEIGHT = 0;
layout(constant_id = 4) const int HAS_BIAS = 0;
layout(constant_id = 5) const int FORMS = 0; // of elements, three bits each: data, weights, biases, result
#include "norm.glsl"
#include "float_bits.glsl"
#define FINISH_ID 6
#include "finished_result.glsl"

WRITES(0, result)
READS(1, data)
READS(2, weights)
READS(3, biases)

#include "normalize_held_push.glsl"

shared vec2 partial[LOCAL_SIZE]; // of each subgroup

vec2 total_of(vec2 own) {
    own = subgroupAdd(own);
    if (gl_NumSubgroups == 1) return own;
    barrier(); // for who reads what was there
    if (gl_SubgroupInvocationID == 0) partial[gl_SubgroupID] = own;
    barrier();
    vec2 total = vec2(0.0);
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) total += partial[i];
    return subgroupAdd(total);
}

float across(vec4 value) { return (value.x + value.y) + (value.z + value.w); }

void main() {
    int item = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    if (item >= items) return;
    int outer = item / inner_items, inner = item % inner_items, count = runs * width;
    int data_base = data_start + outer * data_outer + inner * data_inner;
    int result_base = result_start + outer * result_outer + inner * result_inner;
    vec4 values[HELD];
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int place = int(gl_LocalInvocationIndex) + i * LOCAL_SIZE;
        int at = data_base + place / width * data_pitch + place % width;
        values[i] = place < count ? LOAD_FLOATS4(data, FORMS & 7, at) : vec4(0.0);
    }
    precise float center = 0.0; // what the distances below are from, to the last bit: equal elements are to give 0
    if (NORM == CENTERED) {
        vec4 own = vec4(0.0);
        [[unroll]] for (int i = 0; i < HELD; ++i) own += values[i];
        center = total_of(vec2(across(own), 0.0)).x * share;
    }
    vec4 distances = vec4(0.0), squares = vec4(0.0);
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        bool inside = int(gl_LocalInvocationIndex) + i * LOCAL_SIZE < count;
        precise vec4 off = inside ? values[i] - center : vec4(0.0);
        distances += off;
        squares += off * off;
    }
    vec2 totals = total_of(vec2(across(distances), across(squares)));
    float square = totals.y;
    if (NORM == CENTERED) {
        float moved = totals.x * share;
        square -= totals.x * moved;
        if (square < 0.0) square = 0.0; // what rounding left; NaN stays
        center += moved;
    }
    float scale = 1.0 / sqrt(NORM == EUCLIDEAN ? at_least(vec4(square), eps).x : square * share + eps);
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int place = int(gl_LocalInvocationIndex) + i * LOCAL_SIZE;
        if (place >= count) continue;
        int run = place / width, vector = place % width, own = inner * weight_inner + vector;
        vec4 value = (values[i] - center) * scale;
        if (HAS_WEIGHT != 0) value *= LOAD_FLOATS4(weights, FORMS >> 3 & 7, weight_start + own);
        if (HAS_BIAS != 0) value += LOAD_FLOATS4(biases, FORMS >> 6 & 7, bias_start + own);
        STORE_FLOATS4(result, FORMS >> 9 & 7, result_base + run * result_pitch + vector, finished_result(FORMS >> 9 & 7, value))
    }
}
