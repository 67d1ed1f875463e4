#version 450
// softmax(q k^T scale + mask) v of few queries, as a decoder asks for each token: keys and values are used once, so they go from memory to registers, a tile of KEYS of them at a time. Four invocations share the product with a key, LANES a value;
// those that share one keep the largest score, the sum of powers and the weighted sum of values of all the keys that they had, as in
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
// Of each query, for each of its parts: the sums of LANES invocations, then the largest score and the sum of powers.
layout(set = 0, binding = 5, std430) coherent buffer PartialSums { vec4 partial_sums[]; };

#include "attention_push.glsl"
#include "attention_operands.glsl"

const int SHARERS = 4; // of a key
const int AT_ONCE = 4; // parts of sums that are read at a time
const int KEYS = LOCAL_SIZE / SHARERS;
const int SLOTS = LOCAL_SIZE / LANES;
const int HELD = KEYS / SLOTS; // values of an invocation in a tile
const int HEAD_QUADS = (HEAD + 3) / 4, WIDTH_QUADS = (WIDTH + 3) / 4;
const int OWN_QUADS = (HEAD_QUADS + SHARERS - 1) / SHARERS;

shared vec4 products[2 * KEYS]; // of a tile: the sum of each sharer; tiles take turns, so that one barrier is enough
shared vec4 sums[LOCAL_SIZE];
shared vec2 stats[SLOTS]; // the largest score, and the sum of powers

#ifdef CACHED
#include "attention_cache.glsl"
#endif

#define ARRIVALS 6
#define LAST stats[0].x
#include "arrival.glsl"

int local = int(gl_LocalInvocationID.x);
int sharer = local % SHARERS;
int lane = local % LANES, slot = local / LANES;

float score_of(int tile, int k, int key_number, int bias_start, int end) {
    vec4 shares = products[tile + k];
    float s = (shares.x + shares.y) + (shares.z + shares.w);
    bool counts = key_number < end;
    if (MASKED != 0) {
        int bits = widened(MASK_FORM, ivec4(RAW1(mask, MASK_FORM, bias_start + min(key_number, end - 1) * bias_column))).x;
        if (MASKED == 1) s += in_powers_of_two(vec4(intBitsToFloat(bits))).x;
        else counts = counts && bits != 0;
    }
    return counts ? s : intBitsToFloat(0xff800000);
}

vec4 own[OWN_QUADS]; // of the query
vec4 keys_read[OWN_QUADS], values_read[HELD];

// The keys and values of this invocation in a tile, of those before `end`.
void read_tile(int first, int end, int key_start, int value_start) {
    int k = first + local / SHARERS;
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        keys_read[i] = k < end && quad < HEAD_QUADS ? LOAD_FLOATS4(keys, KEY_FORM, key_start + k * key.row + quad) : vec4(0.0);
    }
    [[unroll]] for (int i = 0; i < HELD; ++i) {
        int v = first + slot + i * SLOTS;
        bool exists = v < end && lane < WIDTH_QUADS;
        values_read[i] = exists ? LOAD_FLOATS4(values, VALUE_FORM, value_start + v * value.row + lane) : vec4(0.0);
    }
}

#ifdef CACHED
vec4 new_key[OWN_QUADS], new_value;
int new_row;

// Finds out where the new row belongs, and raises the flag if there is no such row.
void find_new_row(int group) {
    int given = WORD(places, PLACE);
    new_row = WRAPS != 0 && given < 0 ? given + key_count : given;
    if (new_row < 0 || new_row >= key_count) {
        new_row = -1;
        if (group == 0 && local == 0) RAISE_FLAG
    }
}

// Reads the query and the new row, as this invocation needs them, and turns them. Opposite vec4s are this invocation's too, where SHARERS divide
// a half of what is turned.
void read_new_row(int query_start, ivec3 batch) {
    const bool IS_OWN = TURNED % (2 * SHARERS) == 0;
    const int AWAY = TURNED / (2 * SHARERS);
    int key_start = NEST(KEY, batch);
    vec4 queries_read[OWN_QUADS], new_keys_read[OWN_QUADS];
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        queries_read[i] = quad < HEAD_QUADS ? LOAD_FLOATS4(queries, QUERY_FORM, query_start + quad) : vec4(0.0);
        new_keys_read[i] = quad < HEAD_QUADS ? LOAD_FLOATS4(new_keys, NEW_FORMS & 7, key_start + quad) : vec4(0.0);
    }
    new_value = lane < WIDTH_QUADS ? LOAD_FLOATS4(new_values, NEW_FORMS >> 3 & 7, NEST(VALUE, batch) + lane) : vec4(0.0);
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        own[i] = queries_read[i];
        new_key[i] = new_keys_read[i];
        if (TURNED == 0 || quad >= TURNED) continue;
        vec4 c = cosines_at(quad, batch), s = sines_at(quad, batch);
        int other = i < AWAY ? min(i + AWAY, OWN_QUADS - 1) : i - AWAY;
        if (QUERY_TURNED != 0)
            own[i] = turned(own[i], IS_OWN ? queries_read[other] : LOAD_FLOATS4(queries, QUERY_FORM, query_start + opposite(quad)), quad, c, s);
        if (KEY_TURNED != 0)
            new_key[i] = turned(new_key[i], IS_OWN ? new_keys_read[other] : LOAD_FLOATS4(new_keys, NEW_FORMS & 7, key_start + opposite(quad)), quad, c, s);
    }
}

// Has the new row in a tile, if it belongs there; one of the queries that share a cache writes it there. The others may
// have read the one before, or not.
void put_new_row(int first, int key_start, int value_start, int item, bool writes) {
    if (first + local / SHARERS == new_row)
        [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
            int quad = SHARERS * i + sharer;
            if (writes && quad < HEAD_QUADS) {
                journal_quads[item * HEAD_QUADS + quad] = floatBitsToInt(keys_read[i]);
                keys_quads[key_start + new_row * key.row + quad] = floatBitsToInt(new_key[i]);
            }
            keys_read[i] = new_key[i];
        }
    [[unroll]] for (int i = 0; i < HELD; ++i)
        if (first + slot + i * SLOTS == new_row) {
            if (writes && lane < WIDTH_QUADS) {
                journal_quads[(batches * HEAD_QUADS + item * WIDTH_QUADS) + lane] = floatBitsToInt(values_read[i]);
                values_quads[value_start + new_row * value.row + lane] = floatBitsToInt(new_value);
            }
            values_read[i] = new_value;
        }
}
#endif

float top = LOWEST, total = 0.0;
vec4 sum = vec4(0.0);

// What other keys have, of which `top` is the largest score already.
void add(vec2 others, vec4 values) {
    float share = exp2(others.x - top);
    total += others.y * share;
    sum += values * share;
}

void main() {
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int part = group % PARTS, number = group / PARTS;
    if (number >= batches * query_count) {
#ifdef CACHED
        wait_for_operands();
#endif
        return;
    }
    int row = number % query_count, inner = number / query_count;
    int outer = inner / inner_size;
    ivec3 batch = ivec3(outer / middle_size, outer % middle_size, inner % inner_size);
    int key_start = start_of(key, batch), value_start = start_of(value, batch);
    int query_start = start_of(query, batch) + row * query.row, bias_start = start_of(bias, batch) + row * bias.row;

    int share = (key_count + PARTS * KEYS - 1) / (PARTS * KEYS) * KEYS;
    int start = part * share, end = min(start + share, key_count);
#ifdef CACHED
    read_tile(start, end, key_start, value_start);
    wait_for_operands();
    find_new_row(group);
    read_new_row(query_start, batch);
#else
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
        int quad = SHARERS * i + sharer;
        own[i] = quad < HEAD_QUADS ? LOAD_FLOATS4(queries, QUERY_FORM, query_start + quad) : vec4(0.0);
        if (HEAD % 4 != 0) own[i] = without_tail(own[i], quad, HEAD);
    }
#endif
    [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) own[i] *= SCALE * LOG2_E;

    int tile = 0;
    for (int first = start; first < end; first += KEYS) {
#ifdef CACHED
        if (first > start) read_tile(first, end, key_start, value_start);
        put_new_row(first, key_start, value_start, inner, row == 0);
#else
        read_tile(first, end, key_start, value_start);
#endif
        vec4 product = vec4(0.0);
        [[unroll]] for (int i = 0; i < OWN_QUADS; ++i) {
            if (HEAD % 4 != 0) keys_read[i] = without_tail(keys_read[i], SHARERS * i + sharer, HEAD);
            product += own[i] * keys_read[i];
        }
        products[tile + local / SHARERS][sharer] = (product.x + product.y) + (product.z + product.w);
        barrier();
        float scores[HELD];
        float most = top;
        [[unroll]] for (int i = 0; i < HELD; ++i) {
            int v = slot + i * SLOTS;
            scores[i] = score_of(tile, v, first + v, bias_start, end);
            most = max(most, scores[i]);
        }
        float before = exp2(top - most);
        top = most;
        total *= before;
        sum *= before;
        [[unroll]] for (int i = 0; i < HELD; ++i) {
            float off = scores[i] - most;
            float weight = or_nan(vec4(exp2(off)), vec4(off)).x;
            total += weight;
            sum += weight * values_read[i];
        }
        tile = KEYS - tile;
    }

    // The largest score of all is found first, so that no load waits for what was made of another; only AT_ONCE wait in registers.
    sums[local] = sum;
    if (lane == 0) stats[slot] = vec2(top, total);
    barrier();
    if (slot == 0) {
        [[unroll]] for (int s = 1; s < SLOTS; ++s) top = max(top, stats[s].x);
        total = 0.0;
        sum = vec4(0.0);
        [[dont_unroll]] for (int first = 0; first < SLOTS; first += AT_ONCE)
            [[unroll]] for (int s = 0; s < min(AT_ONCE, SLOTS); ++s) add(stats[first + s], sums[(first + s) * LANES + lane]);
    }
    if (PARTS > 1) {
        int from = number * PARTS * (LANES + 1);
        if (slot == 0) {
            partial_sums[from + part * (LANES + 1) + lane] = sum;
            if (lane == 0) partial_sums[from + part * (LANES + 1) + LANES] = vec4(top, total, 0.0, 0.0);
        }
        if (!is_last(number, PARTS)) return;
        if (slot == 0) {
            [[unroll]] for (int p = 0; p < PARTS; ++p) top = max(top, partial_sums[from + p * (LANES + 1) + LANES].x);
            total = 0.0;
            sum = vec4(0.0);
            [[dont_unroll]] for (int first = 0; first < PARTS; first += AT_ONCE)
                [[unroll]] for (int p = 0; p < AT_ONCE; ++p)
                    if (first + p < PARTS) {
                        int at = from + (first + p) * (LANES + 1);
                        add(partial_sums[at + LANES].xy, partial_sums[at + lane]);
                    }
        }
    }
    if (slot > 0 || lane >= WIDTH_QUADS) return;
    vec4 value = sum * (total == 0.0 ? 0.0 : 1.0 / total); // where no key counts, torch gives zeros
    STORE_FLOATS4(result, RESULT_FORM, start_of(place, batch) + row * place.row + lane, value)
}
