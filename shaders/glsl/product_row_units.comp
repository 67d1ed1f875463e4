#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// A few rows times a matrix of integers of 4 bits, by matrix units. These, counted from the least there is, become halves by a shift: as the
// highest bits of those that halves below 2^-14 have, where units (H200) keep as many digits of a product as of others. What a row has
// becomes two halves each (split_halves.glsl), by a power of two that 32 neighbours share. As rows are few, both are columns of one
// fragment, and have others for the next 32 neighbours, whose sums have other scales: up to four become floats at a time, each by one of
// the four invocations that share a line. A subgroup multiplies 16 columns of the matrix at a time by fragments that it fills from
// registers (matrix_fragments.glsl), and all that it needs of the matrix may be there before the rows are.
#define FORMS_ID 20
#include "product.glsl"
#include "quantized.glsl"
#include "split_halves.glsl"
#ifdef NORMALIZED
#include "product_normalized.glsl"
#endif

layout(constant_id = 12) const int ROWS = 1;          // of a workgroup
layout(constant_id = 13) const int WIDE = 1;          // tiles of 16 columns of a workgroup
layout(constant_id = 14) const int TEAMS = 8;         // subgroups, which divide the inner dimension
layout(constant_id = 15) const int STEPS = 2;         // blocks of it that a subgroup reads at a time
layout(constant_id = 16) const int INVOCATIONS = 256; // 32 * TEAMS
layout(constant_id = 17) const int AHEAD = 0;         // whether the first weights are read before others have ended: they are constants
layout(constant_id = 18) const int GATED = 0;         // see gates.glsl
layout(constant_id = 19) const int INNER = 16;        // vec4s of the inner dimension, rounded up to whole blocks
layout(local_size_x_id = 16, local_size_y = 1, local_size_z = 1) in;

#define RUN uvec4
const int VECTORS = 2; // vec4s of a run
const int M = 16, N = 16, K = 16;
const int SUBGROUPS = TEAMS;
const int EIGHT = 8;                   // vec4s of which a row's have the same power of two, and invocations that look at them
const int EIGHTS = 2;                  // of a block
const int BLOCKS = INNER / (EIGHT * EIGHTS);
const int SHARERS = 4 / ROWS;           // invocations that share a line of sums of a row
const int FLUSHED = SHARERS < STEPS * EIGHTS ? SHARERS : STEPS * EIGHTS; // eights whose sums become floats at a time
const int FLUSHES = STEPS * EIGHTS / FLUSHED;
const int RUNS = INNER / VECTORS + 4;  // of a line of halves; the 4 put two lines into other banks
const bool IS_WHOLE = BLOCKS % (STEPS * TEAMS) == 0;
const int ACROSS = 4 * WIDE;           // vec4s of columns of a workgroup
const uint AIM = 13u;                  // exponent of the largest of eight vec4s, scaled
const uint LEAST = 20u;                // exponent of a float that is treated as that of smaller ones: their power of two would be too large
const float INTEGER = 262144.0;        // by how much halves of integers are too small: sums are multiplied by it in the end
const float ADDED = -8.0 / INTEGER;    // of a sum of a row: what integers are counted from

shared RUN pool[2 * ROWS * RUNS];              // rows: a line of high halves of each, and one of low ones
shared vec2 heads[ROWS * INNER / EIGHT];       // of eight vec4s: what their sums are to be multiplied by, and what is to be added then
shared vec4 partial_sums[TEAMS * ROWS * ACROSS];
int me = int(gl_LocalInvocationID.x);
#include "matrix_fragments.glsl"
#include "gates.glsl"

// Of two numbers of each invocation, over eight neighbours: the largest of the first, the sum of the second; and the sums of both over a
// subgroup. All invocations of a workgroup together.
#ifdef EMULATED
shared vec2 exchanged_pairs[INVOCATIONS];

vec2 pair_of_neighbour(vec2 own, int distance) {
    exchanged_pairs[me] = own;
    barrier();
    vec2 other = exchanged_pairs[me ^ distance];
    barrier();
    return other;
}
#else
vec2 pair_of_neighbour(vec2 own, int distance) { return subgroupShuffleXor(own, uint(distance)); }
#endif

vec2 largest_and_sum(vec2 own) {
    [[unroll]] for (int distance = 1; distance < EIGHT; distance *= 2) {
        vec2 other = pair_of_neighbour(own, distance);
        own = vec2(max(own.x, other.x), own.y + other.y);
    }
    return own;
}

#ifdef NORMALIZED
shared vec2 both_pool[TEAMS * ROWS];

vec2 sums_of_subgroup(vec2 own) {
    [[unroll]] for (int distance = 1; distance < LANES_USED; distance *= 2) own += pair_of_neighbour(own, distance);
    return own;
}

RowStatistics statistics_of_row(int i) {
    vec2 both = vec2(0.0);
    [[unroll]] for (int team = 0; team < TEAMS; ++team) both += both_pool[team * ROWS + i];
    return statistics_of(both);
}
#endif

uvec4 blocks[STEPS * WIDE];
vec2 factors[FLUSHES * WIDE], offsets[FLUSHES * WIDE]; // of the two columns of an invocation
int scale_lines = (inner - 1 >> GROUP) + 1;

// The weights of STEPS blocks from `block` on and of WIDE tiles, and their scales; of the last ones where there are no more, which are
// multiplied by zeros, or whose sums nobody stores.
void read_weights(int block, int tile) {
    [[unroll]] for (int w = 0; w < WIDE; ++w) {
        int own_tile = WIDE > 1 ? min(tile + w, (columns - 1) / 4) : tile;
        [[unroll]] for (int s = 0; s < STEPS; ++s) {
            int own_block = IS_WHOLE ? block + s : min(block + s, BLOCKS - 1);
            blocks[s * WIDE + w] = uvec4(QUAD(weights, weight_offset + (own_tile * BLOCKS + own_block) * LANES_USED + lane()));
        }
        [[unroll]] for (int j = 0; j < FLUSHES; ++j) {
            int own_eight = block * EIGHTS + j * FLUSHED + run_of_lane() % SHARERS;
            int index = (own_tile * scale_lines + (min(own_eight * EIGHT, inner - 1) >> GROUP)) * 8 + line_of_lane();
            vec4 scale = intBitsToFloat(HAS_OFFSETS != 0 ? QUAD(scales, index) : ivec4(PAIR(scales, index), 0, 0));
            factors[j * WIDE + w] = scale.xy;
            offsets[j * WIDE + w] = scale.zw;
        }
    }
}

// Of eight integers of a column, the four that fragment `f` takes, as pairs of halves.
uvec2 pairs_of(uvec4 block, int e, int lower, int f) {
    uint word = block[2 * e + lower];
    return (f == 0 ? uvec2(word << 6, word << 2) : uvec2(word >> 2, word >> 6)) & 0x03c003c0u;
}

// Row `i`, which begins at `source`, as halves of what is left of it beside its base.
void stage_row(int i, int source, float base) {
    vec2 both = vec2(0.0);
    for (int first = 0; first < INNER; first += INVOCATIONS) {
        int k = first + me;
        vec4 value = vec4(0.0);
        if (k < inner) {
            value = ACTIVATION(source + k) - base;
            if (INNER_TAIL != 0 && k == inner - 1) value = head(value, INNER_TAIL);
#ifdef NORMALIZED
            both += both_of(value);
            if (HAS_GAINS != 0) value *= LOAD_FLOATS4(gains, WORDS, k);
#endif
        }
        vec2 eight = largest_and_sum(vec2(largest(abs(value)), (value.x + value.y) + (value.z + value.w)));
        uint exponent = max(floatBitsToUint(eight.x) >> 23, LEAST);
        Halves halves = halved(value * power_of_two(AIM + 2u * ONE - exponent));
        if (k < INNER) {
            int run = 2 * i * RUNS + k / VECTORS, place = k % VECTORS * 2;
            pool[run][place] = halves.high.x;
            pool[run][place + 1] = halves.high.y;
            pool[run + RUNS][place] = halves.low.x;
            pool[run + RUNS][place + 1] = halves.low.y;
            if (k % EIGHT == 0) heads[(i * INNER + k) / EIGHT] = vec2(power_of_two(exponent - AIM), eight.y * ADDED);
        }
    }
#ifdef NORMALIZED
    both = sums_of_subgroup(both);
    if (lane() == 0) both_pool[subgroup() * ROWS + i] = both;
#endif
}

void main() {
    int team = subgroup();
    int tile = int(gl_WorkGroupID.x) * WIDE;
    int first_row = start_row + int(gl_WorkGroupID.y) * ROWS;
    if (AHEAD != 0) read_weights(team * STEPS, tile);
    wait_for_operands();
    int sources[ROWS];
    [[unroll]] for (int i = 0; i < ROWS; ++i) sources[i] = input_offset + min(first_row + i, rows - 1) * input_pitch;

    // What the end needs is read first, so that it waits for nothing then.
    int own_row = first_row + me / ACROSS;
    int column = int(gl_WorkGroupID.x) * ACROSS + me % ACROSS;
    bool ends = me < ROWS * ACROSS && column < columns;
    vec4 bias = HAS_BIAS != 0 && ends ? BIAS(column) : vec4(0.0);
    vec4 residual = vec4(0.0);
    if (ends && own_row < rows) residual = residual_at(residual_index(0, own_row, Pixel(0, 0, 0)) + column);
#ifdef NORMALIZED
    vec4 column_sum = ends ? column_sum_at(column) : vec4(0.0);
#endif

    [[unroll]] for (int i = 0; i < ROWS; ++i) stage_row(i, sources[i], 0.0);
    barrier();
#ifdef NORMALIZED
    if (IS_CENTERED != 0) {
        float bases[ROWS];
        bool is_some_row_far = false;
        [[unroll]] for (int i = 0; i < ROWS; ++i) {
            RowStatistics found = statistics_of_row(i);
            bases[i] = found.mean;
            is_some_row_far = is_some_row_far || found.is_far;
        }
        if (is_some_row_far) {
            barrier(); // the sums were read
            [[unroll]] for (int i = 0; i < ROWS; ++i) stage_row(i, sources[i], bases[i]);
            barrier();
        }
    }
#endif

    vec2 sums[WIDE];
    [[unroll]] for (int w = 0; w < WIDE; ++w) sums[w] = vec2(0.0);
    int column_of_lane = line_of_lane() / 2;                                            // pairs of columns of halves
    int line = (column_of_lane / SHARERS * 2 + line_of_lane() % 2) * RUNS + run_of_lane(); // of halves
    int head = run_of_lane() / SHARERS * (INNER / EIGHT) + run_of_lane() % SHARERS;
    for (int first = 0; first < BLOCKS; first += STEPS * TEAMS) { // the same for all subgroups
        int block = first + team * STEPS;
        if (AHEAD == 0 || first > 0) read_weights(block, tile);
        [[unroll]] for (int j = 0; j < FLUSHES; ++j) {
            Sums own[WIDE];
            [[unroll]] for (int w = 0; w < WIDE; ++w) own[w] = no_sums();
            int eight = block * EIGHTS + j * FLUSHED;
            [[unroll]] for (int f = 0; f < FLUSHED; ++f) {
                bool exists = (IS_WHOLE || eight + f < INNER / EIGHT) && column_of_lane % SHARERS == f;
                RUN run = exists ? pool[line + (eight + f) * 4] : RUN(0);
                Right first_four = right_of(run.xy, uvec2(0)), last_four = right_of(run.zw, uvec2(0));
                int s = (j * FLUSHED + f) / EIGHTS, e = (j * FLUSHED + f) % EIGHTS;
                [[unroll]] for (int w = 0; w < WIDE; ++w) {
                    uvec4 block_of_lane = blocks[s * WIDE + w];
                    own[w] = multiplied(left_of(pairs_of(block_of_lane, e, 0, 0), pairs_of(block_of_lane, e, 1, 0)), first_four, own[w]);
                    own[w] = multiplied(left_of(pairs_of(block_of_lane, e, 0, 1), pairs_of(block_of_lane, e, 1, 1)), last_four, own[w]);
                }
            }
            int own_eight = run_of_lane() % SHARERS;
            bool exists = own_eight < FLUSHED && (IS_WHOLE || eight + own_eight < INNER / EIGHT);
            vec2 count = exists ? heads[head + eight] : vec2(0.0);
            [[unroll]] for (int w = 0; w < WIDE; ++w) {
                vec2 sum = vec2(ELEMENT(own[w], 0) + ELEMENT(own[w], 1), ELEMENT(own[w], 4) + ELEMENT(own[w], 5)); // of both halves
                sums[w] += factors[j * WIDE + w] * (sum * count.x + count.y);
                if (HAS_OFFSETS != 0) sums[w] += offsets[j * WIDE + w] * count.y;
            }
        }
    }

    [[unroll]] for (int w = 0; w < WIDE; ++w) {
        [[unroll]] for (int distance = 1; distance < SHARERS; distance *= 2) sums[w] += pair_of_neighbour(sums[w], distance);
        if (run_of_lane() % SHARERS == 0) {
            int place = (team * ROWS + run_of_lane() / SHARERS) * ACROSS + 4 * w + line_of_lane() / 4;
            partial_sums[place][line_of_lane() % 4] = sums[w].x;
            partial_sums[place + 2][line_of_lane() % 4] = sums[w].y;
        }
    }
    barrier();
    vec4 sum = vec4(0.0);
    if (ends) {
        [[unroll]] for (int t = 0; t < TEAMS; ++t) sum += partial_sums[t * ROWS * ACROSS + me];
        sum *= INTEGER;
#ifdef NORMALIZED
        RowStatistics found = statistics_of_row(me / ACROSS);
        sum = normalized_sum(sum, found.mean, found.scale, column_sum);
#endif
        sum += bias;
    }
    int result = result_index(0, own_row, Pixel(0, 0, 0));
    if (GATED == 0) {
        if (ends && own_row < rows) store(result + column, finished(sum, residual));
        return;
    }
    if (ends) partial_sums[me] = sum; // which nobody else has read
    barrier();
    if (ends && own_row < rows && (column & 1) == 0) store(result + column / 2, let_pass(sum, partial_sums[me + 1]));
}
