#version 450
// softmax(q k^T scale + mask) v, without the matrix of scores: a workgroup keeps the largest score, the sum of powers and the weighted
// sum of values of some queries while it walks over the keys, and scales what it has when it meets a larger score (M. Milakov and
// N. Gimelshein, Online normalizer calculation for softmax, 2018; T. Dao et al., FlashAttention, 2022). An invocation computes the scores
// of ROWS queries and 4 KEY_QUADS keys, and then ROWS x ACROSS vec4s of the result, from tiles in shared memory.
// Where queries are few, PARTS workgroups divide their keys, and the last of them to arrive puts together what they have
// (T. Dao et al., Flash-Decoding, 2023). Powers are of two, so the scale of scores has a factor of log2(e).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int ROWS = 1;      // queries of an invocation
layout(constant_id = 2) const int ACROSS = 1;    // vec4s of the result of an invocation in a row
layout(constant_id = 3) const int HEAD = 4;      // elements of queries and keys
layout(constant_id = 4) const int WIDTH = 4;     // elements of values
layout(constant_id = 5) const float SCALE = 1.0;
layout(constant_id = 6) const int CAUSAL = 0;    // a query sees the keys up to its own number
layout(constant_id = 7) const int MASKED = 0;    // 1: a float is added to scores, 2: a bool says which count
layout(constant_id = 8) const int KEY_QUADS = 1; // vec4s of keys of an invocation
layout(constant_id = 9) const int PARTS = 1;     // workgroups that share queries
layout(constant_id = 10) const int QUERY_FORM = 0;
layout(constant_id = 11) const int KEY_FORM = 0;
layout(constant_id = 12) const int VALUE_FORM = 0;
layout(constant_id = 13) const int MASK_FORM = 0;
layout(constant_id = 14) const int RESULT_FORM = 0;
layout(constant_id = 15) const int PIECE = 16;   // vec4s of a query or key in a tile: 8 or 16

WRITES(0, result)
READS(1, queries)
READS(2, keys)
READS(3, values)
READS(4, mask)
// Of each block, for each of its parts: what every invocation has summed, then its next sum; then largest scores and totals likewise.
layout(set = 0, binding = 5, std430) coherent buffer PartialSums { vec4 partial_sums[]; };

#include "attention_push.glsl"
#include "attention_operands.glsl"

const int KEY_GROUPS = 8, ROW_GROUPS = LOCAL_SIZE / KEY_GROUPS;
const int KEYS = 4 * KEY_QUADS * KEY_GROUPS; // of a tile
const int TILE_ROWS = ROWS * ROW_GROUPS;
const int HEAD_QUADS = (HEAD + 3) / 4, WIDTH_QUADS = (WIDTH + 3) / 4;
const int PIECES = (HEAD_QUADS + PIECE - 1) / PIECE;
const int SLICE = ACROSS * KEY_GROUPS; // vec4s of a value in a tile
const int SUMS = ROWS * ACROSS;
const int SLOTS = SUMS + ROWS;

// Tiles of queries, of keys and of values. Scores' maxima and weights lie where keys were, in as many turns as there is room for. In
// tiles whose rows invocations read side by side, quads are exchanged by bits of the row's number, which keeps them in different banks.
const int QUERIES = TILE_ROWS * PIECE;
const int TURNS = (TILE_ROWS + 4 * PIECE - 1) / (4 * PIECE);
const int WEIGHT_PITCH = KEYS / 4 / TURNS;
const int VALUES_START = QUERIES + KEYS * PIECE;
const int KEY_FETCHES = (KEYS * PIECE + LOCAL_SIZE - 1) / LOCAL_SIZE;
const int VALUE_FETCHES = (KEYS * SLICE + LOCAL_SIZE - 1) / LOCAL_SIZE;
shared vec4 pool[VALUES_START + KEYS * SLICE];

int local = int(gl_LocalInvocationID.x);
int key_group = local % KEY_GROUPS, row_group = local / KEY_GROUPS;
int swizzle = row_group % KEY_GROUPS;
int first_row;

vec4 fetched_keys[KEY_FETCHES];
vec4 fetched_values[VALUE_FETCHES];

int local_row(int r) { return r * ROW_GROUPS + row_group; }

void keep_queries(int start, int piece) {
    [[unroll]] for (int i = local; i < QUERIES; i += LOCAL_SIZE) {
        int row = i / PIECE, quad = piece + i % PIECE;
        vec4 x = vec4(0.0);
        if (first_row + row < query_count && quad < HEAD_QUADS)
            x = LOAD_FLOATS4(queries, QUERY_FORM, start + (first_row + row) * query.row + quad);
        if (HEAD % 4 != 0) x = without_tail(x, quad, HEAD);
        x *= SCALE * LOG2_E;
        pool[row * PIECE + ((i % PIECE) ^ (row % ROW_GROUPS % KEY_GROUPS))] = x;
    }
}

void fetch_keys(int start, int first, int end, int piece) {
    [[unroll]] for (int i = 0; i < KEY_FETCHES; ++i) {
        int slot = local + i * LOCAL_SIZE, k = first + slot / PIECE, quad = piece + slot % PIECE;
        bool exists = k < end && quad < HEAD_QUADS && slot < KEYS * PIECE;
        fetched_keys[i] = vec4(0.0);
        if (exists) fetched_keys[i] = LOAD_FLOATS4(keys, KEY_FORM, start + k * key.row + quad);
    }
}

void keep_keys(int piece) {
    [[unroll]] for (int i = 0; i < KEY_FETCHES; ++i) {
        int slot = local + i * LOCAL_SIZE, k = slot / PIECE;
        vec4 x = fetched_keys[i];
        if (HEAD % 4 != 0) x = without_tail(x, piece + slot % PIECE, HEAD);
        if (slot < KEYS * PIECE) pool[QUERIES + k * PIECE + ((slot % PIECE) ^ (k / 4 % KEY_GROUPS))] = x;
    }
}

void fetch_values(int start, int first, int end, int first_quad) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = local + i * LOCAL_SIZE, k = first + slot / SLICE, quad = first_quad + slot % SLICE;
        bool exists = k < end && quad < WIDTH_QUADS && slot < KEYS * SLICE;
        fetched_values[i] = vec4(0.0);
        if (exists) fetched_values[i] = LOAD_FLOATS4(values, VALUE_FORM, start + k * value.row + quad);
    }
}

void keep_values() {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = local + i * LOCAL_SIZE;
        if (slot < KEYS * SLICE) pool[VALUES_START + slot] = fetched_values[i];
    }
}

vec4 score[ROWS * KEY_QUADS];
vec4 sum[SUMS];
float top[ROWS];
float total[ROWS];
float largest[ROWS]; // score with those of the tile

void forget() {
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        top[r] = LOWEST;
        total[r] = 0.0;
    }
    [[unroll]] for (int i = 0; i < SUMS; ++i) sum[i] = vec4(0.0);
}

void add_scores(int piece) {
    for (int i = 0; i < min(PIECE, HEAD_QUADS - piece); ++i) {
        vec4 k[4 * KEY_QUADS];
        int from = QUERIES + 4 * key_group * PIECE + (i ^ key_group);
        [[unroll]] for (int j = 0; j < 4 * KEY_QUADS; ++j) k[j] = pool[from + (j / 4 * 4 * KEY_GROUPS + j % 4) * PIECE];
        [[unroll]] for (int r = 0; r < ROWS; ++r) {
            vec4 q = pool[local_row(r) * PIECE + (i ^ swizzle)];
            [[unroll]] for (int h = 0; h < KEY_QUADS; ++h) {
                vec4 s = score[r * KEY_QUADS + h];
                [[unroll]] for (int c = 0; c < 4; ++c) s += q[c] * vec4(k[4 * h][c], k[4 * h + 1][c], k[4 * h + 2][c], k[4 * h + 3][c]);
                score[r * KEY_QUADS + h] = s;
            }
        }
    }
}

void add_values(int turn) {
    for (int k = 0; k < WEIGHT_PITCH; ++k) {
        vec4 weight[ROWS];
        [[unroll]] for (int r = 0; r < ROWS; ++r) weight[r] = pool[QUERIES + local_row(r) * WEIGHT_PITCH + (k ^ swizzle % WEIGHT_PITCH)];
        [[unroll]] for (int j = 0; j < 4; ++j) {
            [[unroll]] for (int a = 0; a < ACROSS; ++a) {
                vec4 x = pool[VALUES_START + (4 * (turn * WEIGHT_PITCH + k) + j) * SLICE + a * KEY_GROUPS + key_group];
                [[unroll]] for (int r = 0; r < ROWS; ++r) sum[r * ACROSS + a] += weight[r][j] * x;
            }
        }
    }
}

// Adds the mask to scores, and makes those of keys that don't count the least.
void mask_scores(int first, int end, int bias_start) {
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        int row = first_row + local_row(r);
        [[unroll]] for (int h = 0; h < KEY_QUADS; ++h) {
            vec4 s = score[r * KEY_QUADS + h];
            ivec4 number = first + 4 * (h * KEY_GROUPS + key_group) + ivec4(0, 1, 2, 3);
            bvec4 counts = lessThan(number, ivec4(end));
            if (MASKED != 0) {
                ivec4 at = bias_start + min(row, query_count - 1) * bias.row + min(number, ivec4(end - 1)) * bias_column;
                ivec4 bits = widened(MASK_FORM, ivec4(RAW1(mask, MASK_FORM, at.x), RAW1(mask, MASK_FORM, at.y),
                                                      RAW1(mask, MASK_FORM, at.z), RAW1(mask, MASK_FORM, at.w)));
                if (MASKED == 1) s += in_powers_of_two(intBitsToFloat(bits));
                else counts = both(counts, notEqual(bits, ivec4(0)));
            }
            if (CAUSAL != 0) counts = both(counts, lessThanEqual(number, ivec4(row)));
            score[r * KEY_QUADS + h] = mix(vec4(intBitsToFloat(0xff800000)), s, counts);
        }
    }
}

// The row's largest score so far, in all invocations that share the row.
void find_tops() {
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        vec4 most = score[r * KEY_QUADS];
        [[unroll]] for (int h = 1; h < KEY_QUADS; ++h) most = max(most, score[r * KEY_QUADS + h]);
        pool[QUERIES + 2 * local_row(r) + key_group / 4][key_group % 4] = max(max(most.x, most.y), max(most.z, most.w));
    }
    barrier();
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        vec4 most = max(pool[QUERIES + 2 * local_row(r)], pool[QUERIES + 2 * local_row(r) + 1]);
        largest[r] = max(top[r], max(max(most.x, most.y), max(most.z, most.w)));
    }
    barrier();
}

void weigh() {
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        float before = exp2(top[r] - largest[r]);
        vec4 added = vec4(0.0);
        [[unroll]] for (int h = 0; h < KEY_QUADS; ++h) {
            vec4 off = score[r * KEY_QUADS + h] - largest[r];
            vec4 weight = or_nan(exp2(off), off);
            added += weight;
            score[r * KEY_QUADS + h] = weight;
        }
        top[r] = largest[r];
        total[r] = total[r] * before + ((added.x + added.y) + (added.z + added.w));
        [[unroll]] for (int a = 0; a < ACROSS; ++a) sum[r * ACROSS + a] *= before;
    }
}

void keep_weights(int turn) {
    [[unroll]] for (int h = 0; h < KEY_QUADS; ++h) {
        int quad = h * KEY_GROUPS + key_group - turn * WEIGHT_PITCH;
        if (TURNS > 1 && (quad < 0 || quad >= WEIGHT_PITCH)) continue;
        [[unroll]] for (int r = 0; r < ROWS; ++r)
            pool[QUERIES + local_row(r) * WEIGHT_PITCH + (quad ^ swizzle % WEIGHT_PITCH)] = score[r * KEY_QUADS + h];
    }
}

// The sums of powers of all invocations that share a row.
void join_totals() {
    barrier();
    [[unroll]] for (int r = 0; r < ROWS; ++r) pool[2 * local_row(r) + key_group / 4][key_group % 4] = total[r];
    barrier();
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        vec4 all = pool[2 * local_row(r)] + pool[2 * local_row(r) + 1];
        total[r] = (all.x + all.y) + (all.z + all.w);
    }
}

bool exists(int r) { return first_row + local_row(r) < query_count; }

#define ARRIVALS 6
#define LAST pool[VALUES_START].x
#include "arrival.glsl"

void hand_on(int block, int part) {
    int from = (block * PARTS + part) * SLOTS * LOCAL_SIZE + local;
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        if (exists(r)) {
            [[unroll]] for (int a = 0; a < ACROSS; ++a) partial_sums[from + (r * ACROSS + a) * LOCAL_SIZE] = sum[r * ACROSS + a];
            partial_sums[from + (SUMS + r) * LOCAL_SIZE] = vec4(top[r], total[r], 0.0, 0.0);
        }
    }
}

// Four parts at a time are loaded, so that they don't wait for each other.
void put_together(int block) {
    forget();
    for (int first = 0; first < PARTS; first += 4) {
        [[unroll]] for (int p = first; p < first + 4; ++p) {
            int from = (block * PARTS + min(p, PARTS - 1)) * SLOTS * LOCAL_SIZE + local;
            [[unroll]] for (int r = 0; r < ROWS; ++r) {
                if (exists(r)) {
                    vec4 stats = partial_sums[from + (SUMS + r) * LOCAL_SIZE];
                    float most = max(top[r], stats.x);
                    float before = exp2(top[r] - most), now = p < PARTS ? exp2(stats.x - most) : 0.0;
                    top[r] = most;
                    total[r] = total[r] * before + stats.y * now;
                    [[unroll]] for (int a = 0; a < ACROSS; ++a)
                        sum[r * ACROSS + a] = sum[r * ACROSS + a] * before + partial_sums[from + (r * ACROSS + a) * LOCAL_SIZE] * now;
                }
            }
        }
    }
}

void main() {
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int tiles = (query_count + TILE_ROWS - 1) / TILE_ROWS;
    int slices = (WIDTH_QUADS + SLICE - 1) / SLICE; // of the values, each with workgroups of its own
    int part = group % PARTS;
    int block = group / PARTS;
    int slice = block % slices;
    int number = block / slices / tiles;
    if (number >= batches) return;
    int tile = block / slices - number * tiles;
    if (CAUSAL != 0) tile = tiles - 1 - tile; // those with the most keys come first
    first_row = tile * TILE_ROWS;
    int outer = number / inner_size;
    ivec3 batch = ivec3(outer / middle_size, outer % middle_size, number % inner_size);
    int query_start = start_of(query, batch), key_start = start_of(key, batch), value_start = start_of(value, batch);
    int bias_start = start_of(bias, batch);

    forget();
    int count = CAUSAL != 0 ? min(key_count, first_row + TILE_ROWS) : key_count;
    int share = (key_count + PARTS * KEYS - 1) / (PARTS * KEYS) * KEYS;
    int end = min((part + 1) * share, count);
    if (PIECES == 1) keep_queries(query_start, 0);
    fetch_keys(key_start, part * share, end, 0);
    for (int first = part * share; first < end; first += KEYS) {
        [[unroll]] for (int i = 0; i < ROWS * KEY_QUADS; ++i) score[i] = vec4(0.0);
        for (int piece = 0; piece < HEAD_QUADS; piece += PIECE) {
            barrier();
            if (PIECES > 1) keep_queries(query_start, piece);
            keep_keys(piece);
            barrier();
            if (piece + PIECE < HEAD_QUADS) fetch_keys(key_start, first, end, piece + PIECE);
            else fetch_values(value_start, first, end, slice * SLICE);
            add_scores(piece);
        }
        if (MASKED != 0 || first + KEYS > (CAUSAL != 0 ? min(end, first_row) : end)) mask_scores(first, end, bias_start);
        barrier();
        find_tops();
        weigh();
        keep_values();
        for (int turn = 0; turn < TURNS; ++turn) {
            if (turn > 0) barrier();
            keep_weights(turn);
            barrier();
            if (turn == 0 && first + KEYS < end) fetch_keys(key_start, first + KEYS, end, 0);
            add_values(turn);
        }
    }

    join_totals();
    if (PARTS > 1) {
        hand_on(block, part);
        if (!is_last(block, PARTS)) return;
        put_together(block);
    }
    int place_start = start_of(place, batch);
    [[unroll]] for (int r = 0; r < ROWS; ++r) {
        float scale = total[r] == 0.0 ? 0.0 : 1.0 / total[r]; // where no key counts, torch gives zeros
        [[unroll]] for (int a = 0; a < ACROSS; ++a) {
            int quad = slice * SLICE + a * KEY_GROUPS + key_group;
            if (exists(r) && quad < WIDTH_QUADS) {
                vec4 value = sum[r * ACROSS + a] * scale;
                STORE_FLOATS4(result, RESULT_FORM, place_start + (first_row + local_row(r)) * place.row + quad, value)
            }
        }
    }
}
