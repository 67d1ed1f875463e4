#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM of halves by matrix units (VK_KHR_cooperative_matrix), with sums in float32. As product_shared.comp, from which the
// walk is: a workgroup computes BLOCK_ROWS x BLOCK_COLUMNS vec4s from tiles in shared memory, and fetches the next tiles into registers
// while it multiplies. A subgroup computes ROWS x COLUMNS vec4s by fragments of M x N elements. Operands are copied as the bits that they
// are, one RUN of halves at a time: eight, or four where places of eight don't line up. With SPLIT operands are floats, each of
// which is the sum of two halves (product_split.glsl).
#if defined(SPLIT) && defined(NORMALIZED)
#define ATTEMPTS 3 // other bases may want other scales
#elif defined(SPLIT) || defined(NORMALIZED)
#define ATTEMPTS 2
#endif
#ifdef SPLIT
#define FORMS_ID 27
layout(constant_id = 25) const int COLUMN_TAIL = 0; // of the last vec4 of columns, 0 if it is full, or what is beside it is zero
layout(constant_id = 26) const int IS_WEIGHT_SPLIT = 0; // weights lie as halves: four high ones, then four low ones
#else
#define FORMS_ID 25
#endif
#include "product.glsl"
#ifdef SCALED
#include "product_scaling.glsl"
#endif
#ifdef NORMALIZED
#include "product_normalized.glsl"
#endif
#ifdef PLANAR
#define NARROW // a run is a tap
#include "product_planar.glsl"
#endif

layout(constant_id = 12) const int BLOCK_ROWS = 64;
layout(constant_id = 13) const int BLOCK_COLUMNS = 16; // vec4s
layout(constant_id = 14) const int ROWS = 32;          // of a subgroup
layout(constant_id = 15) const int COLUMNS = 8;        // vec4s of a subgroup
layout(constant_id = 16) const int INNER_BLOCK = 16;   // vec4s; their runs divide INVOCATIONS, as those of BLOCK_COLUMNS do
layout(constant_id = 17) const int TEAMS = 1;          // of subgroups, which share a tile
layout(constant_id = 18) const int PARTS = 1;          // workgroups that share an element of the result
layout(constant_id = 19) const int INVOCATIONS = 128;
layout(constant_id = 20) const int BUFFERS = 2; // of tiles: with one, a step needs two barriers
layout(constant_id = 21) const int M = 16;
layout(constant_id = 22) const int N = 16;
layout(constant_id = 23) const int K = 16;
layout(constant_id = 24) const int AHEAD = 0; // whether the first weights are read before others have ended: they are constants
layout(local_size_x_id = 19, local_size_y = 1, local_size_z = 1) in;

#ifdef NARROW
#define RUN uvec2
const int VECTORS = 1; // vec4s of a run
#else
#define RUN uvec4
const int VECTORS = 2;
#endif

// All sizes of shared memory count runs. A pitch keeps 16 bytes free, so that rows are in different banks.
const int SPARE = 2 / VECTORS;
const int INNER_RUNS = INNER_BLOCK / VECTORS;
const int COLUMN_RUNS = BLOCK_COLUMNS / VECTORS;
const int VALUE_PITCH = INNER_RUNS + SPARE;
const int FACTOR_PITCH = COLUMN_RUNS + SPARE;
const int VALUES = BLOCK_ROWS * VALUE_PITCH;
const int FACTORS = 4 * INNER_BLOCK * FACTOR_PITCH;
const int TILE_PAIR = VALUES + FACTORS;
#ifdef SPLIT
const int TILES = 2 * TILE_PAIR; // of the high halves, then of the low ones
#else
const int TILES = TILE_PAIR;
#endif

const int ACROSS = BLOCK_COLUMNS / COLUMNS;
const int TEAM_SIZE = ACROSS * (BLOCK_ROWS / ROWS); // subgroups
const int SUBGROUPS = TEAM_SIZE * TEAMS;
const int HIGH = ROWS / M;
const int WIDE = 4 * COLUMNS / N;
const int STEPS = 4 * INNER_BLOCK / (K * TEAMS); // along the inner dimension, of a subgroup in a tile
const int FLOATS = 2 / VECTORS; // runs that four floats take
const int SUM_PITCH = COLUMNS * FLOATS + SPARE;
const int SUMS = M * SUM_PITCH; // of a row of fragments of a subgroup

const int SLOTS = TEAM_SIZE * M * COLUMNS; // vec4s of a row of fragments of all subgroups of a team
const int STORES = (SLOTS + INVOCATIONS - 1) / INVOCATIONS;

const int VALUE_SLOTS = BLOCK_ROWS * INNER_RUNS;
const int VALUE_FETCHES = (VALUE_SLOTS + INVOCATIONS - 1) / INVOCATIONS;
const int FACTOR_SLOTS = 4 * INNER_BLOCK * COLUMN_RUNS;
const int FACTOR_FETCHES = (FACTOR_SLOTS + INVOCATIONS - 1) / INVOCATIONS;

// Tiles of values (row, inner) and factors (inner, column); at the end sums.
shared RUN pool[BUFFERS * TILES > SUBGROUPS * SUMS ? BUFFERS * TILES : SUBGROUPS * SUMS];

int me = int(gl_LocalInvocationID.x);
#include "matrix_units.glsl"

// What a run is in registers, on its way from memory to a tile: LINE_OF(name, FORM, index) reads it, keep_value and keep_factor put it there.
#ifdef SPLIT
#include "product_split.glsl"
#else
#define FETCHED RUN
#ifdef NARROW
#define LINE_OF(name, form, index) uvec2(PAIR(name, index))
#else
#define LINE_OF(name, form, index) uvec4(QUAD(name, (index) >> 1))
#endif
#define NOTHING RUN(0)

void keep_value(int place, RUN run) { pool[place] = run; }
void keep_factor(int place, RUN run) { pool[place] = run; }

RUN head_of(RUN run, int count) {
    run.x &= count == 1 ? 0xffffu : ~0u;
    run.y &= count == 3 ? 0xffffu : 0u;
    return run;
}

#ifdef PLANAR
RUN planar_run(int place) { return rounded_four(planes_at(place)); }
#endif
#ifdef SCALED
RUN scaled_run(RUN run, int index) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v) {
        uvec2 halves = rounded_four(scaled(four_of(uvec2(run[2 * v], run[2 * v + 1])), index + v));
        run[2 * v] = halves.x;
        run[2 * v + 1] = halves.y;
    }
    return run;
}
#endif
#endif
#ifdef PLANAR
#define VALUE_RUN(place) planar_run(place)
#else
#define VALUE_RUN(place) LINE_OF(activations, ACTIVATION_FORM, place)
#endif

const int OUTSIDE = -1 << 28; // the place of a row that doesn't exist

// What this invocation fetches: one run of the inner dimension in VALUE_FETCHES rows, and one of columns in FACTOR_FETCHES lines.
int row_addresses[VALUE_FETCHES];
ivec2 row_places[VALUE_FETCHES];
#ifdef SCALED
int row_scales[VALUE_FETCHES];
#endif
int channel;
ivec2 tap;
int weight_address;
int waited = 0; // of what the loops read the bases depend on the wait, so the indices need not
int line;
int line_end;
FETCHED fetched_values[VALUE_FETCHES];
FETCHED fetched_factors[FACTOR_FETCHES];
#ifdef NORMALIZED
#include "product_matrix_normalized.glsl"
#endif

void find_rows(int origin, int block_row) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int row = block_row + (me + i * INVOCATIONS) / INNER_RUNS;
        bool exists = row < rows && me + i * INVOCATIONS < VALUE_SLOTS;
        row_places[i] = ivec2(exists ? 0 : OUTSIDE);
        row_addresses[i] = origin + row * input_pitch;
#ifdef SCALED
        row_scales[i] = scales_of(row);
#endif
        if (SPATIAL != 0) {
            Pixel pixel = pixel_of(row);
            ivec2 place = ivec2(pixel.x * stride_wide + first_wide, pixel.y * stride_high + first_high);
            if (exists) row_places[i] = place;
            row_addresses[i] = origin + pixel.batch * input_batch + (place.y * width + place.x) * input_pitch;
        }
    }
}

void fetch_values(int start, int end) {
    ivec2 shift = tap * ivec2(dilation_wide, dilation_high);
    int offset = SPATIAL != 0 ? channel + (shift.y * width + shift.x) * input_pitch : channel;
    bool exists = start + me % INNER_RUNS * VECTORS < end;
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        bool inside = exists && row_places[i].x > OUTSIDE;
        if (PADDED != 0) {
            ivec2 place = row_places[i] + shift;
            inside = exists && uint(place.x) < uint(width) && uint(place.y) < uint(height);
        }
        fetched_values[i] = NOTHING;
        if (inside) fetched_values[i] = VALUE_RUN(row_addresses[i] + offset);
#ifdef SCALED
        if (inside) fetched_values[i] = scaled_run(fetched_values[i], row_scales[i] + channel);
#endif
#ifdef NARROW
        if (INNER_TAIL != 0 && channel == inner - 1) fetched_values[i] = head_of(fetched_values[i], INNER_TAIL);
#endif
    }
#ifdef NORMALIZED
    is_inside = exists;
    is_last = channel == inner - 1;
#endif
#ifdef PLANAR
    tap = tap_after(tap, INNER_BLOCK);
#else
    channel += INNER_BLOCK;
    while (SPATIAL != 0 && channel >= inner) {
        channel -= inner;
        ++tap.x;
        if (tap.x == taps_wide) tap = ivec2(0, tap.y + 1);
    }
#endif
}

void fetch_factors(bool has_column) {
    [[unroll]] for (int i = 0; i < FACTOR_FETCHES; ++i) {
        int step = i * (INVOCATIONS / COLUMN_RUNS);
        bool inside = has_column && line + step < line_end && me + i * INVOCATIONS < FACTOR_SLOTS;
        fetched_factors[i] = NOTHING;
        if (inside) fetched_factors[i] = LINE_OF(weights, WEIGHT_FORM, weight_address + step * weight_pitch);
#ifdef SPLIT
        if (COLUMN_TAIL != 0 && is_tail) fetched_factors[i] = head_of(fetched_factors[i], COLUMN_TAIL);
#endif
    }
    line += 4 * INNER_BLOCK;
    weight_address += 4 * INNER_BLOCK * weight_pitch;
}

void keep(int tiles) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
#ifdef NORMALIZED
        if (has_bases) move_to_base(i);
        meet(i, fetched_values[i]);
#endif
        if (slot < VALUE_SLOTS) keep_value(tiles + slot / INNER_RUNS * VALUE_PITCH + slot % INNER_RUNS, fetched_values[i]);
    }
    [[unroll]] for (int i = 0; i < FACTOR_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot < FACTOR_SLOTS)
            keep_factor(tiles + VALUES + slot / COLUMN_RUNS * FACTOR_PITCH + slot % COLUMN_RUNS, fetched_factors[i]);
    }
}

#include "product_matrix_sums.glsl"

// The part of the whole inner dimension that this workgroup sums over, in vec4s.
int total = SPATIAL != 0 ? taps_high * taps_wide * inner : inner;
int share = ((total + PARTS * INNER_BLOCK - 1) / (PARTS * INNER_BLOCK)) * INNER_BLOCK;
int first = part * share;
int end = min(first + share, total);
int inputs = input_offset + batch * input_batch + group * inner; // where they begin

#ifdef SPLIT
// Where sums of halves can't tell: what product_shared.comp would sum up.
vec4 plain_sum(Spot spot) {
    ivec2 place = ivec2(spot.pixel.x * stride_wide + first_wide, spot.pixel.y * stride_high + first_high);
    int address = inputs + spot.row * input_pitch;
    if (SPATIAL != 0) address = inputs + spot.pixel.batch * input_batch + (place.y * width + place.x) * input_pitch;
    int weight = weight_offset + batch * weight_batch + spot.column;
    vec4 sum = vec4(0.0);
    for (int step = first; step < end; ++step) {
        int index = SPATIAL != 0 ? step / inner : 0;
        int own = step - index * inner;
        ivec2 shift = ivec2(index % taps_wide * dilation_wide, index / taps_wide * dilation_high);
        if (SPATIAL == 0) shift = ivec2(0);
        bool inside = PADDED == 0 || (uint(place.x + shift.x) < uint(width) && uint(place.y + shift.y) < uint(height));
        vec4 value = vec4(0.0);
        if (inside) value = ACTIVATION(address + (shift.y * width + shift.x) * input_pitch + own);
#ifdef SCALED
        if (inside) value = scaled(value, scales_of(spot.row) + own);
#endif
#ifdef NORMALIZED
        if (has_bases) value -= base_of(spot.row - block_row);
#endif
        bool partial = INNER_TAIL != 0 && own == inner - 1;
        if (partial) value = head(value, INNER_TAIL);
        [[unroll]] for (int c = 0; c < 4; ++c)
            if (SPATIAL != 0 || !partial || c < INNER_TAIL) sum += value[c] * factor_at(weight + (4 * step + c) * weight_pitch);
    }
    return sum;
}

vec4 whole_sum(vec4 sum, Spot spot) { return is_plain ? plain_sum(spot) : sum * (UNSCALING(VALUE) * UNSCALING(FACTOR)); }
#endif

#include "product_matrix_stores.glsl"

// Has fetches begin at the first of the inner dimension.
void rewind(int column) {
    channel = first + me % INNER_RUNS * VECTORS;
    tap = ivec2(0);
    if (SPATIAL != 0) {
        int index = channel / inner;
        channel -= index * inner;
        tap = ivec2(index % taps_wide, index / taps_wide);
    }
    line = 4 * first + me / COLUMN_RUNS;
    weight_address = weight_offset + batch * weight_batch + line * weight_pitch + base_column + column;
    if (AHEAD == 0) weight_address += waited;
}

#ifdef ATTEMPTS
// Whether sums are what they should be, or can't be better; else there is what another attempt needs. All invocations together.
bool is_done(int attempt) {
    bool done = true;
#ifdef NORMALIZED
    find_statistics();
    done = !are_bases_missing();
#endif
    if (attempt == ATTEMPTS) return true;
#ifdef SPLIT
    done = is_settled() && done;
#endif
#ifdef NORMALIZED
    if (are_bases_missing()) begin_from_bases();
#endif
    return done;
}
#endif

void main() {
    find_rows(inputs, block_row);
    int column = block_column + me % COLUMN_RUNS * VECTORS;
    bool has_column = column < own_columns;
#ifdef SPLIT
    is_tail = column + VECTORS == own_columns;
#endif
    line_end = 4 * end;
    if (SPATIAL == 0 && INNER_TAIL != 0) line_end = min(line_end, 4 * inner - 4 + INNER_TAIL);

    int team = subgroup() / TEAM_SIZE;
    int member = subgroup() % TEAM_SIZE;
    int my_row = member / ACROSS * ROWS;
    int my_run = member % ACROSS * COLUMNS / VECTORS;

#ifdef SPLIT
    begin_split();
#endif
#ifdef NORMALIZED
    if (me == 0) is_some_row_far = 0u;
#endif
    rewind(column);
    if (AHEAD != 0) fetch_factors(has_column);
    wait_for_operands();
    READ_ENDS_EARLY
    waited = after_wait;
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        row_addresses[i] += waited;
#ifdef SCALED
        row_scales[i] += waited;
#endif
    }
    if (AHEAD == 0) weight_address += waited;
    after_wait = 0;
#ifdef ATTEMPTS
    for (int attempt = 1;; ++attempt) {
        if (attempt > 1) rewind(column);
#else
    const int attempt = 1;
#endif
    [[unroll]] for (int i = 0; i < HIGH * WIDE; ++i) sums[i] = no_sums();
#ifdef NORMALIZED
    forget_rows();
#endif
    fetch_values(first, end);
    if (AHEAD == 0 || attempt > 1) fetch_factors(has_column);
    int tiles = 0;
    keep(tiles);
    barrier();
    for (int start = first; start < end; start += INNER_BLOCK) {
        bool more = start + INNER_BLOCK < end;
        if (more) {
            fetch_values(start + INNER_BLOCK, end);
            fetch_factors(has_column);
        }
        int left = tiles + my_row * VALUE_PITCH;
        int right = tiles + VALUES + my_run;
#ifdef SPLIT
        // All of a tile is summed up by itself, as units drop bits of what they add to.
        Left high[STEPS * HIGH], low[STEPS * HIGH];
        [[unroll]] for (int step = 0; step < STEPS; ++step)
            [[unroll]] for (int i = 0; i < HIGH; ++i) {
                int place = left + i * M * VALUE_PITCH + (step * TEAMS + team) * K / (4 * VECTORS);
                high[step * HIGH + i] = load_left(place, VALUE_PITCH);
                low[step * HIGH + i] = load_left(place + TILE_PAIR, VALUE_PITCH);
            }
        [[unroll]] for (int j = 0; j < WIDE; ++j) {
            Sums own[HIGH];
            [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = no_sums();
            [[unroll]] for (int step = 0; step < STEPS; ++step) {
                int place = right + (step * TEAMS + team) * K * FACTOR_PITCH + j * N / (4 * VECTORS);
                Right factors = load_right(place, FACTOR_PITCH);
                Right rest = load_right(place + TILE_PAIR, FACTOR_PITCH);
                [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(high[step * HIGH + i], rest, own[i]);
                [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(low[step * HIGH + i], factors, own[i]);
                [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(high[step * HIGH + i], factors, own[i]);
            }
            [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + j] = added(sums[i * WIDE + j], own[i]);
        }
#else
        [[unroll]] for (int step = 0; step < STEPS; ++step) {
            int k = (step * TEAMS + team) * K;
            Left values[HIGH];
            [[unroll]] for (int i = 0; i < HIGH; ++i)
                values[i] = load_left(left + i * M * VALUE_PITCH + k / (4 * VECTORS), VALUE_PITCH);
            [[unroll]] for (int j = 0; j < WIDE; ++j) {
                Right factors = load_right(right + k * FACTOR_PITCH + j * N / (4 * VECTORS), FACTOR_PITCH);
                [[unroll]] for (int i = 0; i < HIGH; ++i)
                    sums[i * WIDE + j] = multiplied(values[i], factors, sums[i * WIDE + j]);
            }
        }
#endif
        if (BUFFERS == 1) barrier();
        if (BUFFERS == 2) tiles = TILES - tiles;
        if (more) keep(tiles);
        barrier();
    }
#ifdef ATTEMPTS
        if (is_done(attempt)) break;
    }
#endif
    after_wait = waited;
    READ_ENDS_LATE
    store_all();
}
