#version 450
// Steps of a recurrent layer, or the projection of its states: states of the step before times a matrix, gates, and the new states.
// A workgroup has some units of ROWS rows (sequences) of one direction. An invocation has one of its units at a time; THREADS of them
// share the walk over the states before. A workgroup that has all units goes on to the next steps by itself: the states stay in its
// shared memory.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "activations.glsl"

layout(constant_id = 1) const int THREADS = 1;
layout(constant_id = 2) const int CELL = 0;
layout(constant_id = 3) const int UNITS = 4; // of the states that are made
layout(constant_id = 4) const int INNER = 4; // of those before
layout(constant_id = 5) const int ROWS = 1;
layout(constant_id = 6) const int PASSES = 1; // of a workgroup over its units
layout(constant_id = 7) const int KEPT = 0;   // vec4s of states, of which each thread has so many, whose weights an invocation with one unit keeps in registers
layout(constant_id = 8) const bool HOLDS = true; // whether the workgroup holds states; always if it goes on
layout(constant_id = 9) const int WEIGHT_FORM = WORDS;

#include "cell.glsl"
const int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;

WRITES(0, states)
UPDATES(1, cells)
READS(2, gates)    // what the inputs add to each gate, with biases
READS(3, previous) // the states before the first step
READS(4, weights)  // [direction, 8 units, 4 states before, gate, unit of the 8, 4]
READS(5, biases)   // of the new gate of a GRU, for the states before

#include "recurrent_push.glsl"

const int LANES = LOCAL_SIZE / THREADS;
const int INNER_QUADS = (INNER + 3) / 4;
const bool HAS_ALL_UNITS = PASSES * LANES >= UNITS;
const int UNITS_OF_GROUP = HAS_ALL_UNITS ? UNITS : PASSES * LANES;
const int BLOCKS = (UNITS + UNITS_OF_GROUP - 1) / UNITS_OF_GROUP;
const int FINISHED = (ROWS + THREADS - 1) / THREADS; // rows whose states an invocation makes

const int PLANE = ROWS * 4 * INNER_QUADS;
const bool GOES_ON = HAS_ALL_UNITS && UNITS == INNER; // with a projection, what is made isn't what the next step begins with
const int PLANES = GOES_ON ? 2 : 1;
#ifdef TEXELS
// CPU drivers read texels several times faster than shared memory, so there the states lie in a storage of the workgroup.
layout(set = 0, binding = 6, std430) coherent buffer Held { int held_words[]; };
layout(set = 0, binding = 7, rgba32i) coherent readonly uniform iimageBuffer held_quads;
#define HELD4(at) intBitsToFloat(imageLoad(held_quads, (at) >> 2))
#define HELD(at) intBitsToFloat(held_words[at])
#define SET_HELD(at, value) held_words[at] = floatBitsToInt(value)
#define EXCHANGE memoryBarrier(); barrier();
#else
shared float held[HOLDS ? PLANES * PLANE : 1];
#define HELD4(at) vec4(held[at], held[(at) + 1], held[(at) + 2], held[(at) + 3])
#define HELD(at) held[at]
#define SET_HELD(at, value) held[at] = value
#define EXCHANGE barrier();
#endif
shared vec4 partial[THREADS > 1 ? LOCAL_SIZE * ROWS : 1]; // a lane for each gate

vec4 sigmoid(vec4 x) { return or_nan(gated(vec4(1.0), x), x); }
float tangent(float x) { return hyperbolic_tangent(vec4(x)).x; }

int direction, thread, first_row;
int own = 0; // where the workgroup's states lie in its storage

// Where the states before of row `r` of the workgroup begin.
int previous_first(int r) { return previous_start[direction] + min(first_row + r, rows - 1) * previous_row; }

// Four states before the first step of row `r` of the workgroup.
vec4 previous_states(int r, int k) {
    vec4 h = intBitsToFloat(QUAD(previous, previous_first(r) / 4 + k));
    return INNER % 4 == 0 ? h : mix(vec4(0.0), h, lessThan(4 * k + ivec4(0, 1, 2, 3), ivec4(INNER)));
}

// What is made of sums of the gates, `x` of the inputs and `s` of the states.
float new_state(vec4 x, vec4 s, float old, float bias, inout float cell) {
    if (CELL == RNN_TANH) return tangent(x.x + s.x);
    if (CELL == RNN_RELU) return or_nan(max(x + s, vec4(0.0)), x + s).x;
    if (CELL == GRU) {
        vec4 gate = sigmoid(x + s); // reset and update
        float candidate = tangent(x.z + gate.x * (s.z + bias));
        return (old - candidate) * gate.y + candidate;
    }
    if (CELL == LSTM) {
        vec4 gate = sigmoid(x + s);
        cell = gate.y * cell + gate.x * tangent(x.z + s.z);
        return gate.w * tangent(cell);
    }
    return s.x;
}

#define WEIGHTS_OF(k, g) LOAD_FLOATS4(weights, WEIGHT_FORM, first + ((k) * GATES + (g)) * 8)
// Adds four states of each row times the weights `w` of gate `g`.
#define ADD_GATE(g, of)                                                                                                \
    if (GATES > (g)) {                                                                                                 \
        float sum = sums[r * GATES + (g) % GATES];                                                                     \
        sum += h.x * (of).x;                                                                                           \
        sum += h.y * (of).y;                                                                                           \
        sum += h.z * (of).z;                                                                                           \
        sum += h.w * (of).w;                                                                                           \
        sums[r * GATES + (g) % GATES] = sum;                                                                           \
    }
#define ADD_STATES(k, w0, w1, w2, w3)                                                                                  \
    for (int r = 0; r < ROWS; ++r) {                                                                                   \
        int at = plane + r * 4 * INNER_QUADS + 4 * (k);                                                                \
        vec4 h = HOLDS ? HELD4(at) : previous_states(r, k);                                                            \
        ADD_GATE(0, w0) ADD_GATE(1, w1) ADD_GATE(2, w2) ADD_GATE(3, w3)                                                \
    }

// Where the weights of a unit begin.
int first_weights(int unit) {
    return (direction * ((UNITS + 7) / 8) + unit / 8) * INNER_QUADS * GATES * 8 + unit % 8;
}

// What the inputs add to the gates of unit `unit` in step `step`, of the rows that this invocation finishes.
#define LOAD_INPUTS(x, step, unit)                                                                                     \
    for (int i = 0; i < FINISHED; ++i) {                                                                               \
        int at = gates_first + (step) * gates_stride + row_of(i) * gates_row + (unit);                                 \
        for (int g = 0; g < GATES; ++g)                                                                                \
            x[i * GATES + g] = CELL == PROJECTION ? 0.0 : intBitsToFloat(WORD(gates, at + g * gates_of_units));        \
    }
#define LOAD_CELLS(unit)                                                                                               \
    for (int i = 0; i < FINISHED; ++i)                                                                                 \
        cell[i] = CELL == LSTM ? intBitsToFloat(cells_words[cells_first + row_of(i) * cells_row + (unit)]) : 0.0;
#define STORE_CELLS(unit)                                                                                              \
    for (int i = 0; i < FINISHED; ++i)                                                                                 \
        if (CELL == LSTM && finishes(i)) cells_words[cells_first + row_of(i) * cells_row + (unit)] = floatBitsToInt(cell[i]);

// The row that this invocation finishes as its `i`-th, one that exists if it has none.
int row_of(int i) { return min(first_row + min(thread + i * THREADS, ROWS - 1), rows - 1); }
bool finishes(int i) { return thread + i * THREADS < ROWS && first_row + thread + i * THREADS < rows; }

void main() {
    int local = local_index();
    int lane = local % LANES;
    thread = local / LANES;
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
#ifdef TEXELS
    own = HOLDS ? group * PLANES * PLANE : 0;
#endif
    int row_groups = (rows + ROWS - 1) / ROWS;
    direction = group / BLOCKS / row_groups;
    if (direction >= directions) return;
    first_row = group / BLOCKS % row_groups * ROWS;
    int first_unit = group % BLOCKS * UNITS_OF_GROUP;

    for (int i = local; i < (HOLDS ? ROWS * INNER_QUADS : 0); i += LOCAL_SIZE) {
        vec4 h = previous_states(i / INNER_QUADS, i % INNER_QUADS);
        for (int c = 0; c < 4; ++c) {
            SET_HELD(own + 4 * i + c, h[c]);
            if (GOES_ON) SET_HELD(own + PLANE + 4 * i + c, 0.0); // what isn't a state stays so
        }
    }
    vec4 kept[KEPT > 0 ? KEPT * GATES : 1]; // as floats: to take halves apart in each step takes longer than it saves
    for (int i = 0; i < KEPT; ++i) {
        int first = first_weights(min(first_unit + lane, UNITS - 1)), k = thread + i * THREADS;
        for (int g = 0; g < GATES; ++g) kept[i * GATES + g] = WEIGHTS_OF(k, g);
    }
    EXCHANGE

    int gates_first = gates_start[direction], gates_stride = direction == 0 ? gates_step : -gates_step;
    int states_first = states_start[direction], states_stride = direction == 0 ? states_step : -states_step;
    int cells_first = direction * cells_direction;
    float x[FINISHED * GATES], next[FINISHED * GATES], cell[FINISHED];
    int unit = min(first_unit + lane, UNITS - 1);
    if (PASSES == 1) {
        LOAD_INPUTS(x, 0, unit)
        LOAD_CELLS(unit)
    }
    for (int step = 0; step < steps; ++step) {
        int plane = own + (GOES_ON ? (step & 1) * PLANE : 0);
        for (int pass = 0; pass < PASSES; ++pass) {
            int in_group = pass * LANES + lane;
            unit = min(first_unit + in_group, UNITS - 1);
            bool exists = in_group < UNITS_OF_GROUP && first_unit + in_group < UNITS;
            if (PASSES > 1) {
                LOAD_INPUTS(x, step, unit)
                LOAD_CELLS(unit)
            } else {
                LOAD_INPUTS(next, min(step + 1, steps - 1), unit)
            }

            float sums[ROWS * GATES];
            for (int i = 0; i < ROWS * GATES; ++i) sums[i] = 0.0;
            int first = first_weights(unit);
            for (int i = 0; i < KEPT; ++i) {
                int k = thread + i * THREADS;
                ADD_STATES(k, kept[i * GATES], kept[i * GATES + 1 % GATES], kept[i * GATES + 2 % GATES], kept[i * GATES + 3 % GATES])
            }
            for (int k = thread + KEPT * THREADS; k < INNER_QUADS; k += THREADS) {
                vec4 w0 = WEIGHTS_OF(k, 0), w1 = WEIGHTS_OF(k, 1 % GATES), w2 = WEIGHTS_OF(k, 2 % GATES), w3 = WEIGHTS_OF(k, 3 % GATES);
                ADD_STATES(k, w0, w1, w2, w3)
            }
            if (THREADS > 1) {
                for (int r = 0; r < ROWS; ++r)
                    partial[r * LOCAL_SIZE + local] = vec4(sums[r * GATES], sums[r * GATES + 1 % GATES], sums[r * GATES + 2 % GATES], sums[r * GATES + 3 % GATES]);
                barrier();
            }

            for (int i = 0; i < FINISHED; ++i) {
                int r = thread + i * THREADS;
                if (finishes(i) && exists) {
                    vec4 sum = vec4(0.0);
                    if (THREADS == 1) sum = vec4(sums[i * GATES], sums[i * GATES + 1 % GATES], sums[i * GATES + 2 % GATES], sums[i * GATES + 3 % GATES]);
                    else
                        for (int t = 0; t < THREADS; ++t) sum += partial[r * LOCAL_SIZE + t * LANES + lane];
                    vec4 inputs = vec4(x[i * GATES], x[i * GATES + 1 % GATES], x[i * GATES + 2 % GATES], x[i * GATES + 3 % GATES]);
                    float bias = CELL == GRU ? intBitsToFloat(WORD(biases, direction * gates_of_units + unit)) : 0.0;
                    float old = CELL != GRU ? 0.0 : HOLDS ? HELD(plane + r * 4 * INNER_QUADS + unit) : previous_states(r, unit / 4)[unit % 4];
                    float made = new_state(inputs, sum, old, bias, cell[i]);
                    states_words[states_first + step * states_stride + row_of(i) * states_row + unit] = floatBitsToInt(made);
                    if (GOES_ON) SET_HELD(2 * own + PLANE - plane + r * 4 * INNER_QUADS + unit, made);
                }
            }
            if (exists && (PASSES > 1 || step + 1 == steps)) STORE_CELLS(unit)
            if (PASSES == 1)
                for (int i = 0; i < FINISHED * GATES; ++i) x[i] = next[i];
            if (THREADS > 1 && PASSES > 1) barrier(); // before the next pass's sums
        }
        if (GOES_ON) {
            EXCHANGE
        }
    }
}
