#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM for CPU drivers: each invocation keeps a tile of ROWS x COLUMNS vec4 sums and reads its operands straight from
// memory; there is no shared memory and no barrier. A driver that runs eight invocations as one vector loads each operand by
// lanes, which costs more than the arithmetic on it, so tiles are large and arithmetic reuses every load.
#include "product.glsl"

layout(constant_id = 12) const int ROWS = 8;
layout(constant_id = 13) const int COLUMNS = 4;
layout(constant_id = 14) const int COLUMN_LANES = 1; // of the eight invocations, how many lie side by side along columns
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;

const int OUTSIDE = -0x40000000;

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int first_column = (int(gl_WorkGroupID.x) * COLUMN_LANES + lane % COLUMN_LANES) * COLUMNS;
    int first_row = (int(gl_WorkGroupID.y) * (8 / COLUMN_LANES) + lane / COLUMN_LANES) * ROWS;
    int batch = int(gl_WorkGroupID.z);
    if (first_column >= columns || first_row >= rows) return;

    int column[COLUMNS];
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
        column[j] = min(first_column + j, columns - 1);
        [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i * COLUMNS + j] = vec4(0.0);
    }

    int origin = input_offset + batch * input_batch;
    if (GROUPED != 0) origin += first_column / group_columns * inner;
    int address[ROWS], top[ROWS], left[ROWS];
    Pixel pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) pixel = pixel_of(first_row);
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        if (SPATIAL != 0) {
            top[i] = pixel.y * stride_high + first_high;
            left[i] = pixel.x * stride_wide + first_wide;
            address[i] = origin + pixel.batch * input_batch + (top[i] * width + left[i]) * input_pitch;
            if (first_row + i + 1 < rows) pixel = next_pixel(pixel);
        } else {
            address[i] = origin + min(first_row + i, rows - 1) * input_pitch;
        }
    }

    int weight = weight_offset + batch * weight_batch;
    for (int tap_y = 0; tap_y < (SPATIAL != 0 ? taps_high : 1); ++tap_y)
        for (int tap_x = 0; tap_x < (SPATIAL != 0 ? taps_wide : 1); ++tap_x) {
            int source[ROWS];
            [[unroll]] for (int i = 0; i < ROWS; ++i) {
                source[i] = address[i];
                if (SPATIAL != 0) {
                    source[i] += (tap_y * dilation_high * width + tap_x * dilation_wide) * input_pitch;
                    bool inside = uint(top[i] + tap_y * dilation_high) < uint(height) &&
                                  uint(left[i] + tap_x * dilation_wide) < uint(width);
                    if (PADDED != 0 && !inside) source[i] = OUTSIDE;
                }
            }
            for (int k = 0; k < inner; ++k) {
                int present = INNER_TAIL != 0 && k == inner - 1 ? INNER_TAIL : 4;
                vec4 factors[4 * COLUMNS];
                [[unroll]] for (int c = 0; c < 4; ++c)
                    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                        int line = INNER_TAIL != 0 ? min(c, present - 1) : c;
                        vec4 factor = VECTOR(weights, weight + line * weight_pitch + column[j]);
                        factors[c * COLUMNS + j] = INNER_TAIL != 0 && c >= present ? vec4(0.0) : factor;
                    }
                weight += 4 * weight_pitch;
                [[unroll]] for (int i = 0; i < ROWS; ++i) {
                    vec4 value = VECTOR(activations, PADDED != 0 ? max(source[i] + k, 0) : source[i] + k);
                    if (PADDED != 0) value = source[i] < 0 ? vec4(0.0) : value;
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
            }
        }

    if (SPATIAL != 0) pixel = pixel_of(first_row);
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        if (first_row + i < rows) {
            int result = result_index(batch, first_row + i, pixel);
            int residual = residual_index(batch, first_row + i, pixel);
            [[unroll]] for (int j = 0; j < COLUMNS; ++j)
                if (first_column + j < columns) store_result(result, residual, first_column + j, sums[i * COLUMNS + j]);
        }
        if (SPATIAL != 0) pixel = next_pixel(pixel);
    }
}
