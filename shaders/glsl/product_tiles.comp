#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM for CPU drivers: each invocation keeps a tile of ROWS x COLUMNS vec4 sums and reads its operands straight from
// memory; there is no shared memory and no barrier. A driver that runs eight invocations as one vector loads each operand by
// lanes, which costs more than the arithmetic on it, so tiles are large and arithmetic reuses every load.
#include "product_walk.glsl"

#define STORE_ROW(i)                                                                                                   \
    {                                                                                                                  \
        [[unroll]] for (int j = 0; j < COLUMNS; ++j)                                                                   \
            if (first_row + i < rows && first_column + j < columns) {                                                  \
                vec4 sum = kept[i * COLUMNS + j];                                                                      \
                if (PARTS > 1)                                                                                         \
                    store(((batch * PARTS + part) * rows + first_row + i) * columns + column[j], sum);                 \
                else                                                                                                   \
                    store_biased(result[i], residual[i], column[j], sum);                                              \
            }                                                                                                          \
    }

void main() {
    // Of the eight invocations, 1 << column_lanes lie side by side along columns.
    int lane = int(gl_LocalInvocationID.x);
    int first_column = ((int(gl_WorkGroupID.x) << column_lanes) + (lane & ((1 << column_lanes) - 1))) * COLUMNS;
    int first_row = start_row + ((int(gl_WorkGroupID.y) << (3 - column_lanes)) + (lane >> column_lanes)) * ROWS;
    int batch = int(gl_WorkGroupID.z) / PARTS;
    int part = int(gl_WorkGroupID.z) % PARTS;

    int column[COLUMNS], place[COLUMNS];
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
        column[j] = min(first_column + j, columns - 1);
        place[j] = factor_column(column[j]);
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

    for (Walk walk = walk_of(batch, part); walk.step < walk.end; advance(walk)) {
        vec4 factors[4 * TURN * COLUMNS];
        LOAD_FACTORS(factors, walk, column, place)
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            vec4 values[TURN];
            [[unroll]] for (int t = 0; t < TURN; ++t) values[t] = activation_of(walk, t, address[i], top[i], left[i]);
            [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                vec4 sum = sums[i * COLUMNS + j];
                [[unroll]] for (int t = 0; t < TURN; ++t) { ADD_PRODUCTS(sum, values[t], factors, t, j) }
                sums[i * COLUMNS + j] = sum;
            }
        }
    }

    vec4 kept[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; ++i) kept[i] = sums[i];
    EACH_STORED(ROWS, STORE_ROW)
}
