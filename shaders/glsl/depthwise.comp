#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Depthwise convolution (one filter per channel) of channels_last tensors, or one of groups of two channels: an invocation computes
// OUT_HIGH x OUT_WIDE neighbouring pixels of four channels, so that pixels and weights are read once for all of them. Neighbouring
// invocations hold neighbouring channels. Offsets and strides count vec4s.
#define FORMS_ID 19
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
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

#include "depthwise_push.glsl"

const int TAPS = TAPS_HIGH * TAPS_WIDE;
// Rows and columns between those that a block reads: a single pixel leaves out what lies between its taps.
const int STEP_HIGH = OUT_HIGH == 1 ? DILATION_HIGH : 1;
const int STEP_WIDE = OUT_WIDE == 1 ? DILATION_WIDE : 1;
const int IN_HIGH = (OUT_HIGH - 1) * STRIDE_HIGH + (TAPS_HIGH - 1) * DILATION_HIGH / STEP_HIGH + 1;
const int IN_WIDE = (OUT_WIDE - 1) * STRIDE_WIDE + (TAPS_WIDE - 1) * DILATION_WIDE / STEP_WIDE + 1;

// Output o reads input i with tap (i - o * stride) / dilation, if that is a whole number in range; else -1.
int tap_of(int i, int o, int stride, int dilation, int taps) {
    int distance = i - o * stride;
    return distance >= 0 && distance % dilation == 0 && distance / dilation < taps ? distance / dilation : -1;
}

#define STORE_PIXEL(i)                                                                                                 \
    {                                                                                                                  \
        int o = i / OUT_WIDE, p = i % OUT_WIDE;                                                                        \
        if (y + o < out_height && x + p < out_width) {                                                                 \
            int pixel = (batch * out_height + y + o) * out_width + x + p;                                              \
            vec4 value = before_residual(kept[i]);                                                                     \
            if (HAS_RESIDUAL != 0)                                                                                     \
                value = with_residual(value, RESIDUAL(residual_offset + pixel * residual_pitch + channel));            \
            store(out_offset + pixel * out_pitch + channel, after_residual(value));                                    \
        }                                                                                                              \
    }

void main() {
    int index = int((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (index >= invocations) return;
    int block = index / channels;
    int channel = index - block * channels;
    int line = block / blocks_wide;
    int x = (block - line * blocks_wide) * OUT_WIDE;
    int batch = line / blocks_high;
    int y = (line - batch * blocks_high) * OUT_HIGH;

    vec4 factors[GROUP * TAPS];
    [[unroll]] for (int t = 0; t < GROUP * TAPS; ++t) factors[t] = WEIGHT(t * channels + channel);
    vec4 sums[OUT_HIGH * OUT_WIDE];
    vec4 start = vec4(0.0);
    if (HAS_BIAS != 0) start = BIAS(channel);
    [[unroll]] for (int o = 0; o < OUT_HIGH * OUT_WIDE; ++o) sums[o] = start;

    int top = y * STRIDE_HIGH + first_high;
    int left = x * STRIDE_WIDE + first_wide;
    int origin = input_offset + channel + batch * height * width * input_pitch;
    [[unroll]] for (int i = 0; i < IN_HIGH; ++i) {
        int row = top + i * STEP_HIGH;
        bool line_inside = uint(row) < uint(height);
        [[unroll]] for (int j = 0; j < IN_WIDE; ++j) {
            int column = left + j * STEP_WIDE;
            bool inside = line_inside && uint(column) < uint(width);
            vec4 value = ACTIVATION(inside ? origin + (row * width + column) * input_pitch : 0);
            value = inside ? value : vec4(0.0);
            [[unroll]] for (int o = 0; o < OUT_HIGH; ++o)
                [[unroll]] for (int p = 0; p < OUT_WIDE; ++p) {
                    int tap_y = tap_of(i * STEP_HIGH, o, STRIDE_HIGH, DILATION_HIGH, TAPS_HIGH);
                    int tap_x = tap_of(j * STEP_WIDE, p, STRIDE_WIDE, DILATION_WIDE, TAPS_WIDE);
                    // Each channel reads those of its group, and no others: what is no number stays within it.
                    if (tap_y >= 0 && tap_x >= 0) {
                        int tap = tap_y * TAPS_WIDE + tap_x;
                        if (GROUP == 1) {
                            sums[o * OUT_WIDE + p] += value * factors[tap];
                        } else {
                            sums[o * OUT_WIDE + p] += value.xxzz * factors[tap];
                            sums[o * OUT_WIDE + p] += value.yyww * factors[TAPS + tap];
                        }
                    }
                }
        }
    }

    vec4 kept[OUT_HIGH * OUT_WIDE];
    [[unroll]] for (int i = 0; i < OUT_HIGH * OUT_WIDE; ++i) kept[i] = sums[i];
    EACH_STORED(OUT_HIGH * OUT_WIDE, STORE_PIXEL)
}
