#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Implicit GEMM for CPU drivers that hand a register from one lane to all for less than a load: a subgroup of eight lanes, which lie
// side by side along columns, keeps ROWS x 8 * COLUMNS vec4 sums. Lane l of an input's load f reads row 8 * f + l, so that one
// address, one mask and one load serve eight rows.
#include "product_walk.glsl"

const int LANES = 8;
const int LOADS = ROWS / LANES;

void main() {
    int lane = int(gl_SubgroupInvocationID);
    int first_column = int(gl_WorkGroupID.x) * LANES * COLUMNS;
    int first_row = start_row + int(gl_WorkGroupID.y) * ROWS;
    int batch = int(gl_WorkGroupID.z) / PARTS;
    int part = int(gl_WorkGroupID.z) % PARTS;

    int column[COLUMNS], place[COLUMNS];
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
        column[j] = min(first_column + j * LANES + lane, columns - 1);
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
    int address[LOADS], top[LOADS], left[LOADS], result[LOADS], residual[LOADS];
    [[unroll]] for (int f = 0; f < LOADS; ++f) {
        int row = min(first_row + f * LANES + lane, rows - 1);
        Pixel pixel = pixel_of(SPATIAL != 0 ? row : 0);
        result[f] = result_index(batch, row, pixel);
        residual[f] = residual_index(batch, row, pixel);
        if (SPATIAL != 0) {
            top[f] = pixel.y * stride_high + first_high;
            left[f] = pixel.x * stride_wide + first_wide;
            address[f] = origin + pixel.batch * input_batch + (top[f] * width + left[f]) * input_pitch;
        } else {
            address[f] = origin + row * input_pitch;
        }
    }

    for (Walk walk = walk_of(batch, part); walk.step < walk.end; advance(walk)) {
        vec4 factors[4 * TURN * COLUMNS];
        LOAD_FACTORS(factors, walk, column, place)
        [[unroll]] for (int f = 0; f < LOADS; ++f) {
            vec4 values[TURN];
            [[unroll]] for (int t = 0; t < TURN; ++t) values[t] = activation_of(walk, t, address[f], top[f], left[f]);
            // A shuffle by a lane that is known once the loop is unrolled is one permutation.
            [[unroll]] for (int l = 0; l < LANES; ++l) {
                vec4 value[TURN];
                [[unroll]] for (int t = 0; t < TURN; ++t) value[t] = subgroupShuffle(values[t], l);
                [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                    vec4 sum = sums[(f * LANES + l) * COLUMNS + j];
                    [[unroll]] for (int t = 0; t < TURN; ++t) { ADD_PRODUCTS(sum, value[t], factors, t, j) }
                    sums[(f * LANES + l) * COLUMNS + j] = sum;
                }
            }
        }
    }

    vec4 kept[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; ++i) kept[i] = sums[i];
    // A loop, as drivers take as long to compile one store as hundreds of sums.
    [[dont_unroll]] for (int i = 0; i < ROWS; ++i) {
        int row = first_row + i;
        int target = subgroupShuffle(result[i / LANES], i % LANES);
        int other = subgroupShuffle(residual[i / LANES], i % LANES);
        if (PARTS > 1) target = ((batch * PARTS + part) * rows + row) * columns;
        [[unroll]] for (int j = 0; j < COLUMNS; ++j)
            if (row < rows && first_column + j * LANES + lane < columns) {
                vec4 sum = kept[i * COLUMNS + j];
                if (PARTS > 1)
                    store(target + column[j], sum);
                else
                    store_biased(target, other, column[j], sum);
            }
    }
}
