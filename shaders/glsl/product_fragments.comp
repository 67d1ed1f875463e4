#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// As product_matrix.comp, without tiles: each subgroup reads the fragments of its operands straight from memory into the registers in which
// matrix units take them, so it waits for nobody until its sums are added to those of the other teams. An invocation has eight neighbours
// of the inner dimension of each line of its fragments (matrix_fragments.glsl); weights lie in the order in which it reads them. With SPLIT
// operands are floats, each of which is the sum of two halves (product_fragments_split.glsl).
#if !defined(EMULATED) && !defined(BFLOAT)
#define ROUNDS_HALVES // the devices whose order of fragments is known do
#endif
#define FORMS_ID 20
#include "product.glsl"
#ifdef SCALED
#include "product_scaling.glsl"
#endif
#ifdef NORMALIZED
#include "product_normalized.glsl"
#endif
#ifdef PLANAR
#include "product_planar.glsl"
#endif
#ifdef SHORTCUT
// vec4s of the inner dimension, its last, that are of another input: a convolution of single pixels whose result is added. It lies where a
// residual would, with the strides of that convolution.
layout(constant_id = FORMS_ID + 1) const int OTHER_INNER = 2;
#endif

layout(constant_id = 12) const int ROWS = 32;    // of a subgroup
layout(constant_id = 13) const int COLUMNS = 8;  // vec4s of a subgroup
layout(constant_id = 14) const int ACROSS = 1;   // subgroups side by side
layout(constant_id = 15) const int TEAMS = 8;    // of subgroups, which divide the inner dimension
layout(constant_id = 16) const int PARTS = 1;    // workgroups that share an element of the result
layout(constant_id = 17) const int INVOCATIONS = 256;
layout(constant_id = 18) const int DEPTH = 2;    // steps whose operands are on their way
layout(constant_id = 19) const int AHEAD = 0;    // whether the first weights are read before others have ended: they are constants
layout(local_size_x_id = 17, local_size_y = 1, local_size_z = 1) in;

#define RUN uvec4
const int VECTORS = 2; // vec4s of a run
const int M = 16, N = 16, K = 16;
const int BLOCK_ROWS = ROWS;
const int BLOCK_COLUMNS = ACROSS * COLUMNS;
const int TEAM_SIZE = ACROSS;
const int SUBGROUPS = TEAM_SIZE * TEAMS;
const int HIGH = ROWS / M;
const int WIDE = 4 * COLUMNS / N;
const int FLOATS = 1; // runs that four floats take
const int SUM_PITCH = COLUMNS + 1;
const int SUMS = M * SUM_PITCH; // of a row of fragments of a subgroup
const int SLOTS = TEAM_SIZE * M * COLUMNS; // vec4s of a row of fragments of all subgroups of a team
const int STORES = (SLOTS + INVOCATIONS - 1) / INVOCATIONS;

const int LINES = 2 * HIGH;  // rows of an invocation
const int EIGHTS = 2 * WIDE; // its columns
const int STEP = 4;          // runs of a step: those of four neighbours among the invocations

// Without teams, sums needn't go through shared memory; many of them would not fit the registers that storing takes besides.
const int KEEPS_SUMS = TEAMS > 1 ? 0 : HIGH * WIDE > 8 ? 0 : 1;
shared RUN pool[KEEPS_SUMS != 0 ? 1 : SUBGROUPS * SUMS];
int me = int(gl_LocalInvocationID.x);
#include "matrix_fragments.glsl"
#include "product_matrix_sums.glsl"

const int OUTSIDE = -1 << 28; // the place of a row that doesn't exist

// Places in what is read at once: runs of halves lie at even vec4s.
#if defined(SPLIT) || defined(PLANAR)
#define IN_LOADS(quads) (quads)
#else
#define IN_LOADS(quads) ((quads) >> 1)
#endif

int addresses[LINES]; // in loads
ivec2 places[LINES];
#ifdef SCALED
int row_scales[LINES];
#endif
int own_inner = SPATIAL != 0 ? taps_high * taps_wide * inner : inner;
#ifdef SHORTCUT
int other_addresses[LINES];
int total = (own_inner + OTHER_INNER) / VECTORS; // runs of the inner dimension
#else
int total = (own_inner + 1) / VECTORS;
#endif
int steps = (total + STEP - 1) / STEP;
int turns = (steps + PARTS * TEAMS - 1) / (PARTS * TEAMS); // of a subgroup
int first;                                                 // step of this subgroup
float per_channel = 1.0 / float(inner);
float per_tap_wide = 1.0 / float(taps_wide);

void find_row(int row, out ivec2 place, out int address) {
    place = ivec2(row < rows ? 0 : OUTSIDE);
    address = input_offset + batch * input_batch + row * input_pitch;
    if (SPATIAL != 0) {
        Pixel pixel = pixel_of(row);
        ivec2 own = ivec2(pixel.x * stride_wide + first_wide, pixel.y * stride_high + first_high);
        if (row < rows) place = own;
        address = input_offset + pixel.batch * input_batch + (own.y * width + own.x) * input_pitch;
    }
}

#ifdef SHORTCUT
int other_address(int row) {
    Pixel pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) pixel = pixel_of(row);
    return residual_index(batch, row, pixel);
}
#endif

void find_rows() {
    [[unroll]] for (int i = 0; i < LINES; ++i) {
        int row = block_row + i * 8 + line_of_lane();
        find_row(row, places[i], addresses[i]);
        addresses[i] = IN_LOADS(addresses[i]);
#ifdef SCALED
        row_scales[i] = scales_of(row);
#endif
#ifdef SHORTCUT
        other_addresses[i] = IN_LOADS(other_address(row));
#endif
    }
}

struct Reach {
    bool exists;
    int offset;
    ivec2 shift;
    bool is_tail; // the last of a row of taps, of which four halves exist if INNER_TAIL says so
    bool is_other; // of the other input
};

// What of the input is at place `vector` of the inner dimension, in vec4s.
Reach reach_at(int turn, int vector) {
    Reach reach = Reach(turn < turns, vector, ivec2(0), false, false);
#ifdef SHORTCUT
    if (vector >= own_inner) {
        int other = vector - own_inner;
        return Reach(turn < turns && other < OTHER_INNER, other, ivec2(0), false, true);
    }
#endif
    if (SPATIAL != 0) {
        // Exact: a quotient of numbers below 2^20 is further than that from a whole number.
        int index = int((float(vector) + 0.5) * per_channel);
        int high = int((float(index) + 0.5) * per_tap_wide);
        reach.shift = ivec2(index - high * taps_wide, high) * ivec2(dilation_wide, dilation_high);
        reach.offset += (reach.shift.y * width + reach.shift.x) * input_pitch - index * inner;
        reach.exists = reach.exists && high < taps_high;
        reach.is_tail = index + 1 == (high + 1) * taps_wide && vector + VECTORS == (index + 1) * inner;
    } else {
        reach.exists = reach.exists && vector < inner;
    }
    return reach;
}

// The first of a run that a turn reads.
Reach reach_of(int turn) { return reach_at(turn, ((first + turn * TEAMS) * STEP + run_of_lane()) * VECTORS); }

bool is_inside(ivec2 place, Reach reach) {
    if (PADDED == 0 || reach.is_other) return reach.exists && place.x > OUTSIDE;
    place += reach.shift;
    return reach.exists && uint(place.x) < uint(width) && uint(place.y) < uint(height);
}

// What a run of the input is on its way, and loads of weights in a step.
#ifdef SPLIT
#include "product_fragments_split.glsl"
#else
#define FETCHED RUN
#define NOTHING RUN(0)
#define FETCHED_AT(place) RUN(QUAD(activations, place))
#define OTHER_AT(place) RUN(QUAD(residuals, place))
#define CUT_TAIL(run, reach)                                                                                                     \
    if (INNER_TAIL != 0 && reach.is_tail) run.zw = uvec2(0);
const int FACTORS = EIGHTS;
#endif
#ifdef NORMALIZED
#include "product_fragments_normalized.glsl"
#endif
#if defined(SCALED) && !defined(SPLIT)
RUN scaled_run(RUN run, Scale lower, Scale upper) {
    return RUN(rounded_four(scaled(four_of(run.xy), lower)), rounded_four(scaled(four_of(run.zw), upper)));
}
#endif
#include "product_matrix_stores.glsl"

// Sums of nobody else are added: neighbours among the invocations exchange pairs, so that each has four columns of a line, and nobody waits.
void store_own() {
    int column = block_column + subgroup() * COLUMNS + columns_of_lane();
    ColumnEnd ends[WIDE];
    [[unroll]] for (int j = 0; j < WIDE; ++j) ends[j] = column_end(column + 4 * j < columns, column + 4 * j);
    Spot spots[2 * HIGH];
    ivec4 own_residuals[2 * HIGH * WIDE];
    [[unroll]] for (int i = 0; i < 2 * HIGH; ++i) {
        spots[i].row = block_row + i * 8 + line_of_lane();
        spots[i].pixel = Pixel(0, 0, 0);
        if (SPATIAL != 0) spots[i].pixel = pixel_of(spots[i].row);
        spots[i].column = column;
        spots[i].exists = spots[i].row < rows;
        int place = HAS_RESIDUAL != 0 ? residual_place(spots[i]) : 0;
        [[unroll]] for (int j = 0; j < WIDE; ++j) {
            own_residuals[i * WIDE + j] = ivec4(0);
            if (HAS_RESIDUAL != 0 && spots[i].exists && column + 4 * j < columns)
                own_residuals[i * WIDE + j] = residual_bits(place + 4 * j);
        }
    }
    [[unroll]] for (int i = 0; i < 2 * HIGH; ++i)
        [[unroll]] for (int j = 0; j < WIDE; ++j) {
            vec4 sum = four_columns(sums[i / 2 * WIDE + j], i % 2);
            Spot spot = spots[i];
            spot.column += 4 * j;
            if (spot.exists && spot.column < columns)
                store_ended(spot, ended(biased_sum(sum, spot, ends[j]), residual_of(own_residuals[i * WIDE + j])));
        }
}

#ifdef SPLIT
void store_plain() {
    for (int i = 0; i < HIGH; ++i)
        for (int slot = me; slot < SLOTS; slot += INVOCATIONS) {
            Spot spot = spot_of(i, slot);
            if (!spot.exists) continue;
            vec4 sum = plain_sum(spot);
            if (HAS_BIAS != 0) sum += BIAS(spot.column);
            store_ended(spot, ended(sum, residual_at(residual_place(spot))));
        }
}
#endif

// Two sets, by name: an index that isn't known before loops are unrolled puts arrays into local memory (NVIDIA).
FETCHED values[LINES], next_values[LINES];
RUN factors[FACTORS], next_factors[FACTORS];
int first_load; // of the weights of this subgroup

#ifdef PLANAR
// A run is two taps.
#define FETCH_VALUES(into, turn)                                                                                                 \
    {                                                                                                                            \
        Reach reach = reach_of(turn), next = reach_at(turn, 1 + ((first + (turn) * TEAMS) * STEP + run_of_lane()) * VECTORS);    \
        [[unroll]] for (int i = 0; i < LINES; ++i) {                                                                             \
            vec4 one = vec4(0.0), other = vec4(0.0);                                                                             \
            if (is_inside(places[i], reach)) one = planes_at(addresses[i] + reach.offset);                                       \
            if (is_inside(places[i], next)) other = planes_at(addresses[i] + next.offset);                                       \
            into[i] = RUN(rounded_four(one), rounded_four(other));                                                               \
        }                                                                                                                        \
    }
#else
#define FETCH_EACH(into, reach, value)                                                                                           \
    [[unroll]] for (int i = 0; i < LINES; ++i) {                                                                                 \
        into[i] = NOTHING;                                                                                                       \
        if (is_inside(places[i], reach)) into[i] = value;                                                                        \
        CUT_TAIL(into[i], reach)                                                                                                 \
    }
#ifdef SHORTCUT
// One branch for all rows: with one for each, their loads wait for each other.
#define FETCH_VALUES(into, turn)                                                                                                 \
    {                                                                                                                            \
        Reach reach = reach_of(turn);                                                                                            \
        if (reach.is_other) {                                                                                                    \
            FETCH_EACH(into, reach, OTHER_AT(other_addresses[i] + IN_LOADS(reach.offset)))                                       \
        } else {                                                                                                                 \
            FETCH_EACH(into, reach, FETCHED_AT(addresses[i] + IN_LOADS(reach.offset)))                                           \
        }                                                                                                                        \
    }
#else
#define FETCH_VALUES(into, turn)                                                                                                 \
    {                                                                                                                            \
        Reach reach = reach_of(turn);                                                                                            \
        FETCH_EACH(into, reach, FETCHED_AT(addresses[i] + IN_LOADS(reach.offset)))                                               \
    }
#endif
#endif
// A step of eight columns is one load of all invocations side by side, or two of halves that are split; `weight_pitch` counts those of a step.
// What lies behind the last columns is multiplied, too, and nobody stores it.
#define FETCH_FACTORS(into, turn)                                                                                                \
    {                                                                                                                            \
        int step = first + (turn) * TEAMS;                                                                                       \
        int place = (step * weight_pitch + first_load) * LANES_USED + lane();                                                    \
        [[unroll]] for (int j = 0; j < FACTORS; ++j) {                                                                           \
            into[j] = RUN(0);                                                                                                    \
            if ((turn) < turns && step < steps) into[j] = RUN(QUAD(weights, place + j * LANES_USED));                            \
        }                                                                                                                        \
    }
#define FETCH_FIRST_FACTORS                                                                                                      \
    {                                                                                                                            \
        FETCH_FACTORS(factors, 0)                                                                                                \
        if (DEPTH > 1) FETCH_FACTORS(next_factors, 1)                                                                            \
    }

// What becomes of values before they are multiplied: any earlier would be to wait for them.
#ifdef SCALED
// Rows of images that have no factors of their own share what the first of them reads. Where not even that one exists nothing is
// read: a workgroup that has come for instructions (code_ahead.py) may read weights alone.
#define PREPARE(of, turn)                                                                                                        \
    {                                                                                                                            \
        Reach reach = reach_of(turn);                                                                                            \
        Scale lower = Scale(vec4(0.0), vec4(0.0)), upper = lower;                                                                \
        [[unroll]] for (int i = 0; i < LINES; ++i) {                                                                             \
            bool inside = is_inside(places[i], reach);                                                                           \
            if (VARIES != 0 ? inside : i == 0 && reach.exists && places[0].x > OUTSIDE) {                                        \
                lower = scale_at(row_scales[i] + reach.offset);                                                                  \
                upper = scale_at(row_scales[i] + reach.offset + 1);                                                              \
            }                                                                                                                    \
            if (inside) of[i] = scaled_run(of[i], lower, upper);                                                                 \
        }                                                                                                                        \
    }
#elif defined(NORMALIZED)
#define PREPARE(of, turn)                                                                                                        \
    {                                                                                                                            \
        Reach reach = reach_of(turn);                                                                                            \
        [[unroll]] for (int i = 0; i < LINES; ++i) {                                                                             \
            if (from_bases && is_inside(places[i], reach)) of[i] = from_base(of[i], base_of(i * 8 + line_of_lane()));            \
            if (subgroup() % TEAM_SIZE == 0) both_met[i] += both_of_run(of[i]); /* the others have the same rows */              \
        }                                                                                                                        \
    }
#else
#define PREPARE(of, turn)
#endif

#ifndef SPLIT
// By the first or the second four of the eight neighbours that an invocation has of each line.
#define MULTIPLY_FOURS(rows_of, columns_of, four)                                                                                \
    {                                                                                                                            \
        Left left[HIGH];                                                                                                         \
        [[unroll]] for (int i = 0; i < HIGH; ++i) left[i] = left_of(rows_of[2 * i].four, rows_of[2 * i + 1].four);               \
        [[unroll]] for (int j = 0; j < WIDE; ++j) {                                                                              \
            Right right = right_of(columns_of[2 * j].four, columns_of[2 * j + 1].four);                                          \
            [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + j] = multiplied(left[i], right, sums[i * WIDE + j]);       \
        }                                                                                                                        \
    }
#define MULTIPLY(rows_of, columns_of)                                                                                            \
    MULTIPLY_FOURS(rows_of, columns_of, xy)                                                                                      \
    MULTIPLY_FOURS(rows_of, columns_of, zw)
// And has the operands that come next read.
#define TURN(rows_of, columns_of, turn)                                                                                          \
    {                                                                                                                            \
        PREPARE(rows_of, turn)                                                                                                   \
        MULTIPLY(rows_of, columns_of)                                                                                            \
        FETCH_VALUES(rows_of, turn + DEPTH)                                                                                      \
        FETCH_FACTORS(columns_of, turn + DEPTH)                                                                                  \
    }
#endif

// Of normalised rows from their bases on, or as they are. Which is known when this is compiled: what is changed on one path alone, drivers copy
// on the other.
void sum_products(bool from_bases) {
    [[unroll]] for (int i = 0; i < HIGH * WIDE; ++i) sums[i] = no_sums();
#if defined(SPLIT)
    forget_values();
#elif defined(NORMALIZED)
    forget_rows();
#endif
    FETCH_VALUES(values, 0)
    if (DEPTH > 1) FETCH_VALUES(next_values, 1)
    for (int turn = 0; turn < turns; turn += DEPTH) {
        TURN(values, factors, turn)
        if (DEPTH > 1) TURN(next_values, next_factors, turn + 1)
    }
}

void main() {
    first = part * TEAMS * turns + subgroup() / TEAM_SIZE;
    first_load = (block_column + subgroup() % TEAM_SIZE * COLUMNS) / VECTORS * (FACTORS / EIGHTS);
    find_rows();
    // Before the first barrier.
#if defined(SPLIT)
    begin_split();
#elif defined(NORMALIZED)
    if (me == 0) is_some_row_far = 0u;
#endif
    if (AHEAD != 0) FETCH_FIRST_FACTORS
    wait_for_operands();
    // Of what the loops read the bases depend on the wait, so the indices need not.
    int waited = after_wait;
    [[unroll]] for (int i = 0; i < LINES; ++i) {
        addresses[i] += waited;
#ifdef SCALED
        row_scales[i] += waited;
#endif
#ifdef SHORTCUT
        other_addresses[i] += waited;
#endif
    }
    if (AHEAD == 0) {
        first_load += waited;
        FETCH_FIRST_FACTORS
    }
    if (KEEPS_SUMS == 0) {
        READ_ENDS_EARLY
    }
    after_wait = 0;
#if defined(SPLIT)
    while (true) {
        sum_products(false);
        if (is_split_settled()) break;
        FETCH_FIRST_FACTORS
    }
#elif defined(NORMALIZED)
    sum_products(false);
    find_statistics();
    if (is_some_row_far != 0u) {
        begin_from_bases();
        FETCH_FIRST_FACTORS
        sum_products(true);
        find_statistics();
    }
#else
    sum_products(false);
#endif
    after_wait = waited;
#ifdef SPLIT
    if (is_plain) {
        store_plain();
        return;
    }
#endif
    if (KEEPS_SUMS != 0)
        store_own();
    else {
        READ_ENDS_LATE
        store_all();
    }
}
