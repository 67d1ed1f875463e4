#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM for GPUs: a workgroup computes BLOCK_ROWS x BLOCK_COLUMNS vec4s from tiles in shared memory, INNER_BLOCK vec4s of
// the inner dimension at a time;
// each invocation sums ROWS x COLUMNS vec4s, strided through the block so that neighbours read neighbours (the scheme of V. Volkov and
// J. Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008).
#include "product.glsl"

layout(constant_id = 12) const int BLOCK_ROWS = 64;
layout(constant_id = 13) const int BLOCK_COLUMNS = 16; // vec4s
layout(constant_id = 14) const int ROWS = 4;           // rows of one invocation
layout(constant_id = 15) const int COLUMNS = 1;        // vec4s of one invocation
layout(constant_id = 16) const int INVOCATIONS = 256;  // (BLOCK_ROWS / ROWS) * (BLOCK_COLUMNS / COLUMNS)
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

const int INNER_BLOCK = 4; // vec4s

shared float values[4 * INNER_BLOCK][BLOCK_ROWS + 4];
shared vec4 factors[4 * INNER_BLOCK][BLOCK_COLUMNS];

void main() {
    int me = int(gl_LocalInvocationID.x);
    int groups = GROUPED != 0 ? columns / group_columns : 1;
    int group = GROUPED != 0 ? int(gl_WorkGroupID.z) % groups : 0;
    int batch = GROUPED != 0 ? 0 : int(gl_WorkGroupID.z);
    int own_columns = GROUPED != 0 ? group_columns : columns;
    int base_column = group * own_columns;
    int block_column = int(gl_WorkGroupID.x) * BLOCK_COLUMNS;
    int block_row = int(gl_WorkGroupID.y) * BLOCK_ROWS;
    int origin = input_offset + batch * input_batch + group * inner;
    int weight = weight_offset + batch * weight_batch;
    int total = SPATIAL != 0 ? taps_high * taps_wide * inner : inner; // the whole inner dimension, in vec4s

    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = vec4(0.0);

    int column_step = BLOCK_COLUMNS / COLUMNS;
    int my_column = me % column_step;
    int my_row = me / column_step;
    int row_step = BLOCK_ROWS / ROWS;

    for (int start = 0; start < total; start += INNER_BLOCK) {
        for (int i = me; i < BLOCK_ROWS * INNER_BLOCK; i += INVOCATIONS) {
            int k = start + i % INNER_BLOCK;
            int row = i / INNER_BLOCK;
            vec4 value = vec4(0.0);
            if (k < total && block_row + row < rows) {
                int tap = SPATIAL != 0 ? k / inner : 0;
                int channel = k - tap * inner;
                bool inside = true;
                int address = origin + channel;
                if (SPATIAL != 0) {
                    Pixel pixel = pixel_of(block_row + row);
                    int tap_y = tap / taps_wide;
                    int y = pixel.y * stride_high + first_high + tap_y * dilation_high;
                    int x = pixel.x * stride_wide + first_wide + (tap - tap_y * taps_wide) * dilation_wide;
                    inside = PADDED == 0 || (uint(y) < uint(height) && uint(x) < uint(width));
                    address += pixel.batch * input_batch + (y * width + x) * input_pitch;
                } else {
                    address += (block_row + row) * input_pitch;
                }
                if (inside) value = VECTOR(activations, address);
                if (INNER_TAIL != 0 && channel == inner - 1) value = head(value, INNER_TAIL);
            }
            int line = 4 * (i % INNER_BLOCK);
            [[unroll]] for (int c = 0; c < 4; ++c) values[line + c][row] = value[c];
        }
        for (int i = me; i < 4 * INNER_BLOCK * BLOCK_COLUMNS; i += INVOCATIONS) {
            int line = i / BLOCK_COLUMNS;
            int column = i % BLOCK_COLUMNS;
            int k = start + line / 4;
            bool exists = k < total && block_column + column < own_columns;
            if (INNER_TAIL != 0 && k % inner == inner - 1) exists = exists && line % 4 < INNER_TAIL;
            int address = weight + (4 * start + line) * weight_pitch + base_column + block_column + column;
            factors[line][column] = exists ? VECTOR(weights, address) : vec4(0.0);
        }
        barrier();
        for (int line = 0; line < 4 * INNER_BLOCK; ++line) {
            vec4 factor[COLUMNS];
            [[unroll]] for (int j = 0; j < COLUMNS; ++j) factor[j] = factors[line][my_column + j * column_step];
            [[unroll]] for (int i = 0; i < ROWS; ++i) {
                float value = values[line][my_row + i * row_step];
                [[unroll]] for (int j = 0; j < COLUMNS; ++j) sums[i * COLUMNS + j] += value * factor[j];
            }
        }
        barrier();
    }

    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        int row = block_row + my_row + i * row_step;
        if (row < rows) {
            Pixel pixel = Pixel(0, 0, 0);
            if (SPATIAL != 0) pixel = pixel_of(row);
            [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                int column = block_column + my_column + j * column_step;
                if (column < own_columns)
                    store_result(result_index(batch, row, pixel), residual_index(batch, row, pixel), base_column + column,
                                 sums[i * COLUMNS + j]);
            }
        }
    }
}
