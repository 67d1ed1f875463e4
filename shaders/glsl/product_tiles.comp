#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM for CPU drivers: each invocation keeps a tile of ROWS x COLUMNS vec4 sums and reads its operands straight from
// memory; there is no shared memory and no barrier. A driver that runs eight invocations as one vector loads each operand by
// lanes, which costs more than the arithmetic on it, so tiles are large and arithmetic reuses every load. A long inner dimension is
// divided into PARTS, whose sums product_sum.comp adds up.
#define FORMS_ID 15
#include "product.glsl"
#ifdef QUANTIZED
#include "quantized.glsl"
const int LINES = 1; // from a vec4 of the inner dimension to the next one, in lines of weight_pitch
#else
const int LINES = 4;
#endif

layout(constant_id = 12) const int ROWS = 8;
layout(constant_id = 13) const int COLUMNS = 4;
layout(constant_id = 14) const int PARTS = 1;
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;

const int OUTSIDE = -0x40000000;

void main() {
    // Of the eight invocations, 1 << column_lanes lie side by side along columns.
    int lane = int(gl_LocalInvocationID.x);
    int first_column = ((int(gl_WorkGroupID.x) << column_lanes) + (lane & ((1 << column_lanes) - 1))) * COLUMNS;
    int first_row = start_row + ((int(gl_WorkGroupID.y) << (3 - column_lanes)) + (lane >> column_lanes)) * ROWS;
    int batch = int(gl_WorkGroupID.z) / PARTS;
    int part = int(gl_WorkGroupID.z) % PARTS;

    // The weights' columns lie in panels of weight_pitch, each of all the rows.
    int steps = SPATIAL != 0 ? taps_high * taps_wide * inner : inner;
    int share = (steps + PARTS - 1) / PARTS;
    int start = PARTS > 1 ? part * share : 0;
    int end = PARTS > 1 ? min(start + share, steps) : steps;
    int column[COLUMNS], factor_column[COLUMNS];
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
        column[j] = min(first_column + j, columns - 1);
        int panel = int((float(column[j]) + 0.5) / float(weight_pitch));
        factor_column[j] = column[j] + panel * (LINES * steps - 1) * weight_pitch;
        vec4 bias = HAS_BIAS != 0 ? BIAS(column[j]) : vec4(0.0);
        [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i * COLUMNS + j] = bias;
    }

#ifdef QUANTIZED
    Scale column_scales[COLUMNS];
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) column_scales[j] = scale_of(0, column[j]);
#endif

    int origin = input_offset + batch * input_batch;
    if (GROUPED != 0) origin += first_column / group_columns * inner;
    int address[ROWS], top[ROWS], left[ROWS], result[ROWS], residual[ROWS];
    Pixel pixel = pixel_of(SPATIAL != 0 ? min(first_row, rows - 1) : 0);
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        int row = min(first_row + i, rows - 1);
        result[i] = result_index(batch, row, pixel);
        residual[i] = residual_index(batch, row, pixel);
        if (SPATIAL != 0) {
            top[i] = pixel.y * stride_high + first_high;
            left[i] = pixel.x * stride_wide + first_wide;
            address[i] = origin + pixel.batch * input_batch + (top[i] * width + left[i]) * input_pitch;
            if (row + 1 < rows) pixel = next_pixel(pixel);
        } else {
            address[i] = origin + row * input_pitch;
        }
    }

    // One loop over taps and channels: each further level would merge all the sums once more on drivers that mask lanes.
    int weight = weight_offset + batch * weight_batch;
    int k = 0, tap_x = 0, tap_y = 0;
    if (PARTS > 1) {
        weight += LINES * weight_pitch * start;
        int index = SPATIAL != 0 ? start / inner : 0;
        k = start - index * inner;
        tap_y = index / taps_wide;
        tap_x = index - tap_y * taps_wide;
    }
    for (int s = start; s < end; ++s) {
        int present = INNER_TAIL != 0 && k == inner - 1 ? INNER_TAIL : 4;
        vec4 factors[4 * COLUMNS];
#ifdef QUANTIZED
        [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
            ivec4 block = WEIGHT_BLOCK(weight + factor_column[j]);
            Scale scale = GROUP < 30 ? scale_of(s, column[j]) : column_scales[j];
            [[unroll]] for (int c = 0; c < 4; ++c) factors[c * COLUMNS + j] = line_of(block, c, scale);
        }
#else
        [[unroll]] for (int c = 0; c < 4; ++c)
            [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                int line = INNER_TAIL != 0 ? min(c, present - 1) : c;
                vec4 factor = WEIGHT(weight + line * weight_pitch + factor_column[j]);
                factors[c * COLUMNS + j] = INNER_TAIL != 0 && c >= present ? vec4(0.0) : factor;
            }
#endif
        weight += LINES * weight_pitch;
        int tap = (tap_y * dilation_high * width + tap_x * dilation_wide) * input_pitch;
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            int source = address[i] + k;
            if (SPATIAL != 0) source += tap;
            bool inside = PADDED == 0 || (uint(top[i] + tap_y * dilation_high) < uint(height) &&
                                          uint(left[i] + tap_x * dilation_wide) < uint(width));
            vec4 value = ACTIVATION(inside ? source : 0);
            if (PADDED != 0) value = inside ? value : vec4(0.0);
            if (INNER_TAIL != 0) value = head(value, present);
            [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                vec4 sum = sums[i * COLUMNS + j];
                sum += value.x * factors[j];
                sum += value.y * factors[COLUMNS + j];
                sum += value.z * factors[2 * COLUMNS + j];
                sum += value.w * factors[3 * COLUMNS + j];
                sums[i * COLUMNS + j] = sum;
            }
        }
        ++k;
        if (SPATIAL != 0) {
            bool next = k == inner;
            k = next ? 0 : k;
            tap_x += int(next);
            bool turns = tap_x == taps_wide;
            tap_x = turns ? 0 : tap_x;
            tap_y += int(turns);
        }
    }

    [[unroll]] for (int i = 0; i < ROWS; ++i)
        [[unroll]] for (int j = 0; j < COLUMNS; ++j)
            if (first_row + i < rows && first_column + j < columns) {
                vec4 sum = sums[i * COLUMNS + j];
                if (PARTS > 1)
                    store(((batch * PARTS + part) * rows + first_row + i) * columns + column[j], sum);
                else
                    store_biased(result[i], residual[i], column[j], sum);
            }
}
