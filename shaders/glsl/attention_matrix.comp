#version 450
// As attention.comp, for halves by matrix units, with scores and sums in float32 (T. Dao, FlashAttention-2, 2023). A subgroup has HIGH rows
// of fragments, each of 16 queries: their scores and results stay in its registers. Only the largest score of each row goes through
// shared memory, as it isn't known which lane holds which element, and weights, which become operands as halves. With SPLIT operands are
// floats, each of which is the sum of two halves (split.glsl).
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int HIGH = 1;   // rows of fragments of a subgroup
layout(constant_id = 2) const int KEYS = 64;  // of a tile
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

WRITES(0, result)
READS(1, queries)
READS(2, keys)
READS(3, values)
READS(4, mask)

#include "attention_push.glsl"

#define RUN uvec4
const int VECTORS = 2; // vec4s of a run
const int M = 16, N = 16, K = 16;
const int LANES_USED = 32;
const int SUBGROUPS = LOCAL_SIZE / LANES_USED;
const int OWN_ROWS = HIGH * M;
const int TILE_ROWS = OWN_ROWS * SUBGROUPS;
const int STEPS = (HEAD + K - 1) / K;
const int WIDE = (WIDTH + N - 1) / N;
const int ACROSS = KEYS / N;
const float LOWEST = -1e30;
#define EXPONENT (SCALE * 1.44269504) // of powers of two

// All sizes of shared memory count runs. A pitch keeps one free, so that rows are in different banks.
const int KEY_PITCH = 2 * STEPS + 1;
const int VALUE_PITCH = 2 * WIDE + 1;
const int WEIGHT_PITCH = 2 * ACROSS + 1;
const int TOP_PITCH = 5; // of a fragment of floats
const int RESULT_PITCH = 4 * WIDE + 1;
const int VALUES_START = KEYS * KEY_PITCH;
const int QUERY_RUNS = TILE_ROWS * KEY_PITCH;
#ifdef SPLIT
const int PARTS = 2; // of an operand, high halves before low ones
#else
const int PARTS = 1;
#endif
const int TILES = KEYS * (KEY_PITCH + VALUE_PITCH); // from high halves to low ones
#ifdef EMULATED
const int QUERIES_START = PARTS * TILES;
const int WEIGHTS_START = QUERIES_START + PARTS * QUERY_RUNS;
const int LOW_WEIGHTS = (PARTS - 1) * OWN_ROWS * WEIGHT_PITCH; // from high halves to low ones
#else
const int QUERIES_START = 0; // subgroups hold their queries, and their weights, in registers
const int WEIGHTS_START = PARTS * TILES;
const int LOW_WEIGHTS = 0;
#endif
const int OWN_WEIGHTS = LOW_WEIGHTS + OWN_ROWS * (WEIGHT_PITCH > TOP_PITCH ? WEIGHT_PITCH : TOP_PITCH); // of a subgroup
const int WEIGHTS_END = WEIGHTS_START + OWN_WEIGHTS * SUBGROUPS;
const int QUERIES_END = QUERIES_START + PARTS * QUERY_RUNS;
const int LOOP_RUNS = WEIGHTS_END > QUERIES_END ? WEIGHTS_END : QUERIES_END;
const int RESULT_RUNS = SUBGROUPS * M * RESULT_PITCH;
shared RUN pool[LOOP_RUNS > RESULT_RUNS ? LOOP_RUNS : RESULT_RUNS];
shared vec2 halves_of_rows[TILE_ROWS];
shared vec2 stats[TILE_ROWS]; // of each row the largest score, and by what it scales what was summed before

int me = int(gl_LocalInvocationID.x);
#include "matrix_units.glsl"

const int KEY_RUNS = HEAD / 8, VALUE_RUNS = WIDTH / 8;
const int KEY_FETCHES = (KEYS * 2 * STEPS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const int VALUE_FETCHES = (KEYS * 2 * WIDE + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Eight elements, from an even number of vec4s on: RUN_OF reads them.
const int QUERY = 0, KEY = 1, VALUE = 2;
#ifdef SPLIT
#define OPERANDS 3
#include "split.glsl"
#define FETCHED Floats
#define RUN_OF(name, form, quad) Floats(vec4[2](LOAD_FLOATS4(name, form, quad), LOAD_FLOATS4(name, form, (quad) + 1)))
#define NOTHING Floats(vec4[2](vec4(0.0), vec4(0.0)))

void keep_run(int operand, int place, int apart, Floats floats) { keep_split(operand, place, place + apart, floats); }
#else
#define FETCHED RUN
#define RUN_OF(name, form, quad) RUN(QUAD(name, (quad) >> 1))
#define NOTHING RUN(0)

void keep_run(int operand, int place, int apart, RUN run) { pool[place] = run; }
#endif
FETCHED fetched_keys[KEY_FETCHES];
FETCHED fetched_values[VALUE_FETCHES];

int start_of(Operand operand, ivec3 batch) {
    return operand.offset + batch.x * operand.outer + batch.y * operand.middle + batch.z * operand.inner;
}

void fetch_keys(int start, int first, int end) {
    [[unroll]] for (int i = 0; i < KEY_FETCHES; ++i) {
        int slot = me + i * LOCAL_SIZE, k = first + slot / (2 * STEPS), run = slot % (2 * STEPS);
        fetched_keys[i] = NOTHING;
        if (k < end && run < KEY_RUNS && slot < KEYS * 2 * STEPS) fetched_keys[i] = RUN_OF(keys, KEY_FORM, start + k * key.row + 2 * run);
    }
}

void fetch_values(int start, int first, int end) {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * LOCAL_SIZE, k = first + slot / (2 * WIDE), run = slot % (2 * WIDE);
        fetched_values[i] = NOTHING;
        if (k < end && run < VALUE_RUNS && slot < KEYS * 2 * WIDE) fetched_values[i] = RUN_OF(values, VALUE_FORM, start + k * value.row + 2 * run);
    }
}

void keep() {
    [[unroll]] for (int i = 0; i < KEY_FETCHES; ++i) {
        int slot = me + i * LOCAL_SIZE;
        if (slot < KEYS * 2 * STEPS) keep_run(KEY, slot / (2 * STEPS) * KEY_PITCH + slot % (2 * STEPS), TILES, fetched_keys[i]);
    }
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * LOCAL_SIZE;
        if (slot < KEYS * 2 * WIDE)
            keep_run(VALUE, VALUES_START + slot / (2 * WIDE) * VALUE_PITCH + slot % (2 * WIDE), TILES, fetched_values[i]);
    }
}

void keep_queries(int start, int first_row) {
    for (int slot = me; slot < TILE_ROWS * 2 * STEPS; slot += LOCAL_SIZE) {
        int row = slot / (2 * STEPS), run = slot % (2 * STEPS);
        FETCHED x = NOTHING;
        if (first_row + row < query_count && run < KEY_RUNS) x = RUN_OF(queries, QUERY_FORM, start + (first_row + row) * query.row + 2 * run);
        keep_run(QUERY, QUERIES_START + row * KEY_PITCH + run, QUERY_RUNS, x);
    }
}

int own_row, own_weights; // where those of this subgroup begin
Sums numbers;             // of each element of a fragment, row by row

// A fragment whose elements say where they are.
void number_elements() {
    for (int run = lane(); run < M * N / 4; run += LANES_USED)
        pool[own_weights + run / 4 * TOP_PITCH + run % 4] = floatBitsToUint(vec4(4 * run) + vec4(0.0, 1.0, 2.0, 3.0));
    wait_for_lanes();
    numbers = load_sums(own_weights, TOP_PITCH);
    wait_for_lanes();
}

int row_of(int e) { return int(ELEMENT(numbers, e)) / N; }
int column_of(int e) { return int(ELEMENT(numbers, e)) % N; }

Sums scores[HIGH * ACROSS];
Sums sums[HIGH * WIDE];
Sums total[HIGH];
float top[HIGH]; // of rows lane() / 2

// Reduces each row of what store_sums has put into the place of weights, by `largest` or adding up: two lanes share a row.
vec2 reduced_row(int i, bool largest) {
    int row = i * M + lane() / 2, at = own_weights + row * TOP_PITCH + lane() % 2 * 2;
    vec4 a = uintBitsToFloat(pool[at]), b = uintBitsToFloat(pool[at + 1]);
    vec4 c = largest ? max(a, b) : a + b;
    halves_of_rows[own_row + row][lane() % 2] = largest ? max(max(c.x, c.y), max(c.z, c.w)) : (c.x + c.y) + (c.z + c.w);
    wait_for_lanes();
    return halves_of_rows[own_row + row];
}

// A score of a query and a key, which may not count.
float masked(float s, int row, int k, int end, int bias_start) {
    bool counts = k < end;
    if (MASKED != 0) {
        int at = bias_start + min(row, query_count - 1) * bias.row + min(k, end - 1) * bias_column;
        int bits = LOAD1(mask, MASK_FORM, at);
        if (MASKED == 1) s += (bits & MAGNITUDE) < INFINITY ? clamp(intBitsToFloat(bits) / SCALE, LOWEST, -LOWEST) : intBitsToFloat(bits);
        else counts = counts && bits != 0;
    }
    if (CAUSAL != 0) counts = counts && k <= row;
    return counts ? s : intBitsToFloat(0xff800000);
}

void mask_scores(int first, int end, int first_row, int bias_start) {
    [[unroll]] for (int i = 0; i < HIGH; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j)
            [[unroll]] for (int e = 0; e < COUNT(numbers); ++e) {
                int row = first_row + own_row + i * M + row_of(e), k = first + j * N + column_of(e);
                ELEMENT(scores[i * ACROSS + j], e) = masked(ELEMENT(scores[i * ACROSS + j], e), row, k, end, bias_start);
            }
}

void find_tops() {
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        Sums most = scores[i * ACROSS];
        [[unroll]] for (int j = 1; j < ACROSS; ++j)
            [[unroll]] for (int e = 0; e < COUNT(most); ++e)
                ELEMENT(most, e) = max(ELEMENT(most, e), ELEMENT(scores[i * ACROSS + j], e));
        store_sums(most, own_weights + i * M * TOP_PITCH, TOP_PITCH);
    }
    wait_for_lanes();
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec2 found = reduced_row(i, true);
        float largest = max(top[i], max(found.x, found.y));
        if (lane() % 2 == 0) stats[own_row + i * M + lane() / 2] = vec2(largest, exp2((top[i] - largest) * EXPONENT));
        top[i] = largest;
    }
    wait_for_lanes();
}

// Weights, which become operands; what was summed before is scaled.
void weigh() {
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        [[unroll]] for (int e = 0; e < COUNT(numbers); ++e) {
            vec2 stat = stats[own_row + i * M + row_of(e)];
            float added = 0.0;
            [[unroll]] for (int j = 0; j < ACROSS; ++j) {
                float weight = exp2((ELEMENT(scores[i * ACROSS + j], e) - stat.x) * EXPONENT);
                ELEMENT(scores[i * ACROSS + j], e) = weight;
                added += weight;
            }
            ELEMENT(total[i], e) = ELEMENT(total[i], e) * stat.y + added;
            [[unroll]] for (int c = 0; c < WIDE; ++c) ELEMENT(sums[i * WIDE + c], e) *= stat.y;
        }
    }
}

// Weights as halves into shared memory. Of split ones first the high halves: what they miss stays in `scores`.
void store_weights(int start) {
    [[unroll]] for (int i = 0; i < HIGH; ++i)
        [[unroll]] for (int j = 0; j < ACROSS; ++j) {
            Sums weights = scores[i * ACROSS + j];
#ifdef SPLIT
            [[unroll]] for (int e = 0; e < COUNT(weights); ++e) {
                ELEMENT(weights, e) = rounded_to_eleven_bits(vec4(ELEMENT(weights, e))).x;
                ELEMENT(scores[i * ACROSS + j], e) -= ELEMENT(weights, e);
            }
#endif
            store_halves(weights, start + i * M * WEIGHT_PITCH + 2 * j, WEIGHT_PITCH);
        }
    wait_for_lanes();
}

// A fragment of queries, of keys, of weights or of values, `run` runs along the dimension that is summed over.
Left query_at(int i, int s, int part) {
    return load_left(QUERIES_START + part * QUERY_RUNS + (own_row + i * M) * KEY_PITCH + 2 * s, KEY_PITCH);
}
Right key_at(int j, int s, int part) { return load_turned(part * TILES + j * N * KEY_PITCH + 2 * s, KEY_PITCH); }
Left weight_at(int i, int k, int part) {
    return load_left(own_weights + part * LOW_WEIGHTS + i * M * WEIGHT_PITCH + 2 * k, WEIGHT_PITCH);
}
Right value_at(int k, int c, int part) {
    return load_right(part * TILES + VALUES_START + k * K * VALUE_PITCH + 2 * c, VALUE_PITCH);
}

#ifdef SPLIT
#include "attention_plain.glsl"

// Before the first barrier.
void begin_split() {
    if (me < OPERANDS) extremes[me] = 0u;
    met = float[3](0.0, 0.0, 0.0);
    scales = uint[3](ONE + 4u, ONE + 4u, ONE + 4u);
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
    int key_start = start_of(key, batch), value_start = start_of(value, batch), bias_start = start_of(bias, batch);
    own_row = subgroup() * OWN_ROWS;
    own_weights = WEIGHTS_START + subgroup() * OWN_WEIGHTS;

    int end = CAUSAL != 0 ? min(key_count, first_row + TILE_ROWS) : key_count;
#ifdef SPLIT
    begin_split();
    for (int attempt = 0; attempt < 2; ++attempt) {
#endif
    fetch_keys(key_start, 0, end);
    fetch_values(value_start, 0, end);
    keep_queries(start_of(query, batch), first_row);
    barrier();
    Left own_queries[HIGH * STEPS];
    [[unroll]] for (int i = 0; i < HIGH * STEPS; ++i) own_queries[i] = query_at(i / STEPS, i % STEPS, 0);
#ifdef SPLIT
    Left low_queries[HIGH * STEPS];
    [[unroll]] for (int i = 0; i < HIGH * STEPS; ++i) low_queries[i] = query_at(i / STEPS, i % STEPS, 1);
    float unscaling_scores = unscaling(QUERY) * unscaling(KEY);
#endif
    barrier();
    number_elements();
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        total[i] = no_sums();
        top[i] = LOWEST;
    }
    [[unroll]] for (int i = 0; i < HIGH * WIDE; ++i) sums[i] = no_sums();

    for (int first = 0; first < end; first += KEYS) {
        barrier();
        keep();
        barrier();
        if (first + KEYS < end) {
            fetch_keys(key_start, first + KEYS, end);
            fetch_values(value_start, first + KEYS, end);
        }
        [[unroll]] for (int j = 0; j < ACROSS; ++j) {
            [[unroll]] for (int i = 0; i < HIGH; ++i) scores[i * ACROSS + j] = no_sums();
            [[unroll]] for (int s = 0; s < STEPS; ++s) {
                Right factors = key_at(j, s, 0);
#ifdef SPLIT
                Right rest = key_at(j, s, 1);
                [[unroll]] for (int i = 0; i < HIGH; ++i) {
                    scores[i * ACROSS + j] = multiplied(own_queries[i * STEPS + s], rest, scores[i * ACROSS + j]);
                    scores[i * ACROSS + j] = multiplied(low_queries[i * STEPS + s], factors, scores[i * ACROSS + j]);
                }
#endif
                [[unroll]] for (int i = 0; i < HIGH; ++i)
                    scores[i * ACROSS + j] = multiplied(own_queries[i * STEPS + s], factors, scores[i * ACROSS + j]);
            }
#ifdef SPLIT
            [[unroll]] for (int i = 0; i < HIGH; ++i)
                [[unroll]] for (int e = 0; e < COUNT(numbers); ++e) ELEMENT(scores[i * ACROSS + j], e) *= unscaling_scores;
#endif
        }
        if (MASKED != 0 || first + KEYS > (CAUSAL != 0 ? min(end, first_row) : end)) mask_scores(first, end, first_row, bias_start);
        find_tops();
        weigh();
        store_weights(own_weights);
        Left weights[HIGH * ACROSS];
        [[unroll]] for (int i = 0; i < HIGH * ACROSS; ++i) weights[i] = weight_at(i / ACROSS, i % ACROSS, 0);
#ifdef SPLIT
        wait_for_lanes(); // their weights were read
        store_weights(own_weights + LOW_WEIGHTS);
        Left low_weights[HIGH * ACROSS];
        [[unroll]] for (int i = 0; i < HIGH * ACROSS; ++i) low_weights[i] = weight_at(i / ACROSS, i % ACROSS, 1);
        [[unroll]] for (int c = 0; c < WIDE; ++c) {
            Sums own[HIGH]; // of this tile, as units drop bits of what they add to
            [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = no_sums();
            [[unroll]] for (int k = 0; k < ACROSS; ++k) {
                Right factors = value_at(k, c, 0);
                Right rest = value_at(k, c, 1);
                [[unroll]] for (int i = 0; i < HIGH; ++i) {
                    own[i] = multiplied(weights[i * ACROSS + k], rest, own[i]);
                    own[i] = multiplied(low_weights[i * ACROSS + k], factors, own[i]);
                    own[i] = multiplied(weights[i * ACROSS + k], factors, own[i]);
                }
            }
            [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + c] = added(sums[i * WIDE + c], own[i]);
        }
#else
        [[unroll]] for (int k = 0; k < ACROSS; ++k)
            [[unroll]] for (int c = 0; c < WIDE; ++c) {
                Right factors = value_at(k, c, 0);
                [[unroll]] for (int i = 0; i < HIGH; ++i)
                    sums[i * WIDE + c] = multiplied(weights[i * ACROSS + k], factors, sums[i * WIDE + c]);
            }
#endif
        wait_for_lanes(); // their weights were read
    }
#ifdef SPLIT
        if (attempt > 0 || is_settled()) break;
    }
    if (is_plain) {
        attend_plainly(batch, first_row, end);
        return;
    }
#endif

    [[unroll]] for (int i = 0; i < HIGH; ++i) store_sums(total[i], own_weights + i * M * TOP_PITCH, TOP_PITCH);
    wait_for_lanes();
    [[unroll]] for (int i = 0; i < HIGH; ++i) reduced_row(i, false);
    int place_start = start_of(place, batch);
    int own_result = subgroup() * M * RESULT_PITCH;
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        barrier();
        [[unroll]] for (int c = 0; c < WIDE; ++c) store_sums(sums[i * WIDE + c], own_result + 4 * c, RESULT_PITCH);
        barrier();
        for (int slot = me; slot < SUBGROUPS * M * (WIDTH / 4); slot += LOCAL_SIZE) {
            int line = slot / (WIDTH / 4), quad = slot % (WIDTH / 4);
            int row = line / M * OWN_ROWS + i * M + line % M;
            if (first_row + row < query_count) {
                float whole = halves_of_rows[row].x + halves_of_rows[row].y;
                float scale = whole == 0.0 ? 0.0 : 1.0 / whole; // where no key counts, torch gives zeros
#ifdef SPLIT
                scale *= unscaling(VALUE);
#endif
                vec4 x = uintBitsToFloat(pool[line * RESULT_PITCH + quad]) * scale;
                STORE_FLOATS4(result, RESULT_FORM, place_start + (first_row + row) * place.row + quad, x)
            }
        }
    }
}
