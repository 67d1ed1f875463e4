#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Two layers of a few rows, for GPUs. Each workgroup computes all columns of the first one, which are few, keeps them in shared memory, and
// computes its own columns of the second one from them. Invocations read factors as in product_rows.comp; both layers have teams of their
// own, and weights of both are there when what is waited for is. A row may be the sum of several. Product.glsl's weights are the first layer's, its biases and its epilogue
// the second one's, and so are its columns and its pitch of weights; the first one's is FIRST_COLUMNS.
#define FORMS_ID 36
#include "product.glsl"

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 13) const int INVOCATIONS = 256;
layout(constant_id = 14) const int FIRST_COLUMNS = 4; // vec4s that the first layer makes, all of them
layout(constant_id = 15) const int FIRST_TEAMS = 64;  // a power of two; FIRST_COLUMNS * FIRST_TEAMS invocations have work
layout(constant_id = 16) const int FIRST_STEPS = 4;   // vec4s of the inner dimension that an invocation reads at a time
layout(constant_id = 17) const int COLUMNS = 16;      // vec4s of a workgroup; COLUMNS * TEAMS invocations have work
layout(constant_id = 18) const int TEAMS = 16;
layout(constant_id = 19) const int STEPS = 1;
layout(constant_id = 20) const int AHEAD = 0;       // whether the first weights of both are read before others have ended: they are constants
layout(constant_id = 21) const int MIDDLE_TAIL = 0; // elements of the last vec4 between the layers, 0 if it is full
layout(constant_id = 22) const int FIRST_HAS_BIAS = 0;
layout(constant_id = 23) const int FIRST_END = MOVE; // what becomes of the first layer's sums
layout(constant_id = 24) const float FIRST_END_FIRST = 0.0;
layout(constant_id = 25) const float FIRST_END_SECOND = 0.0;
layout(constant_id = 26) const int SECOND_WEIGHT_FORM = 0;
layout(constant_id = 27) const int ADDENDS = 1;     // lines of the input that are added up to a row
layout(constant_id = 28) const int SUMMED = 1;      // their vec4s, if there are several
layout(constant_id = 29) const int SUMMING = 1;     // invocations that share a vec4 of them: a power of two
layout(constant_id = 30) const int FIRST_AFTER = MOVE; // what becomes of that
layout(constant_id = 31) const float FIRST_AFTER_FIRST = 0.0;
layout(constant_id = 32) const float FIRST_AFTER_SECOND = 0.0;
layout(constant_id = 33) const int GIVEN = MOVE;    // what becomes of the rows before
layout(constant_id = 34) const float GIVEN_FIRST = 0.0;
layout(constant_id = 35) const float GIVEN_SECOND = 0.0;
layout(local_size_x_id = 13, local_size_y = 1, local_size_z = 1) in;

READS(5, second_weights)
READS(6, first_biases)
#define SECOND_WEIGHT(index) LOAD_FLOATS4(second_weights, SECOND_WEIGHT_FORM, index)
#define FIRST_BIAS(index) LOAD_FLOATS4(first_biases, WORDS, index)

const int TEAMS_AT_ONCE = 4; // see teams.glsl

shared vec4 pool[ROWS * INVOCATIONS];
shared vec4 middle[ROWS * FIRST_COLUMNS];
shared vec4 added[ADDENDS > 1 ? ROWS * SUMMED : 1];

vec4 first_factors[4 * FIRST_STEPS];
vec4 factors[4 * STEPS];
vec4 sums[ROWS];

// The weights of one turn from `step` on; zeros where there are none.
void read_first_factors(int step, int column) {
    int lines = 4 * inner - (INNER_TAIL != 0 ? 4 - INNER_TAIL : 0);
    [[unroll]] for (int s = 0; s < FIRST_STEPS; ++s) {
        int k = step + s * FIRST_TEAMS;
        [[unroll]] for (int c = 0; c < 4; ++c) {
            bool inside = k < inner && (INNER_TAIL == 0 || 4 * k + c < lines);
            first_factors[4 * s + c] = inside ? WEIGHT((4 * k + c) * FIRST_COLUMNS + column) : vec4(0.0);
        }
    }
}

void read_factors(int step, int column) {
    [[unroll]] for (int s = 0; s < STEPS; ++s) {
        int k = step + s * TEAMS;
        bool exists = column < columns && k < FIRST_COLUMNS;
        [[unroll]] for (int c = 0; c < 4; ++c)
            factors[4 * s + c] = exists ? SECOND_WEIGHT((4 * k + c) * weight_pitch + column) : vec4(0.0);
    }
}

// The first of some teams, of `across` invocations each, adds up the sums of all of them; invocations beyond have teams that don't count.
// What is written isn't what was read before, so one barrier a stage is enough.
void add_up(int me, int team, int teams, int across) {
    [[unroll]] for (int left = teams; left > 1; left = left > TEAMS_AT_ONCE ? left / TEAMS_AT_ONCE : 1) {
        int next = left > TEAMS_AT_ONCE ? left / TEAMS_AT_ONCE : 1;
        if (team >= next && team < left)
            [[unroll]] for (int i = 0; i < ROWS; ++i) pool[i * INVOCATIONS + me] = sums[i];
        barrier();
        if (team < next)
            [[unroll]] for (int t = 1; t < left / next; ++t)
                [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] += pool[i * INVOCATIONS + me + t * next * across];
    }
}

vec4 given(vec4 value) { return exact_activation(GIVEN, value, GIVEN_FIRST, GIVEN_SECOND); }

// Adds up the lines of each row; leaves `sums` at zero.
void add_lines(int me) {
    int team = me / SUMMED, k = me % SUMMED;
    for (int line = team; line < (team < SUMMING ? ADDENDS : 0); line += SUMMING)
        [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] += ACTIVATION(input_offset + min(i, rows - 1) * input_pitch + line * SUMMED + k);
    add_up(me, team, SUMMING, SUMMED);
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        if (team == 0) added[i * SUMMED + k] = given(sums[i]);
        sums[i] = vec4(0.0);
    }
    barrier();
}

void main() {
    int me = int(gl_LocalInvocationID.x);
    int first_team = me / FIRST_COLUMNS;
    int first_column = me % FIRST_COLUMNS;
    int first_step = first_team < FIRST_TEAMS ? first_team : inner;
    int team = me / COLUMNS;
    int column = int(gl_WorkGroupID.x) * COLUMNS + me % COLUMNS;
    int second_step = team < TEAMS ? team : FIRST_COLUMNS;
    if (AHEAD != 0) {
        read_first_factors(first_step, first_column);
        read_factors(second_step, column);
    }
    wait_for_operands();
    int sources[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) sources[i] = input_offset + min(i, rows - 1) * input_pitch;

    // What the ends need is read first, so that they wait for nothing then.
    vec4 first_bias = FIRST_HAS_BIAS != 0 && first_team == 0 ? FIRST_BIAS(first_column) : vec4(0.0);
    bool ends = team == 0 && column < columns;
    vec4 bias = HAS_BIAS != 0 && ends ? BIAS(column) : vec4(0.0);
    vec4 residuals[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        residuals[i] = vec4(0.0);
        if (ends && i < rows) residuals[i] = residual_at(residual_offset + i * residual_pitch + column);
        sums[i] = vec4(0.0);
    }
    if (ADDENDS > 1) add_lines(me);

    for (int step = first_step; step < inner; step += FIRST_STEPS * FIRST_TEAMS) {
        if (AHEAD == 0 || step != first_step) read_first_factors(step, first_column);
        vec4 values[ROWS * FIRST_STEPS];
        [[unroll]] for (int s = 0; s < FIRST_STEPS; ++s) {
            int k = step + s * FIRST_TEAMS;
            [[unroll]] for (int i = 0; i < ROWS; ++i) {
                vec4 value = vec4(0.0);
                if (k < inner) value = ADDENDS > 1 ? added[i * SUMMED + k] : given(ACTIVATION(sources[i] + k));
                values[i * FIRST_STEPS + s] = INNER_TAIL != 0 && k == inner - 1 ? head(value, INNER_TAIL) : value;
            }
        }
        [[unroll]] for (int s = 0; s < FIRST_STEPS; ++s)
            [[unroll]] for (int c = 0; c < 4; ++c)
                [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] += values[i * FIRST_STEPS + s][c] * first_factors[4 * s + c];
    }
    add_up(me, first_team, FIRST_TEAMS, FIRST_COLUMNS);
    if (first_team == 0)
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            vec4 value = exact_activation(FIRST_END, sums[i] + first_bias, FIRST_END_FIRST, FIRST_END_SECOND);
            value = exact_activation(FIRST_AFTER, value, FIRST_AFTER_FIRST, FIRST_AFTER_SECOND);
            bool is_last = MIDDLE_TAIL != 0 && first_column == FIRST_COLUMNS - 1;
            middle[i * FIRST_COLUMNS + first_column] = is_last ? head(value, MIDDLE_TAIL) : value;
        }
    barrier();

    [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i] = vec4(0.0);
    for (int step = second_step; step < FIRST_COLUMNS; step += STEPS * TEAMS) {
        if (AHEAD == 0 || step != second_step) read_factors(step, column);
        [[unroll]] for (int s = 0; s < STEPS; ++s) {
            int k = step + s * TEAMS;
            [[unroll]] for (int i = 0; i < ROWS; ++i) {
                vec4 value = k < FIRST_COLUMNS ? middle[i * FIRST_COLUMNS + k] : vec4(0.0);
                [[unroll]] for (int c = 0; c < 4; ++c) sums[i] += value[c] * factors[4 * s + c];
            }
        }
    }
    add_up(me, team, TEAMS, COLUMNS);
    if (!ends) return;
    [[unroll]] for (int i = 0; i < ROWS; ++i) {
        vec4 sum = finished(sums[i] + bias, residuals[i]);
        if (i < rows) store(out_offset + i * out_pitch + column, sum);
    }
}
