#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// A few rows times a matrix of few bits, for GPUs. As product_rows.comp, but what an invocation reads at a time are 16 bytes of weights, of
// WIDE vec4s of columns, for each of STEPS neighbours of the inner dimension: they wait in registers as they lie in memory, which holds
// enough reads for the memory's rate under way, and become floats only when they are multiplied. Neighbours share a scale, which their
// sum is multiplied by.
#define FORMS_ID 19
#include "product.glsl"
#include "quantized.glsl"

#ifdef NORMALIZED
#include "product_normalized.glsl"
#endif

layout(constant_id = 12) const int ROWS = 1;          // of a workgroup
layout(constant_id = 13) const int COLUMNS = 8;       // invocations that lie side by side
layout(constant_id = 14) const int TEAMS = 32;        // that share the inner dimension, a power of two
layout(constant_id = 15) const int STEPS = 4;         // neighbouring vec4s of the inner dimension that an invocation reads at a time, a power of two
layout(constant_id = 16) const int INVOCATIONS = 256; // COLUMNS * TEAMS
layout(constant_id = 17) const int AHEAD = 0;         // whether the first weights are read before others have ended: they are constants
layout(constant_id = 18) const int GATED = 0;         // see gates.glsl
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

const int WIDE = 8 / BITS; // vec4s of columns of an invocation
const int GROUP_STEPS = 1 << (GROUP < 8 ? GROUP : 8);
const int SHARING = GROUP_STEPS < STEPS ? GROUP_STEPS : STEPS; // of STEPS that have the same scale
const int SCALES = STEPS / SHARING;

#define SUMS_OF_A_ROW WIDE
#include "teams.glsl"
#include "gates.glsl"

ivec4 blocks[STEPS];
Scale scale_vectors[SCALES * WIDE];

// The weights of one turn from `step` on, and their scales; zeros where there are none.
void read_factors(int weight, int step, int column) {
    [[unroll]] for (int s = 0; s < STEPS; ++s) {
        bool exists = column < columns && step + s < inner;
        blocks[s] = exists ? QUAD(weights, (weight + (step + s) * weight_pitch + column) / WIDE) : ivec4(0);
    }
    [[unroll]] for (int s = 0; s < SCALES; ++s)
        [[unroll]] for (int w = 0; w < WIDE; ++w) {
            bool exists = column + w < columns && step + s * SHARING < inner;
            scale_vectors[s * WIDE + w] = Scale(vec4(0.0), vec4(0.0));
            if (exists) scale_vectors[s * WIDE + w] = scale_of(step + s * SHARING, column + w);
        }
}

vec4 activation_at(int source, int k, float base) {
    vec4 value = k < inner ? ACTIVATION(source + k) - base : vec4(0.0);
    return INNER_TAIL != 0 && k == inner - 1 ? head(value, INNER_TAIL) : value;
}

void main() {
    int me = int(gl_LocalInvocationID.x);
    int team = me / COLUMNS;
    int column = (int(gl_WorkGroupID.x) * COLUMNS + me % COLUMNS) * WIDE;
    int first_row = start_row + int(gl_WorkGroupID.y) * ROWS;
    int batch = int(gl_WorkGroupID.z);
    int weight = weight_offset + batch * weight_batch;
    if (AHEAD != 0) read_factors(weight, team * STEPS, column);
    wait_for_operands();
    int sources[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i)
        sources[i] = input_offset + batch * input_batch + min(first_row + i, rows - 1) * input_pitch;

    // What the end needs is read first, so that it waits for nothing then.
    bool ends = team == 0;
    vec4 bias[WIDE], residuals[ROWS * WIDE];
#ifdef NORMALIZED
    vec4 own_sums[WIDE]; // of the weights' columns
#endif
    [[unroll]] for (int w = 0; w < WIDE; ++w) {
        bool exists = ends && column + w < columns;
        bias[w] = HAS_BIAS != 0 && exists ? BIAS(column + w) : vec4(0.0);
#ifdef NORMALIZED
        own_sums[w] = exists ? column_sum_at(column + w) : vec4(0.0);
#endif
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            int row = first_row + i;
            residuals[i * WIDE + w] = vec4(0.0);
            if (exists && row < rows) residuals[i * WIDE + w] = residual_at(residual_index(batch, row, Pixel(0, 0, 0)) + column + w);
        }
    }

    vec4 sums[ROWS * WIDE];
    float bases[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) bases[i] = 0.0;
#ifdef NORMALIZED
    RowStatistics found[ROWS];
    bool is_some_row_far = false;
    for (int attempt = 0; attempt < 2; ++attempt) {
    vec2 both[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) both[i] = vec2(0.0);
#else
    const int attempt = 0;
#endif
    [[unroll]] for (int i = 0; i < ROWS * WIDE; ++i) sums[i] = vec4(0.0);
    for (int step = team * STEPS; step < inner; step += STEPS * TEAMS) {
        if (AHEAD == 0 || step != team * STEPS || attempt > 0) read_factors(weight, step, column);
        [[unroll]] for (int g = 0; g < SCALES; ++g) {
            vec4 parts[ROWS * WIDE];
            float values_sum[ROWS];
            [[unroll]] for (int i = 0; i < ROWS * WIDE; ++i) parts[i] = vec4(0.0);
            [[unroll]] for (int i = 0; i < ROWS; ++i) values_sum[i] = 0.0;
            [[unroll]] for (int s = 0; s < SHARING; ++s) {
                int k = step + g * SHARING + s;
                vec4 values[ROWS];
                [[unroll]] for (int i = 0; i < ROWS; ++i) {
                    values[i] = activation_at(sources[i], k, bases[i]);
#ifdef NORMALIZED
                    both[i] += both_of(values[i]);
                    if (HAS_GAINS != 0 && k < inner) values[i] *= LOAD_FLOATS4(gains, WORDS, k);
#endif
                    if (HAS_OFFSETS != 0) values_sum[i] += (values[i].x + values[i].y) + (values[i].z + values[i].w);
                }
                [[unroll]] for (int w = 0; w < WIDE; ++w)
                    [[unroll]] for (int c = 0; c < 4; ++c) {
                        ivec4 block = blocks[g * SHARING + s];
                        vec4 factors = integers_of(w == 0 ? block : block.zwxy, c);
                        [[unroll]] for (int i = 0; i < ROWS; ++i) parts[i * WIDE + w] += values[i][c] * factors;
                    }
            }
            [[unroll]] for (int w = 0; w < WIDE; ++w) {
                Scale scale = scale_vectors[g * WIDE + w];
                [[unroll]] for (int i = 0; i < ROWS; ++i) {
                    sums[i * WIDE + w] += parts[i * WIDE + w] * scale.factor;
                    if (HAS_OFFSETS != 0) sums[i * WIDE + w] += values_sum[i] * scale.offset;
                }
            }
        }
    }

    ADD_UP_TEAMS
#ifdef NORMALIZED
    if (team == 0)
        [[unroll]] for (int i = 0; i < ROWS; ++i) both_pool[i * INVOCATIONS + me] = both[i];
    barrier();
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        found[i] = statistics_of(both_pool[i * INVOCATIONS + me % COLUMNS]);
        if (found[i].is_far) is_some_row_far = true;
    }
    if (!is_some_row_far || attempt > 0) break;
    [[unroll]] for (int i = 0; i < ROWS; ++i) bases[i] = found[i].mean;
    barrier(); // the pools were read
    }
#endif
    if (GATED == 0 && !ends) return;
    [[unroll]] for (int w = 0; w < WIDE; ++w)
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
#ifdef NORMALIZED
            if (ends && column + w < columns)
                sums[i * WIDE + w] = normalized_sum(sums[i * WIDE + w], found[i].mean, found[i].scale, own_sums[w]);
#endif
            sums[i * WIDE + w] += bias[w];
        }
    if (GATED != 0) {
        STORE_GATED
        return;
    }
    [[unroll]] for (int w = 0; w < WIDE; ++w) {
        if (column + w >= columns) break;
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            int row = first_row + i;
            vec4 sum = finished(sums[i * WIDE + w], residuals[i * WIDE + w]);
            if (row < rows) store(result_index(batch, row, Pixel(0, 0, 0)) + column + w, sum);
        }
    }
}
