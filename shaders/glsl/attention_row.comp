#version 450
// softmax(q k^T scale + mask) v of few queries, as a decoder asks for each token. A workgroup has ROWS queries that share keys, and goes
// through these by tiles, which it has in registers before it needs them. SHARERS invocations share the product of a key with each query, and
// leave their shares in shared memory; others make scores of these; and of each query LANES invocations have a vec4 of weighted values, of
// which SLICES divide the tile: each has the largest score, the sum of powers and the weighted sum of all the keys that it had, as in
// attention.comp. PARTS workgroups divide the keys, and the last of them to arrive puts together what they have
// (T. Dao et al., Flash-Decoding, 2023). With CACHED the last row of keys and values comes from elsewhere (attention_cache.glsl).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int LANES = 4;     // vec4s of a value, a power of two
layout(constant_id = 2) const int HEAD = 4;      // elements of queries and keys
layout(constant_id = 3) const int WIDTH = 4;     // elements of values
layout(constant_id = 4) const float SCALE = 1.0;
layout(constant_id = 5) const int MASKED = 0;    // 1: a float is added to scores, 2: a bool says which count
layout(constant_id = 6) const int PARTS = 1;     // workgroups that share a query
layout(constant_id = 7) const int QUERY_FORM = 0;
layout(constant_id = 8) const int KEY_FORM = 0;
layout(constant_id = 9) const int VALUE_FORM = 0;
layout(constant_id = 10) const int MASK_FORM = 0;
layout(constant_id = 11) const int RESULT_FORM = 0;
layout(constant_id = 12) const int ROWS = 1;     // queries of a workgroup, a power of two
layout(constant_id = 13) const int SHARERS = 4;  // of a key, a power of two; at most LANES
layout(constant_id = 14) const int KEEPS = 0;    // whether invocations add up the values that they have read; of one query

WRITES(0, result)
READS(1, queries)
#ifdef CACHED
UPDATES(2, keys)
UPDATES(3, values)
#else
READS(2, keys)
READS(3, values)
#endif
READS(4, mask)
// Of each part of the keys, for each query: the sums of LANES invocations, then the largest score and the sum of powers.
layout(set = 0, binding = 5, std430) coherent buffer PartialSums { vec4 partial_sums[]; };

#include "attention_push.glsl"
#include "attention_operands.glsl"

const int AT_ONCE = 4, STATS_AT_ONCE = 16; // of slices, that are read at a time
const int KEYS = LOCAL_SIZE / SHARERS;
const int SLICES = LOCAL_SIZE / (ROWS * LANES);
const int SLICE = KEYS / SLICES;                          // keys of a tile whose values an invocation adds up
const int HELD = LANES / SHARERS;                         // vec4s of values that an invocation reads of a tile
const int OWN_SCORES = (ROWS + SHARERS - 1) / SHARERS;    // that it makes of a tile
const int OWN_PARTS = (PARTS + SLICES - 1) / SLICES;
const int HEAD_QUADS = (HEAD + 3) / 4, WIDTH_QUADS = (WIDTH + 3) / 4;
const int OWN_QUADS = (HEAD_QUADS + SHARERS - 1) / SHARERS;
const int QUERY_QUADS = ROWS * HEAD_QUADS;
const int PITCH = KEYS + 32 / SHARERS; // so that what invocations write side by side lies in different banks

shared vec4 own_queries[QUERY_QUADS];          // scaled
shared float shares[ROWS * SHARERS * PITCH];   // of products of queries with the tile's keys
shared float scores[ROWS * KEYS];
shared vec4 pool[KEEPS != 0 ? LOCAL_SIZE : KEYS * LANES]; // values of a tile; in the end sums of all invocations
shared vec2 stats[ROWS * SLICES];              // the largest score, and the sum of powers
shared float was_last;

#ifdef CACHED
#include "attention_cache.glsl"
shared vec4 new_quads[HEAD_QUADS + WIDTH_QUADS]; // the new key, then its value
#endif

#define ARRIVALS 6
#define LAST was_last
#include "arrival.glsl"

int local = int(gl_LocalInvocationID.x);
int sharer = local % SHARERS, own_key = local / SHARERS;
int lane = local % LANES, slice = local / LANES % SLICES, own_row = local / (LANES * SLICES);
int new_row = -1;
int first_row, number; // of the workgroup: its queries, and its place among those that divide no keys

// Nothing else writes to these: NVIDIA's compiler keeps arrays in local memory some elements of which are written under a condition.
vec4 keys_read[OWN_QUADS], values_read[HELD];
int mask_read[OWN_SCORES];

// The keys of this invocation in a tile, of those before `end`; and its values.
void read_keys(int first, int end, int key_start) {
    int k = first + own_key;
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        keys_read[i] = k < end && quad < HEAD_QUADS ? LOAD_FLOATS4(keys, KEY_FORM, key_start + k * key.row + quad) : vec4(0.0);
    }
}

void read_values(int first, int end, int value_start) {
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int v = first + (local + i * LOCAL_SIZE) / LANES;
        bool exists = v < end && lane < WIDTH_QUADS;
        values_read[i] = exists ? LOAD_FLOATS4(values, VALUE_FORM, value_start + v * value.row + lane) : vec4(0.0);
    }
}

void read_mask(int first, int end, int bias_start) {
    if (MASKED == 0 || first >= end) return;
    [[unroll]] for (int i = 0; i < OWN_SCORES; ++i) {
        int at = local + i * LOCAL_SIZE;
        int row = min(first_row + at / KEYS, query_count - 1), k = min(first + at % KEYS, end - 1);
        mask_read[i] = RAW1(mask, MASK_FORM, bias_start + row * bias.row + k * bias_column);
    }
}

#ifdef CACHED
// Finds out where the new row belongs, and raises the flag if there is no such row.
void find_new_row(int given, int group) {
    new_row = WRAPS != 0 && given < 0 ? given + key_count : given;
    if (new_row < 0 || new_row >= key_count) {
        new_row = -1;
        if (group == 0 && local == 0) RAISE_FLAG
    }
}

vec4 query_of(int start, int quad, ivec3 batch) {
    vec4 x = LOAD_FLOATS4(queries, QUERY_FORM, start + quad);
    if (QUERY_TURNED == 0 || quad >= TURNED) return x;
    return turned(x, LOAD_FLOATS4(queries, QUERY_FORM, start + opposite(quad)), quad, cosines_at(quad, batch), sines_at(quad, batch));
}

vec4 new_key_of(int start, int quad, ivec3 batch) {
    vec4 x = LOAD_FLOATS4(new_keys, NEW_FORMS & 7, start + quad);
    if (KEY_TURNED == 0 || quad >= TURNED) return x;
    vec4 other = LOAD_FLOATS4(new_keys, NEW_FORMS & 7, start + opposite(quad));
    return turned(x, other, quad, cosines_at(quad, batch), sines_at(quad, batch));
}

// Reads the new key and value, as many invocations as they have vec4s, after those that read queries.
void stage_new_row(ivec3 batch) {
    int quad = (local + LOCAL_SIZE - QUERY_QUADS % LOCAL_SIZE) % LOCAL_SIZE;
    for (; quad < HEAD_QUADS + WIDTH_QUADS; quad += LOCAL_SIZE)
        new_quads[quad] = quad < HEAD_QUADS ? new_key_of(NEST(KEY, batch), quad, batch)
                                            : LOAD_FLOATS4(new_values, NEW_FORMS >> 3 & 7, NEST(VALUE, batch) + quad - HEAD_QUADS);
}

// The first of the workgroups that share a cache writes the new row there, if it belongs to this tile. The others may have read the one before,
// or not.
void put_new_row(int first, int key_start, int value_start, int item) {
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        if (first + own_key == new_row && quad < HEAD_QUADS) {
            journal_quads[item * HEAD_QUADS + quad] = floatBitsToInt(keys_read[i]);
            STORE_FLOATS4(keys, KEY_FORM, key_start + new_row * key.row + quad, new_quads[quad])
        }
    }
    [[unroll]] for (int i = 0; i < HELD; ++i)
        if (first + (local + i * LOCAL_SIZE) / LANES == new_row && lane < WIDTH_QUADS) {
            journal_quads[(batches * HEAD_QUADS + item * WIDTH_QUADS) + lane] = floatBitsToInt(values_read[i]);
            STORE_FLOATS4(values, VALUE_FORM, value_start + new_row * value.row + lane, new_quads[HEAD_QUADS + lane])
        }
}

vec4 tile_key(int i, int first) {
    int quad = min(SHARERS * i + sharer, HEAD_QUADS - 1);
    return mix(keys_read[i], new_quads[quad], bvec4(first + own_key == new_row));
}

vec4 tile_value(int i, int first) {
    int quad = HEAD_QUADS + min(lane, WIDTH_QUADS - 1);
    return mix(values_read[i], new_quads[quad], bvec4(first + (local + i * LOCAL_SIZE) / LANES == new_row));
}
#else
vec4 tile_key(int i, int first) { return HEAD % 4 != 0 ? without_tail(keys_read[i], SHARERS * i + sharer, HEAD) : keys_read[i]; }

vec4 tile_value(int i, int first) { return values_read[i]; }

vec4 query_of(int start, int quad, ivec3 batch) {
    vec4 x = LOAD_FLOATS4(queries, QUERY_FORM, start + quad);
    return HEAD % 4 != 0 ? without_tail(x, quad, HEAD) : x;
}
#endif

void stage_queries(int start, ivec3 batch) {
    for (int item = local; item < QUERY_QUADS; item += LOCAL_SIZE) {
        int row = min(first_row + item / HEAD_QUADS, query_count - 1);
        own_queries[item] = query_of(start + row * query.row, item % HEAD_QUADS, batch) * (SCALE * LOG2_E);
    }
}

void share_products(int first) {
    [[unroll]] for (int row = 0; row < ROWS; ++row) {
        vec4 product = vec4(0.0);
        [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
            int quad = SHARERS * i + sharer;
            if (HEAD_QUADS % SHARERS == 0 || quad < HEAD_QUADS)
                product += own_queries[row * HEAD_QUADS + quad] * tile_key(i, first);
        }
        shares[(row * SHARERS + sharer) * PITCH + own_key] = (product.x + product.y) + (product.z + product.w);
    }
}

float score_of(int row, int k, int bits, bool counts) {
    float s = 0.0;
    [[unroll]] for (int i = 0; i < SHARERS; ++i) s += shares[(row * SHARERS + i) * PITCH + k];
    int widest = widened(MASK_FORM, ivec4(bits)).x;
    if (MASKED == 1) s += in_powers_of_two(vec4(intBitsToFloat(widest))).x;
    if (MASKED == 2) counts = counts && widest != 0;
    return counts ? s : intBitsToFloat(0xff800000);
}

float top = LOWEST, total = 0.0;
vec4 sum = vec4(0.0);

int key_of_slice(int i) { return KEEPS != 0 ? (local + i * LOCAL_SIZE) / LANES : slice * SLICE + i; }

// Of the tile whose scores are in shared memory.
void add_tile(int first) {
    float most = top;
    [[unroll]] for (int i = 0; i < SLICE; ++i) most = max(most, scores[own_row * KEYS + key_of_slice(i)]);
    float before = exp2(top - most);
    top = most;
    total *= before;
    sum *= before;
    [[unroll]] for (int i = 0; i < SLICE; ++i) {
        float off = scores[own_row * KEYS + key_of_slice(i)] - most;
        float weight = or_nan(vec4(exp2(off)), vec4(off)).x;
        total += weight;
        sum += weight * (KEEPS != 0 ? tile_value(min(i, HELD - 1), first) : pool[key_of_slice(i) * LANES + lane]);
    }
}

// What all slices of a query have, in the first one.
void join_slices() {
    barrier(); // what was in shared memory has been read
    pool[local] = sum;
    if (lane == 0) stats[own_row * SLICES + slice] = vec2(top, total);
    barrier();
    if (slice > 0) return;
    [[dont_unroll]] for (int first = 0; first < SLICES; first += STATS_AT_ONCE)
        [[unroll]] for (int s = 0; s < min(STATS_AT_ONCE, SLICES); ++s) top = max(top, stats[own_row * SLICES + first + s].x);
    total = 0.0;
    sum = vec4(0.0);
    [[dont_unroll]] for (int first = 0; first < SLICES; first += AT_ONCE)
        [[unroll]] for (int s = 0; s < min(AT_ONCE, SLICES); ++s) {
            vec2 others = stats[own_row * SLICES + first + s];
            float share = exp2(others.x - top);
            total += others.y * share;
            sum += pool[local + (first + s) * LANES] * share;
        }
}

// What all parts have of the parts that are this invocation's.
void read_parts(int from) {
    vec4 sums[OWN_PARTS];
    vec2 found[OWN_PARTS];
    [[unroll]] for (int i = 0; i < OWN_PARTS; ++i) {
        int at = from + (min(slice + i * SLICES, PARTS - 1) * ROWS + own_row) * (LANES + 1);
        sums[i] = partial_sums[at + lane];
        found[i] = partial_sums[at + LANES].xy;
    }
    top = LOWEST;
    total = 0.0;
    sum = vec4(0.0);
    [[unroll]] for (int i = 0; i < OWN_PARTS; ++i) top = max(top, found[i].x);
    [[unroll]] for (int i = 0; i < OWN_PARTS; ++i)
        if (slice + i * SLICES < PARTS) {
            float share = exp2(found[i].x - top);
            total += found[i].y * share;
            sum += sums[i] * share;
        }
}

void main() {
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int part = group % PARTS, row_groups = (query_count + ROWS - 1) / ROWS;
    number = group / PARTS;
    if (number >= batches * row_groups) {
#ifdef CACHED
        wait_for_operands();
#endif
        return;
    }
    first_row = number % row_groups * ROWS;
    int item = number / row_groups, outer = item / inner_size;
    ivec3 batch = ivec3(outer / middle_size, outer % middle_size, item % inner_size);
    int key_start = start_of(key, batch), value_start = start_of(value, batch);
    int query_start = start_of(query, batch), bias_start = start_of(bias, batch);

    int share = (key_count + PARTS * KEYS - 1) / (PARTS * KEYS) * KEYS;
    int start = part * share, end = min(start + share, key_count);
    read_keys(start, end, key_start);
    read_values(start, end, value_start);
#ifdef CACHED
    wait_for_operands();
    int given = WORD(places, PLACE);
    stage_new_row(batch);
#endif
    stage_queries(query_start, batch);
    read_mask(start, end, bias_start);
#ifdef CACHED
    find_new_row(given, group); // which needs a load to be done, as others do by now
#endif
    barrier();

    for (int first = start; first < end; first += KEYS) {
        share_products(first);
        barrier();
        [[unroll]] for (int i = 0; i < OWN_SCORES; ++i) {
            int at = local + i * LOCAL_SIZE;
            if (at < ROWS * KEYS) scores[at] = score_of(at / KEYS, at % KEYS, mask_read[i], first + at % KEYS < end);
        }
        if (KEEPS == 0)
            [[unroll]] for (int i = 0; i < HELD; ++i) pool[local + i * LOCAL_SIZE] = tile_value(i, first);
#ifdef CACHED
        if (first_row == 0) put_new_row(first, key_start, value_start, item);
#endif
        barrier();
        int next = first + KEYS; // whose loads begin as soon as there are registers for them
        if (next < end) {
            read_keys(next, end, key_start);
            read_mask(next, end, bias_start);
            if (KEEPS == 0) read_values(next, end, value_start);
        }
        add_tile(first);
        if (KEEPS != 0 && next < end) read_values(next, end, value_start);
    }

    join_slices();
    if (PARTS > 1) {
        int from = number * PARTS * ROWS * (LANES + 1);
        if (slice == 0) {
            int at = from + (part * ROWS + own_row) * (LANES + 1);
            partial_sums[at + lane] = sum;
            if (lane == 0) partial_sums[at + LANES] = vec4(top, total, 0.0, 0.0);
        }
        if (!is_last(number, PARTS)) return;
        read_parts(from);
        join_slices();
    }
    if (slice > 0 || lane >= WIDTH_QUADS || first_row + own_row >= query_count) return;
    vec4 value = sum * (total == 0.0 ? 0.0 : 1.0 / total); // where no key counts, torch gives zeros
    STORE_FLOATS4(result, RESULT_FORM, start_of(place, batch) + (first_row + own_row) * place.row + lane, value)
}
