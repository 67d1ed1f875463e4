#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM for GPUs. A workgroup computes BLOCK_ROWS x BLOCK_COLUMNS vec4s of the result from tiles in shared memory,
// INNER_BLOCK vec4s of the inner dimension at a time; while it multiplies one pair of tiles it fetches the next into registers.
// Each invocation sums ROWS x COLUMNS vec4s, strided through the block so that neighbours read neighbours (V. Volkov and
// J. Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008). Where a result has too few blocks to fill a device, the inner
// dimension is divided too: TEAMS of invocations share a tile and add their sums up in shared memory, and PARTS workgroups
// write partial sums, which product_sum.comp adds up, or, with JOINS defined, the last of them to arrive, in their
// order, so that it doesn't matter which of them is the last. With DEPTHWISE defined, a depthwise convolution follows (product_depthwise.glsl).
#define FORMS_ID 21
#include "product.glsl"
#ifdef QUANTIZED
#include "quantized.glsl"
const int LINES = 1; // from a vec4 of the inner dimension to the next one, in lines of weight_pitch
#else
const int LINES = 4;
#endif

#ifdef SCALED
#include "product_scaling.glsl"
#endif
#ifdef PLANAR
#include "product_planar.glsl"
#endif

layout(constant_id = 12) const int BLOCK_ROWS = 64;
layout(constant_id = 13) const int BLOCK_COLUMNS = 16; // vec4s
layout(constant_id = 14) const int ROWS = 4;           // rows of one invocation
layout(constant_id = 15) const int COLUMNS = 1;        // vec4s of one invocation
layout(constant_id = 16) const int INNER_BLOCK = 4;    // vec4s; divides INVOCATIONS, as BLOCK_COLUMNS does
layout(constant_id = 17) const int TEAMS = 1;          // divides INNER_BLOCK
layout(constant_id = 18) const int PARTS = 1;
layout(constant_id = 19) const int INVOCATIONS = 256;  // (BLOCK_ROWS / ROWS) * (BLOCK_COLUMNS / COLUMNS) * TEAMS
layout(constant_id = 20) const int AHEAD = 0; // whether the first weights are read before others have ended: they are constants
layout(local_size_x_id = 19, local_size_y = 1, local_size_z = 1) in;

const int COLUMN_STEP = BLOCK_COLUMNS / COLUMNS;
const int ROW_STEP = BLOCK_ROWS / ROWS;
const int TEAM_SIZE = COLUMN_STEP * ROW_STEP;
const int VALUE_PITCH = INNER_BLOCK + 1; // keeps rows in different banks
const int VALUES = BLOCK_ROWS * VALUE_PITCH;
const int FACTORS = 4 * INNER_BLOCK * BLOCK_COLUMNS;
const int TILES = 2 * (VALUES + FACTORS);
const int BLOCK = BLOCK_ROWS * BLOCK_COLUMNS;
#ifdef DEPTHWISE
const int SUMS = TEAMS * BLOCK > INVOCATIONS ? TEAMS * BLOCK : INVOCATIONS; // the region is there at the end, and what its means are added up from
#else
const int SUMS = TEAMS > 1 ? TEAMS * BLOCK : 0;
#endif
const int STORES = TEAMS > 1 ? (BLOCK + INVOCATIONS - 1) / INVOCATIONS : ROWS * COLUMNS;
const int VALUE_FETCHES = (BLOCK_ROWS * INNER_BLOCK + INVOCATIONS - 1) / INVOCATIONS;
const int FACTOR_SLOTS = LINES * INNER_BLOCK * BLOCK_COLUMNS; // what is fetched of the weights at a time
const int FACTOR_FETCHES = (FACTOR_SLOTS + INVOCATIONS - 1) / INVOCATIONS;

// Two pairs of tiles, values (row, inner) then factors (inner, column); at the end the teams' sums.
shared vec4 pool[TILES > SUMS ? TILES : SUMS];

const int OUTSIDE = -1 << 28; // the place of a row that doesn't exist

int me = int(gl_LocalInvocationID.x);

#ifdef DEPTHWISE
#include "product_depthwise.glsl"
#endif

#ifdef JOINS
// Of each block, for each of its parts: what every invocation has summed, then the next of its sums.
layout(set = 0, binding = 5, std430) coherent buffer PartialSums { vec4 partial_sums[]; };
#define ARRIVALS 6
#define LAST pool[0].x
#include "arrival.glsl"

int block_number() {
    int deep = int(gl_WorkGroupID.z) / PARTS;
    return (deep * int(gl_NumWorkGroups.y) + int(gl_WorkGroupID.y)) * int(gl_NumWorkGroups.x) + int(gl_WorkGroupID.x);
}
#endif

// What this invocation fetches of the activations: one vec4 of the inner dimension, in VALUE_FETCHES rows.
int row_addresses[VALUE_FETCHES];
ivec2 row_places[VALUE_FETCHES];
#ifdef SCALED
int row_scales[VALUE_FETCHES];
#endif
int channel;
ivec2 tap;
int weight_address;
int weight_column;
int line;      // of the weights: the first that this invocation fetches
int line_end;

vec4 fetched_values[VALUE_FETCHES];
#ifdef QUANTIZED
ivec4 fetched_factors[FACTOR_FETCHES];
Scale fetched_scales[FACTOR_FETCHES];
#else
vec4 fetched_factors[FACTOR_FETCHES];
#endif

void find_rows(int origin, int block_row) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int row = block_row + (me + i * INVOCATIONS) / INNER_BLOCK;
        bool exists = row < rows && me + i * INVOCATIONS < BLOCK_ROWS * INNER_BLOCK;
        row_places[i] = ivec2(exists ? 0 : OUTSIDE);
#ifdef DEPTHWISE
        Pixel pixel = region_pixel(row);
        exists = exists && is_in_image(pixel);
        if (!exists) row_places[i] = ivec2(OUTSIDE);
        row = pixel.y * out_width + pixel.x;
#endif
        row_addresses[i] = origin + row * input_pitch;
#ifdef SCALED
        row_scales[i] = scales_of(row);
#endif
        if (SPATIAL != 0) {
#ifndef DEPTHWISE
            Pixel pixel = pixel_of(row);
#endif
            ivec2 place = ivec2(pixel.x * stride_wide + first_wide, pixel.y * stride_high + first_high);
            if (exists) row_places[i] = place;
            row_addresses[i] = origin + pixel.batch * input_batch + (place.y * width + place.x) * input_pitch;
        }
    }
}

void fetch_values(int start, int end) {
    ivec2 shift = tap * ivec2(dilation_wide, dilation_high);
    int offset = SPATIAL != 0 ? channel + (shift.y * width + shift.x) * input_pitch : channel;
    bool exists = start + me % INNER_BLOCK < end;
    bool partial = INNER_TAIL != 0 && channel == inner - 1;
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        bool inside = exists && row_places[i].x > OUTSIDE;
        if (PADDED != 0) {
            ivec2 place = row_places[i] + shift;
            inside = exists && uint(place.x) < uint(width) && uint(place.y) < uint(height);
        }
        fetched_values[i] = inside ? ACTIVATION(row_addresses[i] + offset) : vec4(0.0);
#ifdef SCALED
        if (inside) fetched_values[i] = scaled(fetched_values[i], row_scales[i] + channel);
#endif
        if (partial) fetched_values[i] = head(fetched_values[i], INNER_TAIL);
    }
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
        int step = i * (INVOCATIONS / BLOCK_COLUMNS);
        bool inside = has_column && line + step < line_end && me + i * INVOCATIONS < FACTOR_SLOTS;
        int place = weight_address + step * weight_pitch;
#ifdef QUANTIZED
        fetched_factors[i] = inside ? WEIGHT_BLOCK(place) : ivec4(0);
        fetched_scales[i] = Scale(vec4(0.0), vec4(0.0));
        if (inside) fetched_scales[i] = scale_of(line + step, weight_column);
#else
        fetched_factors[i] = inside ? WEIGHT(place) : vec4(0.0);
#endif
    }
    line += LINES * INNER_BLOCK;
    weight_address += LINES * INNER_BLOCK * weight_pitch;
}

void keep(int tiles) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot < BLOCK_ROWS * INNER_BLOCK)
            pool[tiles + slot / INNER_BLOCK * VALUE_PITCH + slot % INNER_BLOCK] = fetched_values[i];
    }
    [[unroll]] for (int i = 0; i < FACTOR_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot >= FACTOR_SLOTS) continue;
#ifdef QUANTIZED
        int first = tiles + VALUES + 4 * slot - 3 * (slot % BLOCK_COLUMNS);
        [[unroll]] for (int c = 0; c < 4; ++c)
            pool[first + c * BLOCK_COLUMNS] = line_of(fetched_factors[i], c, fetched_scales[i]);
#else
        pool[tiles + VALUES + slot] = fetched_factors[i];
#endif
    }
}

vec4 bias_of(bool exists, int column) { return HAS_BIAS != 0 && exists ? BIAS(column) : vec4(0.0); }

// Where in the block the store `i` of an invocation is, which has multiplied from `my_row` and `my_column` on.
int stored_row(int i, int my_row) { return TEAMS > 1 ? (me + i * INVOCATIONS) / BLOCK_COLUMNS : my_row + i / COLUMNS * ROW_STEP; }
int stored_column(int i, int my_column) {
    return TEAMS > 1 ? (me + i * INVOCATIONS) % BLOCK_COLUMNS : my_column + i % COLUMNS * COLUMN_STEP;
}
bool is_stored(int i) { return TEAMS == 1 || me + i * INVOCATIONS < BLOCK; }

const int HOLDS_RESIDUALS = STORES <= 2 ? 1 : 0; // in few registers, from the beginning on

void main() {
    int groups = GROUPED != 0 ? columns / group_columns : 1;
    int part = int(gl_WorkGroupID.z) % PARTS;
    int product = int(gl_WorkGroupID.z) / PARTS;
    int group = GROUPED != 0 ? product : 0;
    int batch = GROUPED != 0 ? 0 : product;
    int own_columns = GROUPED != 0 ? group_columns : columns;
    int base_column = group * own_columns;
    int block_column = int(gl_WorkGroupID.x) * BLOCK_COLUMNS;
#ifdef DEPTHWISE
    int block_row = 0; // of the region
#else
    int block_row = start_row + int(gl_WorkGroupID.y) * BLOCK_ROWS;
#endif

    int total = SPATIAL != 0 ? taps_high * taps_wide * inner : inner; // the whole inner dimension, in vec4s
    int share = ((total + PARTS * INNER_BLOCK - 1) / (PARTS * INNER_BLOCK)) * INNER_BLOCK;
    int start = part * share;
    int end = min(start + share, total);

    find_rows(input_offset + batch * input_batch + group * inner, block_row);
    channel = start + me % INNER_BLOCK;
    tap = ivec2(0);
    if (SPATIAL != 0) {
        int index = channel / inner;
        channel -= index * inner;
        tap = ivec2(index % taps_wide, index / taps_wide);
    }
    int column = block_column + me % BLOCK_COLUMNS;
    bool has_column = column < own_columns;
    line = LINES * start + me / BLOCK_COLUMNS;
    line_end = LINES * end;
    if (LINES == 4 && SPATIAL == 0 && INNER_TAIL != 0) line_end = min(line_end, 4 * inner - 4 + INNER_TAIL);
    weight_column = base_column + column;
    weight_address = weight_offset + batch * weight_batch + line * weight_pitch + weight_column;

    int lane = me % TEAM_SIZE;
    int team = me / TEAM_SIZE;
    int my_column = lane % COLUMN_STEP;
    int my_row = lane / COLUMN_STEP;

#ifdef DEPTHWISE
    keep_filters(block_column);
#endif
    if (AHEAD != 0) fetch_factors(has_column);
    wait_for_operands();

    // Biases are fetched first, so that nothing waits for them in the end. Where teams add up their sums, those that one
    // invocation adds up are all in one column.
    vec4 bias = TEAMS > 1 ? bias_of(has_column, base_column + column) : vec4(0.0);
    vec4 sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; ++i) {
        int at = block_column + my_column + i % COLUMNS * COLUMN_STEP;
        sums[i] = vec4(0.0);
#ifndef JOINS
        if (TEAMS == 1) sums[i] = bias_of(at < own_columns, base_column + at);
#endif
    }
#ifndef DEPTHWISE
    ivec4 residuals[STORES];
    [[unroll]] for (int i = 0; i < STORES; ++i) {
        int row = block_row + stored_row(i, my_row), at = block_column + stored_column(i, my_column);
        residuals[i] = ivec4(0);
        if (HAS_RESIDUAL == 0 || HOLDS_RESIDUALS == 0 || !is_stored(i) || row >= rows || at >= own_columns) continue;
        Pixel pixel = Pixel(0, 0, 0);
        if (SPATIAL != 0) pixel = pixel_of(row);
        residuals[i] = residual_bits(residual_index(batch, row, pixel) + base_column + at);
    }
#endif

    // Of what the loop reads the bases depend on the wait, so the indices need not.
    int waited = after_wait;
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        row_addresses[i] += waited;
#ifdef SCALED
        row_scales[i] += waited;
#endif
    }
    if (AHEAD == 0) {
        weight_address += waited;
        weight_column += waited;
    }
    after_wait = 0;
    fetch_values(start, end);
    if (AHEAD == 0) fetch_factors(has_column);
    int tiles = 0;
    keep(tiles);
    barrier();
    for (; start < end; start += INNER_BLOCK) {
        bool more = start + INNER_BLOCK < end;
        if (more) {
            fetch_values(start + INNER_BLOCK, end);
            fetch_factors(has_column);
        }
        [[unroll]] for (int step = 0; step < INNER_BLOCK / TEAMS; ++step) {
            int k = step * TEAMS + team;
            vec4 value[ROWS];
            [[unroll]] for (int i = 0; i < ROWS; ++i) value[i] = pool[tiles + (my_row + i * ROW_STEP) * VALUE_PITCH + k];
            [[unroll]] for (int c = 0; c < 4; ++c)
                [[unroll]] for (int j = 0; j < COLUMNS; ++j) {
                    vec4 factor = pool[tiles + VALUES + (4 * k + c) * BLOCK_COLUMNS + my_column + j * COLUMN_STEP];
                    [[unroll]] for (int i = 0; i < ROWS; ++i) sums[i * COLUMNS + j] += value[i][c] * factor;
                }
        }
        tiles = VALUES + FACTORS - tiles;
        if (more) keep(tiles);
        barrier();
    }
    after_wait = waited;

    if (TEAMS > 1) {
        [[unroll]] for (int i = 0; i < ROWS; ++i)
            [[unroll]] for (int j = 0; j < COLUMNS; ++j)
                pool[team * BLOCK + (my_row + i * ROW_STEP) * BLOCK_COLUMNS + my_column + j * COLUMN_STEP] = sums[i * COLUMNS + j];
        barrier();
    }
#ifdef DEPTHWISE
    vec4 expanded[STORES];
    [[unroll]] for (int i = 0; i < STORES; ++i) {
        int slot = me + i * INVOCATIONS;
        vec4 sum = bias;
        if (TEAMS == 1) sum = sums[i];
        if (TEAMS > 1 && slot < BLOCK)
            [[unroll]] for (int t = 0; t < TEAMS; ++t) sum += pool[t * BLOCK + slot];
        bool inside = IS_WHOLE != 0 || is_in_image(region_pixel(stored_row(i, my_row)));
        expanded[i] = inside ? after_residual(before_residual(sum)) : vec4(0.0);
    }
    if (TEAMS > 1) barrier();
    [[unroll]] for (int i = 0; i < STORES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (TEAMS == 1) slot = (my_row + i / COLUMNS * ROW_STEP) * BLOCK_COLUMNS + my_column + i % COLUMNS * COLUMN_STEP;
        if (slot < BLOCK) pool[slot] = expanded[i];
    }
    barrier();
    filter_region(block_column, batch);
#else
#ifdef JOINS
    int partial = block_number() * PARTS * STORES * INVOCATIONS + me;
    [[unroll]] for (int i = 0; i < STORES; ++i) {
        int slot = me + i * INVOCATIONS;
        vec4 sum = vec4(0.0);
        if (TEAMS == 1) sum = sums[i];
        if (TEAMS > 1 && slot < BLOCK)
            [[unroll]] for (int t = 0; t < TEAMS; ++t) sum += pool[t * BLOCK + slot];
        partial_sums[partial + (part * STORES + i) * INVOCATIONS] = sum;
    }
    if (!is_last(block_number(), PARTS)) return;
#endif
    // All residuals are loaded before anything is stored: a load that follows a store can't be moved before it, and would wait for the
    // memory by itself.
    int targets[STORES]; // -1: there is none
    vec4 finals[STORES];
    [[unroll]] for (int i = 0; i < STORES; ++i) {
        int slot = me + i * INVOCATIONS;
        int row = block_row + stored_row(i, my_row), at = block_column + stored_column(i, my_column);
        bool exists = row < rows && at < own_columns && is_stored(i);
        vec4 sum = bias;
#ifdef JOINS
        sum = vec4(0.0);
        [[unroll]] for (int p = 0; p < PARTS; ++p) sum += partial_sums[partial + (p * STORES + i) * INVOCATIONS];
        sum += TEAMS > 1 ? bias : bias_of(exists, base_column + at);
#else
        if (TEAMS == 1) sum = sums[i];
        if (TEAMS > 1 && slot < BLOCK)
            [[unroll]] for (int t = 0; t < TEAMS; ++t) sum += pool[t * BLOCK + slot];
        if (PARTS > 1) {
            if (exists) store(((batch * PARTS + part) * rows + row) * columns + base_column + at, sum);
            continue;
        }
#endif
        Pixel pixel = Pixel(0, 0, 0);
        if (SPATIAL != 0) pixel = pixel_of(row);
        targets[i] = exists ? result_index(batch, row, pixel) + base_column + at : -1;
        if (exists && HOLDS_RESIDUALS == 0) residuals[i] = residual_bits(residual_index(batch, row, pixel) + base_column + at);
        finals[i] = finished(sum, residual_of(residuals[i]));
        if (HAS_RESIDUAL == 0 && exists) store(targets[i], finals[i]);
    }
    [[unroll]] for (int i = 0; i < STORES; ++i)
        if (HAS_RESIDUAL != 0 && targets[i] >= 0) store(targets[i], finals[i]);
#endif
}
