#version 450
// As attention.comp, for halves by matrix units, with scores and sums in float32 (T. Dao, FlashAttention-2, 2023). A subgroup has HIGH rows of
// fragments, each of 16 queries. Scores become weights, and weights operands, in the registers in which they lie (matrix_fragments.glsl). TEAMS of
// subgroups have the same queries and divide the tiles of keys; at the end they put together what they have. What is multiplied subgroups read
// straight from memory into registers in which matrix units take it (attention_fragments.glsl), or, with STAGED, from shared memory, where all
// invocations put it together (attention_staged.glsl). With SPLIT operands are floats, each of which is the sum of two halves (split.glsl).
// Indices into arrays are variables of unrolled loops, or expressions of them: others put the arrays into local memory (NVIDIA).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int HIGH = 1;   // rows of fragments of a subgroup
layout(constant_id = 2) const int KEYS = 32;  // of a tile, a multiple of 16
layout(constant_id = 3) const int HEAD = 16;  // elements of queries and keys, a multiple of eight
layout(constant_id = 4) const int WIDTH = 16; // elements of values, likewise
layout(constant_id = 5) const float SCALE = 1.0; // more than zero
layout(constant_id = 6) const int CAUSAL = 0; // a query sees the keys up to its own number
layout(constant_id = 7) const int MASKED = 0; // 1: a float is added to scores, 2: a bool says which count
layout(constant_id = 8) const int MASK_FORM = 0;
layout(constant_id = 9) const int RESULT_FORM = 0;
layout(constant_id = 10) const int QUERY_FORM = HALVES; // or words, of floats that are split
layout(constant_id = 11) const int KEY_FORM = HALVES;
layout(constant_id = 12) const int VALUE_FORM = HALVES;
layout(constant_id = 13) const int TEAMS = 1; // with STAGED there is one
layout(constant_id = 14) const int AHEAD = 0; // what is read during the tile before: keys (1), values (2); with STAGED it always is

WRITES(0, result)
READS(1, queries)
READS(2, keys)
READS(3, values)
READS(4, mask)

#include "attention_push.glsl"

#define RUN uvec4
const int VECTORS = 2; // vec4s of a run
const int M = 16, N = 16, K = 16;
const int SUBGROUPS = LOCAL_SIZE / 32;
const int OWN_ROWS = HIGH * M;
const int TILE_ROWS = OWN_ROWS * (SUBGROUPS / TEAMS);
const int KEY_RUNS = HEAD / 8, VALUE_RUNS = WIDTH / 8;
#ifdef STAGED
const int INNER = (HEAD + 15) / 16; // fragments of a line of queries or keys
const int WIDE = (WIDTH + 15) / 16; // of a line of values
const int RESULTS = 2 * WIDE;       // vec4s that an invocation has of a row of fragments
#else
const int INNER = 2 * ((HEAD + 31) / 32);
const int GROUPS = (WIDTH + 63) / 64; // of 64 elements of values, which are four fragments
const int WIDE = 4 * GROUPS;
const int RESULTS = 8 * GROUPS;
#endif
const int ACROSS = KEYS / N;
const float LOWEST = -1e30;
#define EXPONENT (SCALE * 1.44269504) // of powers of two

// What teams exchange: of each row the largest score and the sum of weights, and vec4s of results, SHARED of each invocation at a time.
#ifdef EMULATED
const int SHARED = 4;
#else
const int SHARED = 8;
#endif
#ifdef STAGED
#ifdef SPLIT
const int PARTS = 2; // high and low halves, which lie apart
#else
const int PARTS = 1;
#endif
const int KEY_PITCH = 2 * INNER + 1, VALUE_PITCH = 2 * WIDE + 1; // runs; the odd one keeps lines apart that are read together
const int VALUES_AT = PARTS * KEYS * KEY_PITCH;
const int STAGE = VALUES_AT + PARTS * KEYS * VALUE_PITCH; // a tile is multiplied while the next comes
const int QUERY_STAGE = TILE_ROWS * KEY_PITCH; // a part after the other
shared RUN pool[2 * STAGE > QUERY_STAGE ? 2 * STAGE : QUERY_STAGE];
#else
shared RUN pool[TEAMS > 1 ? SUBGROUPS * 32 * SHARED : 1];
#endif
shared vec2 stats[TEAMS > 1 ? SUBGROUPS * OWN_ROWS : 1];

int me = int(gl_LocalInvocationID.x);
#include "matrix_fragments.glsl"

#ifdef SPLIT
#define OPERANDS 3
#include "split.glsl"
#endif

int own_row; // the first query of this subgroup
int team;

Left own_queries[HIGH * INNER];
Left weights[HIGH * ACROSS];
#ifdef SPLIT
Left low_queries[HIGH * INNER], low_weights[HIGH * ACROSS];
#endif
Sums scores[HIGH * ACROSS];
Sums sums[HIGH * WIDE];
// Of rows line_of_lane(), and of those eight below.
vec2 top[HIGH];
vec2 total[HIGH]; // of this invocation's weights

int start_of(Operand operand, ivec3 batch) {
    return operand.offset + batch.x * operand.outer + batch.y * operand.middle + batch.z * operand.inner;
}

// By the fragments that OPERAND or LOAD_OPERAND has declared.
#ifdef SPLIT
#define MULTIPLY(sum, left, low_left)                                                                                            \
    {                                                                                                                            \
        sum = multiplied(left, low, sum);                                                                                        \
        sum = multiplied(low_left, high, sum);                                                                                   \
        sum = multiplied(left, high, sum);                                                                                       \
    }
#else
#define MULTIPLY(sum, left, low_left) sum = multiplied(left, high, sum);
#endif

// What a tile of split values gives is summed apart, as units drop bits of what they add to.
#ifdef SPLIT
#define SUMS_BEFORE(sum) no_sums()
#define SUMS_AFTER(sum, own) added(sum, own)
#else
#define SUMS_BEFORE(sum) sum
#define SUMS_AFTER(sum, own) own
#endif

const int QUERY = 0, KEY = 1, VALUE = 2;
#ifdef SPLIT
const int LOADS = 2; // of eight neighbours
#else
const int LOADS = 1;
#endif
int in_loads(int quads) { return quads >> (2 - LOADS); }

#ifdef STAGED
#include "attention_staged.glsl"
#else
#include "attention_fragments.glsl"
#endif

void multiply_keys(int turn) {
    [[unroll]] for (int j = 0; j < ACROSS; ++j) {
        [[unroll]] for (int i = 0; i < HIGH; ++i) scores[i * ACROSS + j] = no_sums();
        [[unroll]] for (int f = 0; f < INNER; ++f) {
            KEYS_OPERAND(turn, j, f)
            [[unroll]] for (int i = 0; i < HIGH; ++i) MULTIPLY(scores[i * ACROSS + j], own_queries[i * INNER + f], low_queries[i * INNER + f])
        }
#ifdef SPLIT
        float unscaling = UNSCALING(QUERY) * UNSCALING(KEY);
        [[unroll]] for (int i = 0; i < HIGH; ++i)
            [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) ELEMENT(scores[i * ACROSS + j], e) *= unscaling;
#endif
    }
}

// A score of a query and a key, which may not count.
float masked(float s, int row, int k, int end, int bias_start) {
    bool counts = k < end;
    if (MASKED != 0) {
        int at = bias_start + min(row, query_count - 1) * bias.row + min(k, key_count - 1) * bias_column;
        int bits = LOAD1(mask, MASK_FORM, at);
        if (MASKED == 1) s += (bits & MAGNITUDE) < INFINITY ? clamp(intBitsToFloat(bits) / SCALE, LOWEST, -LOWEST) : intBitsToFloat(bits);
        else counts = counts && bits != 0;
    }
    if (CAUSAL != 0) counts = counts && k <= row;
    return counts ? s : intBitsToFloat(0xff800000);
}

void mask_scores(int first, int end, int bias_start) {
    [[unroll]] for (int i = 0; i < HIGH; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j)
            [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) {
                int row = own_row + i * M + line_of(e), k = first + j * N + place_of(e);
                ELEMENT(scores[i * ACROSS + j], e) = masked(ELEMENT(scores[i * ACROSS + j], e), row, k, end, bias_start);
            }
}

// Scores become weights; what was summed before is scaled.
void weigh() {
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec2 most = vec2(LOWEST);
        [[unroll]] for (int j = 0; j < ACROSS; ++j)
            [[unroll]] for (int e = 0; e < 4; ++e)
                most = max(most, vec2(ELEMENT(scores[i * ACROSS + j], e), ELEMENT(scores[i * ACROSS + j], e + 4)));
        most = max(top[i], largest_of_lines(most));
        vec2 scaling = exp2((top[i] - most) * EXPONENT);
        top[i] = most;
        total[i] *= scaling;
        [[unroll]] for (int j = 0; j < ACROSS; ++j)
            [[unroll]] for (int e = 0; e < 4; ++e) {
                vec2 own = vec2(ELEMENT(scores[i * ACROSS + j], e), ELEMENT(scores[i * ACROSS + j], e + 4));
                vec2 weight = exp2((own - most) * EXPONENT);
                ELEMENT(scores[i * ACROSS + j], e) = weight.x;
                ELEMENT(scores[i * ACROSS + j], e + 4) = weight.y;
                total[i] += weight;
            }
        [[unroll]] for (int c = 0; c < WIDE; ++c)
            [[unroll]] for (int e = 0; e < 4; ++e) {
                ELEMENT(sums[i * WIDE + c], e) *= scaling.x;
                ELEMENT(sums[i * WIDE + c], e + 4) *= scaling.y;
            }
    }
}

void turn_weights() {
    [[unroll]] for (int i = 0; i < HIGH * ACROSS; ++i) {
#ifdef SPLIT
        Sums rest = scores[i];
        [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) {
            ELEMENT(scores[i], e) = rounded_to_eleven_bits(vec4(ELEMENT(scores[i], e))).x;
            ELEMENT(rest, e) -= ELEMENT(scores[i], e);
        }
        low_weights[i] = left_of_sums(rest);
#endif
        weights[i] = left_of_sums(scores[i]);
    }
}

#include "attention_results.glsl"
#ifdef SPLIT
#include "attention_plain.glsl"

void begin_split() {
    if (me < OPERANDS) extremes[me] = 0u;
    met = float[3](0.0, 0.0, 0.0);
    scales = uint[3](ONE + 4u, ONE + 4u, ONE + 4u);
    barrier();
}
#endif

void main() {
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int tiles = (query_count + TILE_ROWS - 1) / TILE_ROWS;
    int number = group / tiles;
    if (number >= batches) return;
    int tile = group - number * tiles;
    if (CAUSAL != 0) tile = tiles - 1 - tile; // those with the most keys come first
    int first_row = tile * TILE_ROWS;
    int outer = number / inner_size;
    ivec3 batch = ivec3(outer / middle_size, outer % middle_size, number % inner_size);
    int query_start = start_of(query, batch), key_start = start_of(key, batch), value_start = start_of(value, batch);
    int bias_start = start_of(bias, batch);
    // Of what is read the bases depend on the wait, so the indices need not.
    int waited = after_wait;
    query_start += waited;
    key_start += waited;
    value_start += waited;
    bias_start += waited;
    after_wait = 0;
    own_row = first_row + subgroup() / TEAMS * OWN_ROWS;
    team = subgroup() % TEAMS;

    // All subgroups go round the loop equally often, though some see fewer keys: a driver doesn't know that the invocations of each agree.
    int end_of_all = CAUSAL != 0 ? min(key_count, first_row + TILE_ROWS) : key_count;
    int turns = (end_of_all + TEAMS * KEYS - 1) / (TEAMS * KEYS);
    int end = own_row >= query_count ? 0 : CAUSAL != 0 ? min(key_count, own_row + OWN_ROWS) : key_count;
#ifdef STAGED
    int last = max(end_of_all, 1) - 1; // of a tile that all invocations read
#else
    int last = max(end, 1) - 1;
#endif
    int unmasked = CAUSAL != 0 ? min(end, own_row + 1) : end; // keys that all queries see
#ifdef SPLIT
    begin_split();
    for (int attempt = 0; attempt < 2; ++attempt) {
#endif
    int first = team * KEYS;
    begin(query_start, key_start, value_start, first, last);
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        top[i] = vec2(LOWEST);
        total[i] = vec2(0.0);
    }
    [[unroll]] for (int i = 0; i < HIGH * WIDE; ++i) sums[i] = no_sums();
    for (int turn = 0; turn < turns; ++turn) {
        before_keys(key_start, value_start, first, last);
        multiply_keys(turn);
        after_keys(key_start, value_start, first, last);
        if (MASKED != 0 || first + KEYS > unmasked) mask_scores(first, end, bias_start);
        weigh();
        turn_weights();
        multiply_values(turn);
        first += TEAMS * KEYS;
        after_values(value_start, first, last, turn);
    }
#ifdef SPLIT
        if (attempt > 0 || is_settled()) break;
    }
    if (is_plain) {
        after_wait = waited;
        attend_plainly(batch, first_row, end_of_all);
        return;
    }
#endif
    if (TEAMS > 1)
        store_together(start_of(place, batch));
    else
        store_own(start_of(place, batch));
}
