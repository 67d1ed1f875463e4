#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Depthwise convolution (one filter per channel) of channels_last tensors, or one of groups of two channels: an invocation computes
// OUT_HIGH x OUT_WIDE neighbouring pixels of four channels, so that pixels and weights are read once for all of them. Neighbouring
// invocations hold neighbouring channels. Offsets and strides count vec4s.
#define FORMS_ID 20
#include "product_operands.glsl"
#include "rolled.glsl"

layout(constant_id = 8) const int TAPS_HIGH = 3;
layout(constant_id = 9) const int TAPS_WIDE = 3;
layout(constant_id = 10) const int STRIDE_HIGH = 1;
layout(constant_id = 11) const int STRIDE_WIDE = 1;
layout(constant_id = 12) const int DILATION_HIGH = 1;
layout(constant_id = 13) const int DILATION_WIDE = 1;
layout(constant_id = 14) const int OUT_HIGH = 2;
layout(constant_id = 15) const int OUT_WIDE = 4;
layout(constant_id = 16) const int LOCAL_SIZE = 64;
layout(constant_id = 17) const int GROUP = 1; // channels of a group, 1 or 2
layout(constant_id = 18) const int ROLLED = 0; // the stores are a loop, see rolled.glsl
layout(constant_id = 19) const int TEAMS = 1;  // of invocations, which divide the rows of a filter: of blocks one pixel high, by groups of one channel
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

#include "depthwise_push.glsl"

int top, left; // of the pixels that this invocation reads
int origin;    // where they are
#ifdef TEXELS
vec4 filters[GROUP * TAPS_HIGH * TAPS_WIDE]; // loaded before all else, as the drivers that read texels do best
#define FILTER(tap) filters[tap]
#else
int weight; // where those of this invocation are
#define FILTER(tap) WEIGHT((tap) * channels + weight)
#endif
#include "depthwise_block.glsl"

vec4 input_at(int row, int column) {
    row += top;
    column += left;
    bool inside = uint(row) < uint(height) && uint(column) < uint(width);
    vec4 value = ACTIVATION(inside ? origin + (row * width + column) * input_pitch : 0);
    return inside ? value : vec4(0.0);
}

#ifndef TEXELS
const int ITEMS = LOCAL_SIZE / TEAMS;
shared vec4 parts[TEAMS > 1 ? OUT_WIDE * LOCAL_SIZE : 1];

// Sums of the pixels of a line, by the rows of the filter that are this team's, for all teams to see. One invocation that computes all of
// a large filter by itself waits for its loads.
void filter_rows(vec4 start, int team) {
    [[unroll]] for (int p = 0; p < OUT_WIDE; ++p) filtered[p] = team == 0 ? start : vec4(0.0);
    for (int i = team; i < TAPS_HIGH; i += TEAMS)
        [[unroll]] for (int j = 0; j < IN_WIDE; ++j) {
            vec4 value = input_at(i * DILATION_HIGH, j * STEP_WIDE);
            [[unroll]] for (int p = 0; p < OUT_WIDE; ++p) {
                int tap = tap_of(j * STEP_WIDE, p, STRIDE_WIDE, DILATION_WIDE, TAPS_WIDE);
                if (tap >= 0) filtered[p] += value * FILTER(i * TAPS_WIDE + tap);
            }
        }
    [[unroll]] for (int p = 0; p < OUT_WIDE; ++p) parts[p * LOCAL_SIZE + int(gl_LocalInvocationID.x)] = filtered[p];
    barrier();
}

vec4 sum_of_teams(int p) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (int t = 0; t < TEAMS; ++t) sum += parts[p * LOCAL_SIZE + t * ITEMS + int(gl_LocalInvocationID.x) % ITEMS];
    return sum;
}
#endif

// Where the block of this invocation is.
int batch, y, x;
int channel;

void finish(int pixel_y, int pixel_x, vec4 sum) {
    if (pixel_y >= out_height || pixel_x >= out_width) return;
    vec4 value = before_residual(sum);
    if (HAS_RESIDUAL != 0) {
        int pixel = (batch * out_height + pixel_y) * out_width + pixel_x;
        value = with_residual(value, RESIDUAL(residual_offset + pixel * residual_pitch + channel));
    }
    store(out_offset + batch * out_batch + pixel_y * out_row + pixel_x * out_pitch + channel, after_residual(value));
}

#define STORE_PIXEL(i) finish(y + i / OUT_WIDE, x + i % OUT_WIDE, kept[i]);

void main() {
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
#ifdef TEXELS
    int index = group * int(gl_WorkGroupSize.x) + int(gl_LocalInvocationID.x);
    if (index >= invocations) return;
#else
    int team = TEAMS > 1 ? int(gl_LocalInvocationID.x) / ITEMS : 0;
    int index = group * ITEMS + int(gl_LocalInvocationID.x) % ITEMS;
    bool exists = index < invocations;
    if (TEAMS == 1 && !exists) return;
    index = min(index, invocations - 1);
#endif
    int block = index / channels;
    channel = index - block * channels;
    int line = block / blocks_wide;
    x = (block - line * blocks_wide) * OUT_WIDE;
    batch = line / blocks_high;
    y = (line - batch * blocks_high) * OUT_HIGH;

#ifdef TEXELS
    [[unroll]] for (int t = 0; t < GROUP * TAPS; ++t) filters[t] = WEIGHT(t * channels + channel);
#else
    weight = channel;
#endif
    vec4 start = vec4(0.0);
    if (HAS_BIAS != 0) start = BIAS(channel);
    top = y * STRIDE_HIGH + first_high;
    left = x * STRIDE_WIDE + first_wide;
    origin = input_offset + channel + batch * height * width * input_pitch;
#ifndef TEXELS
    if (TEAMS > 1) {
        filter_rows(start, team);
        if (!exists) return;
        for (int p = team; p < OUT_WIDE; p += TEAMS) finish(y, x + p, sum_of_teams(p));
        return;
    }
#endif
    filter_block(start);

    vec4 kept[OUT_HIGH * OUT_WIDE];
    [[unroll]] for (int i = 0; i < OUT_HIGH * OUT_WIDE; ++i) kept[i] = filtered[i];
    EACH_STORED(OUT_HIGH * OUT_WIDE, STORE_PIXEL)
}
