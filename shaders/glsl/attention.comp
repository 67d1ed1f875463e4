#version 450
// softmax(q k^T scale + mask) v, without the matrix of scores: a workgroup keeps the largest score, the sum of powers and the weighted
// sum of values of some queries while it walks over the keys, and scales what it has when it meets a larger score (M. Milakov and
// N. Gimelshein, Online normalizer calculation for softmax, 2018; T. Dao et al., FlashAttention, 2022). Keys that are too many for one
// dispatch are divided among several, which hand on what they have in `sums` and `stats`.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "exponential.glsl"

layout(constant_id = 1) const int ROWS = 1;    // queries of an invocation
layout(constant_id = 2) const int CHUNKS = 1;  // of 64 elements of the values
layout(constant_id = 3) const int HEAD = 4;    // elements of queries and keys
layout(constant_id = 4) const int WIDTH = 4;   // elements of values
layout(constant_id = 5) const float SCALE = 1.0;
layout(constant_id = 6) const int CAUSAL = 0;  // a query sees the keys up to its own number
layout(constant_id = 7) const int MASKED = 0;  // 1: a float is added to scores, 2: a bool says which count
layout(constant_id = 8) const int FIRST = 1;   // nothing is handed on to this dispatch
layout(constant_id = 9) const int LAST = 1;    // nor by it
layout(constant_id = 10) const int QUERY_FORM = 0;
layout(constant_id = 11) const int KEY_FORM = 0;
layout(constant_id = 12) const int VALUE_FORM = 0;
layout(constant_id = 13) const int MASK_FORM = 0;
layout(constant_id = 14) const int RESULT_FORM = 0;

WRITES(0, result)
READS(1, queries)
READS(2, keys)
READS(3, values)
READS(4, mask)
UPDATES(5, sums)
UPDATES(6, stats)

// Nests of three dimensions, the innermost last; offsets and strides count vec4s, those of the mask elements.
struct Operand {
    int offset, outer, middle, inner, row;
};
layout(push_constant) uniform Geometry {
    int batches, middle_size, inner_size, query_count, begin, end;
    Operand query, key, value, place, bias;
    int bias_column;
};

const int KEY_GROUPS = 8, ROW_GROUPS = LOCAL_SIZE / KEY_GROUPS;
const int KEYS = 32;           // of a tile
const int EACH = 4;            // keys of an invocation
const int PIECE = 16;          // vec4s of a key or value in a tile
const int PITCH = KEYS + 1;
const int TILE_ROWS = ROWS * ROW_GROUPS;
const int HEAD_QUADS = (HEAD + 3) / 4, WIDTH_QUADS = (WIDTH + 3) / 4;
const float LOWEST = -3.40282347e38;

shared vec4 tile[PIECE * PITCH];
shared float weights[TILE_ROWS * PITCH];
shared float tops[TILE_ROWS * KEY_GROUPS];

vec4 without_tail(vec4 x, int quad, int count) {
    return mix(vec4(0.0), x, lessThan(ivec4(0, 1, 2, 3) + 4 * quad, ivec4(count)));
}

int start_of(Operand operand, ivec3 batch) {
    return operand.offset + batch.x * operand.outer + batch.y * operand.middle + batch.z * operand.inner;
}

void main() {
    int local = int(gl_LocalInvocationID.x);
    int key_group = local % KEY_GROUPS, row_group = local / KEY_GROUPS;
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int tiles = (query_count + TILE_ROWS - 1) / TILE_ROWS;
    int parts = (WIDTH_QUADS + CHUNKS * PIECE - 1) / (CHUNKS * PIECE);
    int part = group % parts;
    int number = group / parts / tiles;
    if (number >= batches) return;
    int first_row = (group / parts - number * tiles) * TILE_ROWS;
    int first_quad = part * CHUNKS * PIECE;
    int outer = number / inner_size;
    ivec3 batch = ivec3(outer / middle_size, outer % middle_size, number % inner_size);
    int query_start = start_of(query, batch), key_start = start_of(key, batch), value_start = start_of(value, batch);
    int bias_start = start_of(bias, batch);

    float top[ROWS];
    float total[ROWS];
    vec4 sum[ROWS * CHUNKS * 2];
    int row[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        row[r] = first_row + r * ROW_GROUPS + row_group;
        top[r] = LOWEST;
        total[r] = 0.0;
        for (int c = 0; c < CHUNKS * 2; ++c) sum[r * CHUNKS * 2 + c] = vec4(0.0);
        if (FIRST == 0 && row[r] < query_count) {
            int at = number * query_count + row[r];
            int stat = (at * parts + part) * (KEY_GROUPS + 1);
            top[r] = intBitsToFloat(stats_words[stat]);
            total[r] = intBitsToFloat(stats_words[stat + 1 + key_group]);
            for (int c = 0; c < CHUNKS * 2; ++c) {
                int quad = first_quad + c * KEY_GROUPS + key_group;
                if (quad < WIDTH_QUADS) sum[r * CHUNKS * 2 + c] = intBitsToFloat(sums_quads[at * WIDTH_QUADS + quad]);
            }
        }
    }

    int last_key = CAUSAL != 0 ? min(end, min(first_row + TILE_ROWS, query_count)) : end;
    for (int first = begin; first < last_key; first += KEYS) {
        vec4 score[ROWS];
        for (int r = 0; r < ROWS; ++r) score[r] = vec4(0.0);
        for (int piece = 0; piece < HEAD_QUADS; piece += PIECE) {
            barrier();
            for (int i = local; i < KEYS * PIECE; i += LOCAL_SIZE) {
                int k = i / PIECE, quad = piece + i % PIECE;
                vec4 x = vec4(0.0);
                if (first + k < last_key && quad < HEAD_QUADS) {
                    x = without_tail(LOAD_FLOATS4(keys, KEY_FORM, key_start + (first + k) * key.row + quad), quad, HEAD);
                }
                tile[(i % PIECE) * PITCH + k] = x;
            }
            barrier();
            for (int i = 0; i < min(PIECE, HEAD_QUADS - piece); ++i) {
                vec4 a = tile[i * PITCH + key_group], b = tile[i * PITCH + key_group + KEY_GROUPS];
                vec4 c = tile[i * PITCH + key_group + 2 * KEY_GROUPS], d = tile[i * PITCH + key_group + 3 * KEY_GROUPS];
                for (int r = 0; r < ROWS; ++r) {
                    int from = query_start + min(row[r], query_count - 1) * query.row + piece + i;
                    vec4 q = LOAD_FLOATS4(queries, QUERY_FORM, from);
                    if (HEAD % 4 != 0) q = without_tail(q, piece + i, HEAD);
                    score[r] += vec4(dot(q, a), dot(q, b), dot(q, c), dot(q, d));
                }
            }
        }

        ivec4 number_of_key = first + key_group + KEY_GROUPS * ivec4(0, 1, 2, 3);
        bvec4 exists = lessThan(number_of_key, ivec4(last_key));
        for (int r = 0; r < ROWS; ++r) {
            vec4 s = score[r] * SCALE;
            bvec4 counts = exists;
            if (MASKED != 0) {
                ivec4 at = bias_start + min(row[r], query_count - 1) * bias.row + min(number_of_key, ivec4(last_key - 1)) * bias_column;
                ivec4 bits = widened(MASK_FORM, ivec4(RAW1(mask, MASK_FORM, at.x), RAW1(mask, MASK_FORM, at.y),
                                                      RAW1(mask, MASK_FORM, at.z), RAW1(mask, MASK_FORM, at.w)));
                if (MASKED == 1) s += intBitsToFloat(bits);
                else counts = both(counts, notEqual(bits, ivec4(0)));
            }
            if (CAUSAL != 0) counts = both(counts, lessThanEqual(number_of_key, ivec4(row[r])));
            s = mix(vec4(intBitsToFloat(0xff800000)), s, counts);
            score[r] = s;
            tops[(r * ROW_GROUPS + row_group) * KEY_GROUPS + key_group] = max(max(s.x, s.y), max(s.z, s.w));
        }
        barrier();
        for (int r = 0; r < ROWS; ++r) {
            int at = r * ROW_GROUPS + row_group;
            float largest = top[r];
            for (int i = 0; i < KEY_GROUPS; ++i) largest = max(largest, tops[at * KEY_GROUPS + i]);
            float before = decay(vec4(top[r] - largest)).x;
            vec4 off = score[r] - largest;
            vec4 weight = or_nan(decay(off), off);
            top[r] = largest;
            total[r] = total[r] * before + ((weight.x + weight.y) + (weight.z + weight.w));
            for (int c = 0; c < CHUNKS * 2; ++c) sum[r * CHUNKS * 2 + c] *= before;
            for (int i = 0; i < EACH; ++i) weights[at * PITCH + key_group + KEY_GROUPS * i] = weight[i];
        }

        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            barrier();
            for (int i = local; i < KEYS * PIECE; i += LOCAL_SIZE) {
                int k = i / PIECE, quad = first_quad + chunk * PIECE + i % PIECE;
                vec4 x = vec4(0.0);
                if (first + k < last_key && quad < WIDTH_QUADS) {
                    x = LOAD_FLOATS4(values, VALUE_FORM, value_start + (first + k) * value.row + quad);
                }
                tile[i] = x;
            }
            barrier();
            for (int k = 0; k < KEYS; ++k) {
                vec4 a = tile[k * PIECE + key_group], b = tile[k * PIECE + key_group + KEY_GROUPS];
                for (int r = 0; r < ROWS; ++r) {
                    float weight = weights[(r * ROW_GROUPS + row_group) * PITCH + k];
                    sum[(r * CHUNKS + chunk) * 2] += weight * a;
                    sum[(r * CHUNKS + chunk) * 2 + 1] += weight * b;
                }
            }
        }
    }

    barrier();
    for (int r = 0; r < ROWS; ++r) tops[(r * ROW_GROUPS + row_group) * KEY_GROUPS + key_group] = total[r];
    barrier();
    for (int r = 0; r < ROWS; ++r) {
        if (row[r] >= query_count) continue;
        int at = number * query_count + row[r];
        float whole = 0.0;
        for (int i = 0; i < KEY_GROUPS; ++i) whole += tops[(r * ROW_GROUPS + row_group) * KEY_GROUPS + i];
        float scale = whole == 0.0 ? 0.0 : 1.0 / whole; // where no key counts, torch gives zeros
        if (LAST == 0) {
            int stat = (at * parts + part) * (KEY_GROUPS + 1);
            if (key_group == 0) stats_words[stat] = floatBitsToInt(top[r]);
            stats_words[stat + 1 + key_group] = floatBitsToInt(total[r]);
        }
        for (int c = 0; c < CHUNKS * 2; ++c) {
            int quad = first_quad + c * KEY_GROUPS + key_group;
            if (quad >= WIDTH_QUADS) continue;
            vec4 value = sum[r * CHUNKS * 2 + c];
            if (LAST == 0) {
                sums_quads[at * WIDTH_QUADS + quad] = floatBitsToInt(value);
            } else {
                STORE_FLOATS4(result, RESULT_FORM, start_of(place, batch) + row[r] * place.row + quad, value * scale)
            }
        }
    }
}
