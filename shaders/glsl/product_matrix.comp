#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// Implicit GEMM of halves by matrix units (VK_KHR_cooperative_matrix), with sums in float32. As product_shared.comp, from which the
// walk is: a workgroup computes BLOCK_ROWS x BLOCK_COLUMNS vec4s from tiles in shared memory, and fetches the next tiles into registers
// while it multiplies. A subgroup computes ROWS x COLUMNS vec4s by fragments of M x N elements. Operands are copied as the bits that they
// are, one RUN of halves at a time: eight, or four where places of eight don't line up.
#define FORMS_ID 24
#include "product.glsl"

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
layout(local_size_x_id = 19, local_size_y = 1, local_size_z = 1) in;

#ifdef NARROW
#define RUN uvec2
#define FETCH(name, index) uvec2(PAIR(name, index))
const int VECTORS = 1; // vec4s of a run
#else
#define RUN uvec4
#define FETCH(name, index) uvec4(QUAD(name, (index) >> 1))
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
const int TILES = VALUES + FACTORS;

const int ACROSS = BLOCK_COLUMNS / COLUMNS;
const int TEAM_SIZE = ACROSS * (BLOCK_ROWS / ROWS); // subgroups
const int SUBGROUPS = TEAM_SIZE * TEAMS;
const int HIGH = ROWS / M;
const int WIDE = 4 * COLUMNS / N;
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

const int OUTSIDE = -1 << 28; // the place of a row that doesn't exist

// What this invocation fetches: one run of the inner dimension in VALUE_FETCHES rows, and one of columns in FACTOR_FETCHES lines.
int row_addresses[VALUE_FETCHES];
ivec2 row_places[VALUE_FETCHES];
int channel;
ivec2 tap;
int weight_address;
int line;
int line_end;
RUN fetched_values[VALUE_FETCHES];
RUN fetched_factors[FACTOR_FETCHES];

void find_rows(int origin, int block_row) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int row = block_row + (me + i * INVOCATIONS) / INNER_RUNS;
        bool exists = row < rows && me + i * INVOCATIONS < VALUE_SLOTS;
        row_places[i] = ivec2(exists ? 0 : OUTSIDE);
        row_addresses[i] = origin + row * input_pitch;
        if (SPATIAL != 0) {
            Pixel pixel = pixel_of(row);
            ivec2 place = ivec2(pixel.x * stride_wide + first_wide, pixel.y * stride_high + first_high);
            if (exists) row_places[i] = place;
            row_addresses[i] = origin + pixel.batch * input_batch + (place.y * width + place.x) * input_pitch;
        }
    }
}

void fetch(int start, int end, bool has_column) {
    ivec2 shift = tap * ivec2(dilation_wide, dilation_high);
    int offset = SPATIAL != 0 ? channel + (shift.y * width + shift.x) * input_pitch : channel;
    bool exists = start + me % INNER_RUNS * VECTORS < end;
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        bool inside = exists && row_places[i].x > OUTSIDE;
        if (PADDED != 0) {
            ivec2 place = row_places[i] + shift;
            inside = exists && uint(place.x) < uint(width) && uint(place.y) < uint(height);
        }
        fetched_values[i] = RUN(0);
        if (inside) fetched_values[i] = FETCH(activations, row_addresses[i] + offset);
#ifdef NARROW
        if (INNER_TAIL != 0 && channel == inner - 1) {
            fetched_values[i].x &= INNER_TAIL == 1 ? 0xffffu : ~0u;
            fetched_values[i].y &= INNER_TAIL == 3 ? 0xffffu : 0u;
        }
#endif
    }
    channel += INNER_BLOCK;
    while (SPATIAL != 0 && channel >= inner) {
        channel -= inner;
        ++tap.x;
        if (tap.x == taps_wide) tap = ivec2(0, tap.y + 1);
    }
    [[unroll]] for (int i = 0; i < FACTOR_FETCHES; ++i) {
        int step = i * (INVOCATIONS / COLUMN_RUNS);
        bool inside = has_column && line + step < line_end && me + i * INVOCATIONS < FACTOR_SLOTS;
        fetched_factors[i] = RUN(0);
        if (inside) fetched_factors[i] = FETCH(weights, weight_address + step * weight_pitch);
    }
    line += 4 * INNER_BLOCK;
    weight_address += 4 * INNER_BLOCK * weight_pitch;
}

void keep(int tiles) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot < VALUE_SLOTS) pool[tiles + slot / INNER_RUNS * VALUE_PITCH + slot % INNER_RUNS] = fetched_values[i];
    }
    [[unroll]] for (int i = 0; i < FACTOR_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot < FACTOR_SLOTS)
            pool[tiles + VALUES + slot / COLUMN_RUNS * FACTOR_PITCH + slot % COLUMN_RUNS] = fetched_factors[i];
    }
}

// Four sums of a row of fragments, of all teams.
vec4 sum_at(int place) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (int t = 0; t < TEAMS; ++t) {
        int at = place + t * TEAM_SIZE * SUMS;
#ifdef NARROW
        sum += uintBitsToFloat(uvec4(pool[at], pool[at + 1]));
#else
        sum += uintBitsToFloat(pool[at]);
#endif
    }
    return sum;
}

// Which product, and which block of it.
int part = int(gl_WorkGroupID.z) % PARTS;
int product = int(gl_WorkGroupID.z) / PARTS;
int group = GROUPED != 0 ? product : 0;
int batch = GROUPED != 0 ? 0 : product;
int own_columns = GROUPED != 0 ? group_columns : columns;
int base_column = group * own_columns;
int block_column = int(gl_WorkGroupID.x) * BLOCK_COLUMNS;
int block_row = start_row + int(gl_WorkGroupID.y) * BLOCK_ROWS;

// Where a vec4 of the result is.
struct Spot {
    bool exists;
    int row, column;
    Pixel pixel;
};

// Of slot `slot` of row `fragments` of fragments.
Spot spot_of(int fragments, int slot) {
    int line = slot / COLUMNS;
    int owner = line / M;
    Spot spot;
    spot.row = block_row + owner / ACROSS * ROWS + fragments * M + line % M;
    int at = block_column + owner % ACROSS * COLUMNS + slot % COLUMNS;
    spot.exists = slot < SLOTS && spot.row < rows && at < own_columns;
    spot.column = base_column + at;
    spot.pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) spot.pixel = pixel_of(spot.row);
    return spot;
}

vec4 biased_sum(int slot, int column) {
    int line = slot / COLUMNS;
    vec4 sum = sum_at(line / M * SUMS + line % M * SUM_PITCH + slot % COLUMNS * FLOATS);
    return HAS_BIAS != 0 ? sum + BIAS(column) : sum;
}

void main() {

    int total = SPATIAL != 0 ? taps_high * taps_wide * inner : inner; // the whole inner dimension, in vec4s
    int share = ((total + PARTS * INNER_BLOCK - 1) / (PARTS * INNER_BLOCK)) * INNER_BLOCK;
    int start = part * share;
    int end = min(start + share, total);

    find_rows(input_offset + batch * input_batch + group * inner, block_row);
    channel = start + me % INNER_RUNS * VECTORS;
    tap = ivec2(0);
    if (SPATIAL != 0) {
        int index = channel / inner;
        channel -= index * inner;
        tap = ivec2(index % taps_wide, index / taps_wide);
    }
    int column = block_column + me % COLUMN_RUNS * VECTORS;
    bool has_column = column < own_columns;
    line = 4 * start + me / COLUMN_RUNS;
    line_end = 4 * end;
    if (SPATIAL == 0 && INNER_TAIL != 0) line_end = min(line_end, 4 * inner - 4 + INNER_TAIL);
    weight_address = weight_offset + batch * weight_batch + line * weight_pitch + base_column + column;

    int team = subgroup() / TEAM_SIZE;
    int member = subgroup() % TEAM_SIZE;
    int my_row = member / ACROSS * ROWS;
    int my_run = member % ACROSS * COLUMNS / VECTORS;

    Sums sums[HIGH * WIDE];
    [[unroll]] for (int i = 0; i < HIGH * WIDE; ++i) sums[i] = no_sums();

    fetch(start, end, has_column);
    int tiles = 0;
    keep(tiles);
    barrier();
    for (; start < end; start += INNER_BLOCK) {
        bool more = start + INNER_BLOCK < end;
        if (more) fetch(start + INNER_BLOCK, end, has_column);
        [[unroll]] for (int step = 0; step < 4 * INNER_BLOCK / (K * TEAMS); ++step) {
            int k = (step * TEAMS + team) * K;
            Left values[HIGH];
            [[unroll]] for (int i = 0; i < HIGH; ++i)
                values[i] = load_left(tiles + (my_row + i * M) * VALUE_PITCH + k / (4 * VECTORS), VALUE_PITCH);
            [[unroll]] for (int j = 0; j < WIDE; ++j) {
                int place = tiles + VALUES + k * FACTOR_PITCH + my_run + j * N / (4 * VECTORS);
                Right factors = load_right(place, FACTOR_PITCH);
                [[unroll]] for (int i = 0; i < HIGH; ++i)
                    sums[i * WIDE + j] = multiplied(values[i], factors, sums[i * WIDE + j]);
            }
        }
        if (BUFFERS == 1) barrier();
        if (BUFFERS == 2) tiles = TILES - tiles;
        if (more) keep(tiles);
        barrier();
    }

    // A row of fragments at a time, each subgroup's in a place of its own. Residuals are loaded before the subgroups wait for each other, and
    // before anything is stored: a load that follows a store can't be moved before it, and would wait for the memory by itself.
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec4 finals[STORES];
        [[unroll]] for (int s = 0; s < STORES; ++s) {
            finals[s] = vec4(0.0);
            Spot spot = spot_of(i, me + s * INVOCATIONS);
            if (HAS_RESIDUAL != 0 && spot.exists) finals[s] = residual_at(residual_index(batch, spot.row, spot.pixel) + spot.column);
        }
        if (i > 0) barrier();
        [[unroll]] for (int j = 0; j < WIDE; ++j)
            store_sums(sums[i * WIDE + j], subgroup() * SUMS + j * N * FLOATS / 4, SUM_PITCH);
        barrier();
        if (HAS_RESIDUAL != 0) {
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                Spot spot = spot_of(i, me + s * INVOCATIONS);
                if (spot.exists) finals[s] = finished(biased_sum(me + s * INVOCATIONS, spot.column), finals[s]);
            }
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                Spot spot = spot_of(i, me + s * INVOCATIONS);
                if (spot.exists) store(result_index(batch, spot.row, spot.pixel) + spot.column, finals[s]);
            }
        } else {
            for (int slot = me; slot < SLOTS; slot += INVOCATIONS) {
                Spot spot = spot_of(i, slot);
                if (!spot.exists) continue;
                vec4 sum = biased_sum(slot, spot.column);
                if (PARTS > 1)
                    store(((batch * PARTS + part) * rows + spot.row) * columns + spot.column, sum);
                else
                    store(result_index(batch, spot.row, spot.pixel) + spot.column, finished(sum, vec4(0.0)));
            }
        }
    }
}
