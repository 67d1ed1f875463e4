#version 450
// (x - mean) * reciprocal deviation * weight + bias of groups of channels of images, as channel_moments.comp walks them: an invocation
// computes the same four channels of some pixels, whose factors it reads once.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int WIDTH = 1; // vec4s of a pixel
layout(constant_id = 2) const int GROUP = 1; // channels of a group
layout(constant_id = 3) const int PARTS = 1; // workgroups that share an image
layout(constant_id = 4) const int HAS_WEIGHT = 0;
layout(constant_id = 5) const int HAS_BIAS = 0;
layout(constant_id = 6) const int FORMS = 0; // of elements, three bits each: data, weights, biases, result
#define FINISH_ID 7
#include "finished_result.glsl"
const int ROWS = LOCAL_SIZE / WIDTH; // pixels that a workgroup computes side by side
const int GROUPS = 4 * WIDTH / GROUP;
const int AHEAD = 4; // pixels that an invocation reads before it computes them

WRITES(0, result)
READS(1, data)
READS(2, weights)
READS(3, biases)
READS(4, mean)
READS(5, scale)

#include "normalize_channels_push.glsl"

void main() {
    int me = local_index(), workgroup = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int image = workgroup / PARTS, part = workgroup % PARTS, column = me % WIDTH;
    if (image >= images) return;
    ivec4 group = image * GROUPS + (4 * column + ivec4(0, 1, 2, 3)) / GROUP;
    vec4 centers = intBitsToFloat(LOAD_PLACES4(mean, WORDS, group)), factors = intBitsToFloat(LOAD_PLACES4(scale, WORDS, group));
    vec4 weight = HAS_WEIGHT != 0 ? LOAD_FLOATS4(weights, FORMS >> 3 & 7, weight_start + column) : vec4(1.0);
    vec4 bias = HAS_BIAS != 0 ? LOAD_FLOATS4(biases, FORMS >> 6 & 7, bias_start + column) : vec4(0.0);
    int first = part * part_pixels + me / WIDTH, end = min((part + 1) * part_pixels, pixels);
    int data_base = data_start + image * data_image + column, result_base = result_start + image * result_image + column;
    for (int base = first; base < end; base += AHEAD * ROWS) {
        vec4 values[AHEAD];
        [[unroll]] for (int i = 0; i < AHEAD; ++i) {
            int pixel = base + i * ROWS;
            values[i] = pixel < end ? LOAD_FLOATS4(data, FORMS & 7, data_base + pixel * data_pitch) : vec4(0.0);
        }
        [[unroll]] for (int i = 0; i < AHEAD; ++i) {
            int pixel = base + i * ROWS;
            if (pixel >= end) continue;
            vec4 value = (values[i] - centers) * factors;
            if (HAS_WEIGHT != 0) value *= weight;
            if (HAS_BIAS != 0) value += bias;
            STORE_FLOATS4(result, FORMS >> 9 & 7, result_base + pixel * result_pitch, finished_result(FORMS >> 9 & 7, value))
        }
    }
}
