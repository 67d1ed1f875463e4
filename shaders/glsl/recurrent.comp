#version 450
// One step of a recurrent layer, or the projection of its states: states of the step before times a matrix, gates, and the new states.
// An invocation has four neighbouring units of one row (sequence) and direction; THREADS of them share the walk over the states before.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "activations.glsl"

layout(constant_id = 1) const int THREADS = 1;
layout(constant_id = 2) const int CELL = 0;
layout(constant_id = 3) const int UNITS = 4; // of the states that are made
layout(constant_id = 4) const int INNER = 4; // of those before

#include "cell.glsl"
const int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;

WRITES(0, states)
UPDATES(1, cells)
READS(2, gates)    // what the inputs add to each gate, with biases
READS(3, previous)
READS(4, weights)  // [direction, 4 states before, state, gate, 4 units]
READS(5, biases)   // of the new gate of a GRU, for the states before
shared vec4 partial[LOCAL_SIZE * GATES];

#include "recurrent_push.glsl"

const int UNIT_QUADS = (UNITS + 3) / 4, INNER_QUADS = (INNER + 3) / 4;

// Four states before times their weights for gate `g`.
#define ADD_GATE(g)                                                                                                    \
    {                                                                                                                  \
        sum[g] += h.x * intBitsToFloat(QUAD(weights, first + (g) * UNIT_QUADS));                                       \
        sum[g] += h.y * intBitsToFloat(QUAD(weights, first + (GATES + (g)) * UNIT_QUADS));                             \
        sum[g] += h.z * intBitsToFloat(QUAD(weights, first + (2 * GATES + (g)) * UNIT_QUADS));                         \
        sum[g] += h.w * intBitsToFloat(QUAD(weights, first + (3 * GATES + (g)) * UNIT_QUADS));                         \
    }

vec4 sigmoid(vec4 x) { return or_nan(gated(vec4(1.0), x), x); }

void main() {
    int local = int(gl_LocalInvocationID.x);
    int sharing = LOCAL_SIZE / THREADS;
    int thread = local / sharing;
    int item = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * sharing + local % sharing;
    bool exists = item < directions * rows * UNIT_QUADS;
    item = exists ? item : 0;
    int unit = item % UNIT_QUADS;
    int row = item / UNIT_QUADS % rows, direction = item / UNIT_QUADS / rows;
    int before = previous_start[direction] + row * previous_row;

    vec4 sum[GATES];
    for (int g = 0; g < GATES; ++g) sum[g] = vec4(0.0);
    for (int k = thread; k < INNER_QUADS; k += THREADS) {
        vec4 h = intBitsToFloat(QUAD(previous, before + k));
        if (INNER % 4 != 0) h = mix(vec4(0.0), h, lessThan(4 * k + ivec4(0, 1, 2, 3), ivec4(INNER)));
        int first = (direction * INNER_QUADS + k) * 4 * GATES * UNIT_QUADS + unit;
        ADD_GATE(0)
        if (GATES > 1) ADD_GATE(1 % GATES)
        if (GATES > 2) ADD_GATE(2 % GATES)
        if (GATES > 3) ADD_GATE(3 % GATES)
    }
    if (THREADS > 1) {
        for (int g = 0; g < GATES; ++g) partial[g * LOCAL_SIZE + local] = sum[g];
        for (int width = THREADS / 2; width > 0; width /= 2) {
            barrier();
            if (thread < width) {
                for (int g = 0; g < GATES; ++g) {
                    int at = g * LOCAL_SIZE + local;
                    partial[at] += partial[at + width * sharing];
                }
            }
        }
        for (int g = 0; g < GATES; ++g) sum[g] = partial[g * LOCAL_SIZE + local];
    }
    if (!exists || thread > 0) return;

    vec4 x[GATES];
    if (CELL != PROJECTION) {
        int at = gates_start[direction] + row * gates_row + direction * GATES * UNIT_QUADS + unit;
        for (int g = 0; g < GATES; ++g) x[g] = intBitsToFloat(QUAD(gates, at + g * UNIT_QUADS));
    }
    vec4 state = sum[0];
    if (CELL == RNN_TANH) state = hyperbolic_tangent(x[0] + sum[0]);
    if (CELL == RNN_RELU) state = or_nan(max(x[0] + sum[0], 0.0), x[0] + sum[0]);
    if (CELL == GRU) {
        vec4 reset = sigmoid(x[0] + sum[0]), update = sigmoid(x[1 % GATES] + sum[1 % GATES]);
        vec4 bias = intBitsToFloat(QUAD(biases, direction * UNIT_QUADS + unit));
        vec4 candidate = hyperbolic_tangent(x[2 % GATES] + reset * (sum[2 % GATES] + bias));
        state = (intBitsToFloat(QUAD(previous, before + unit)) - candidate) * update + candidate;
    }
    if (CELL == LSTM) {
        int cell = direction * cells_direction + row * cells_row + unit;
        vec4 kept = sigmoid(x[1 % GATES] + sum[1 % GATES]) * intBitsToFloat(cells_quads[cell]);
        kept += sigmoid(x[0] + sum[0]) * hyperbolic_tangent(x[2 % GATES] + sum[2 % GATES]);
        cells_quads[cell] = floatBitsToInt(kept);
        state = sigmoid(x[3 % GATES] + sum[3 % GATES]) * hyperbolic_tangent(kept);
    }
    states_quads[states_start[direction] + row * states_row + unit] = floatBitsToInt(state);
}
