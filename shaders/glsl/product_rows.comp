#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// A few rows times a matrix, for GPUs. Each factor is used for so few sums that reading the factors from memory is all that takes time, and
// shared memory would only stand between: invocations read them straight into registers, STEPS x 4 vec4s at a time. COLUMNS invocations
// that lie side by side read neighbouring vec4s; TEAMS of them share the inner dimension, and add their sums up in shared memory.
#define FORMS_ID 19
#include "product.glsl"
#ifdef NORMALIZED
#include "product_normalized.glsl"
#endif

layout(constant_id = 12) const int ROWS = 1;          // of a workgroup
layout(constant_id = 13) const int COLUMNS = 4;       // vec4s of a workgroup
layout(constant_id = 14) const int TEAMS = 64;        // a power of two
layout(constant_id = 15) const int STEPS = 2;         // vec4s of the inner dimension that an invocation reads at a time
layout(constant_id = 16) const int INVOCATIONS = 256; // COLUMNS * TEAMS
layout(constant_id = 17) const int AHEAD = 0;         // whether the first weights are read before others have ended: they are constants
layout(constant_id = 18) const int GATED = 0;         // see gates.glsl
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

#define SUMS_OF_A_ROW 1
#include "teams.glsl"
#include "gates.glsl"

vec4 factors[4 * STEPS];

// The weights of one turn from `step` on, of which vec4 0 of the inner dimension is at `weight`; zeros where there are none.
void read_factors(int weight, int step, int column) {
    int lines = 4 * inner - (INNER_TAIL != 0 ? 4 - INNER_TAIL : 0);
    [[unroll]] for (int s = 0; s < STEPS; ++s) {
        int k = step + s * TEAMS;
        bool exists = column < columns && k < inner;
        [[unroll]] for (int c = 0; c < 4; ++c) {
            bool inside = exists && (INNER_TAIL == 0 || 4 * k + c < lines);
            factors[4 * s + c] = inside ? WEIGHT(weight + (4 * k + c) * weight_pitch) : vec4(0.0);
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationID.x);
    int team = me / COLUMNS;
    int column = int(gl_WorkGroupID.x) * COLUMNS + me % COLUMNS;
    int first_row = start_row + int(gl_WorkGroupID.y) * ROWS;
    int batch = int(gl_WorkGroupID.z);
    int weight = weight_offset + batch * weight_batch + column;
    if (AHEAD != 0) read_factors(weight, team, column);
    wait_for_operands();
    int sources[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i)
        sources[i] = input_offset + batch * input_batch + min(first_row + i, rows - 1) * input_pitch;

    // What the end needs is read first, so that it waits for nothing then.
    bool ends = team == 0 && column < columns;
    vec4 bias = HAS_BIAS != 0 && ends ? BIAS(column) : vec4(0.0);
#ifdef NORMALIZED
    vec4 column_sum = ends ? column_sum_at(column) : vec4(0.0);
#endif
    vec4 residuals[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        int row = first_row + i;
        residuals[i] = vec4(0.0);
        if (ends && row < rows) residuals[i] = residual_at(residual_index(batch, row, Pixel(0, 0, 0)) + column);
    }

    vec4 sums[ROWS];
#ifdef NORMALIZED
    float bases[ROWS];
    RowStatistics found[ROWS];
    bool is_some_row_far = false;
    [[unroll]] for (int i = 0; i < ROWS; ++i) bases[i] = 0.0;
    for (int attempt = 0; attempt < 2; ++attempt) {
    vec2 both[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) both[i] = vec2(0.0);
#else
    const int attempt = 0;
#endif
    [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] = vec4(0.0);
    for (int step = team; step < inner; step += STEPS * TEAMS) {
        if (AHEAD == 0 || step != team || attempt > 0) read_factors(weight, step, column);
        vec4 values[ROWS * STEPS];
        [[unroll]] for (int s = 0; s < STEPS; ++s) {
            int k = step + s * TEAMS;
            [[unroll]] for (int i = 0; i < ROWS; ++i) {
                vec4 value = k < inner ? ACTIVATION(sources[i] + k) : vec4(0.0);
#ifdef NORMALIZED
                if (attempt > 0 && k < inner) value -= bases[i];
#endif
                values[i * STEPS + s] = INNER_TAIL != 0 && k == inner - 1 ? head(value, INNER_TAIL) : value;
#ifdef NORMALIZED
                both[i] += both_of(values[i * STEPS + s]);
#endif
            }
        }
        [[unroll]] for (int s = 0; s < STEPS; ++s)
            [[unroll]] for (int c = 0; c < 4; ++c)
                [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] += values[i * STEPS + s][c] * factors[4 * s + c];
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
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
#ifdef NORMALIZED
        if (ends) sums[i] = normalized_sum(sums[i], found[i].mean, found[i].scale, column_sum);
#endif
        sums[i] += bias;
    }
    if (GATED != 0) {
        STORE_GATED
        return;
    }
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        int row = first_row + i;
        vec4 sum = finished(sums[i], residuals[i]);
        if (row < rows) store(result_index(batch, row, Pixel(0, 0, 0)) + column, sum);
    }
}
