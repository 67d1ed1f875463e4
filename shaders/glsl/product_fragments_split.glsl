// How product_fragments.comp multiplies floats, each of which is the sum of two halves (split.glsl). Weights are split on the host: of eight
// columns of a step there are first the high halves, then the low ones.
#define OPERANDS 2
#include "split.glsl"

const int VALUE = 0, FACTOR = 1;
const uint FACTOR_SCALE = ONE + 8u; // see split_floats.py

#define FETCHED Floats
#define NOTHING Floats(vec4[2](vec4(0.0), vec4(0.0)))
#define FACTORS (2 * EIGHTS) // runs of a step
#define FETCHED_AT(place) Floats(vec4[2](ACTIVATION(place), ACTIVATION((place) + 1)))
#define FACTOR_AT(turn, j) factor_at(turn, 2 * eight + (j))

// Before the first barrier.
void begin_split() {
    if (me < OPERANDS) extremes[me] = 0u;
    met = float[2](0.0, 1.0); // the scale suits weights that the host has split
    scales = uint[2](ONE + 4u, FACTOR_SCALE);
}

struct Halves {
    uvec4 high, low;
};

Halves halves_of(Floats floats) {
    Halves halves;
    [[unroll]] for (int v = 0; v < 2; ++v) {
        [[unroll]] for (int c = 0; c < 4; ++c) met[VALUE] = max(met[VALUE], abs(floats.own[v][c]));
        vec4 x = floats.own[v] * power_of_two(scales[VALUE]);
        vec4 rounded = rounded_to_eleven_bits(x);
        vec4 rest = x - rounded;
        halves.high[2 * v] = packHalf2x16(rounded.xy);
        halves.high[2 * v + 1] = packHalf2x16(rounded.zw);
        halves.low[2 * v] = packHalf2x16(rest.xy);
        halves.low[2 * v + 1] = packHalf2x16(rest.zw);
    }
    return halves;
}

// By the first or the second four of the eight neighbours that an invocation has of each line, for two columns of fragments.
#define MULTIPLY_FOURS(columns_of, j, four, second)                                                                              \
    {                                                                                                                            \
        Right factor = right_of(columns_of[4 * j].four, columns_of[4 * j + 2].four);                                             \
        Right rest = right_of(columns_of[4 * j + 1].four, columns_of[4 * j + 3].four);                                           \
        [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(high[2 * i + second], rest, own[i]);                       \
        [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(low[2 * i + second], factor, own[i]);                      \
        [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = multiplied(high[2 * i + second], factor, own[i]);                     \
    }
// A step is summed up by itself, as units drop bits of what they add to.
#define MULTIPLY(rows_of, columns_of)                                                                                            \
    {                                                                                                                            \
        Left high[2 * HIGH], low[2 * HIGH];                                                                                      \
        [[unroll]] for (int i = 0; i < HIGH; ++i) {                                                                              \
            Halves upper = halves_of(rows_of[2 * i]), lower = halves_of(rows_of[2 * i + 1]);                                     \
            high[2 * i] = left_of(upper.high.xy, lower.high.xy);                                                                 \
            high[2 * i + 1] = left_of(upper.high.zw, lower.high.zw);                                                             \
            low[2 * i] = left_of(upper.low.xy, lower.low.xy);                                                                    \
            low[2 * i + 1] = left_of(upper.low.zw, lower.low.zw);                                                                \
        }                                                                                                                        \
        [[unroll]] for (int j = 0; j < WIDE; ++j) {                                                                              \
            Sums own[HIGH];                                                                                                      \
            [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = no_sums();                                                        \
            MULTIPLY_FOURS(columns_of, j, xy, 0)                                                                                 \
            MULTIPLY_FOURS(columns_of, j, zw, 1)                                                                                 \
            [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + j] = added(sums[i * WIDE + j], own[i]);                    \
        }                                                                                                                        \
    }

uint component(uvec4 words, int i) { return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w; }

// The weight of element `k` of the inner dimension, which lies at place k % 8 of run k / 8 % 4 of a step.
float weight_at(int k, int column) {
    int place = (k / 32 * weight_pitch + column / 8 * 2) * LANES_USED + column % 8 * 4 + k / 8 % 4;
    int word = k % 8 / 2;
    vec2 high = unpackHalf2x16(component(uvec4(QUAD(weights, place)), word));
    vec2 low = unpackHalf2x16(component(uvec4(QUAD(weights, place + LANES_USED)), word));
    return (k % 2 == 0 ? high.x + low.x : high.y + low.y) * power_of_two(2u * ONE - FACTOR_SCALE);
}

vec4 prepared_value(vec4 value, int row, int index);

// Where sums of halves can't tell: by ordinary arithmetic.
vec4 plain_sum(Spot spot) {
    ivec2 place = ivec2(spot.pixel.x * stride_wide + first_wide, spot.pixel.y * stride_high + first_high);
    int address = input_offset + batch * input_batch + spot.row * input_pitch;
    if (SPATIAL != 0) address = input_offset + spot.pixel.batch * input_batch + (place.y * width + place.x) * input_pitch;
    vec4 sum = vec4(0.0);
    int share = turns * TEAMS * STEP * VECTORS;
    for (int step = part * share; step < min(part * share + share, total * VECTORS); ++step) {
        int index = SPATIAL != 0 ? step / inner : 0;
        ivec2 shift = SPATIAL != 0 ? ivec2(index % taps_wide * dilation_wide, index / taps_wide * dilation_high) : ivec2(0);
        int own = step - index * inner;
        bool inside = PADDED == 0 || (uint(place.x + shift.x) < uint(width) && uint(place.y + shift.y) < uint(height));
        if (!inside) continue;
        vec4 value = prepared_value(ACTIVATION(address + (shift.y * width + shift.x) * input_pitch + own), spot.row, own);
        [[unroll]] for (int c = 0; c < 4; ++c)
            [[unroll]] for (int o = 0; o < 4; ++o) sum[o] += value[c] * weight_at(4 * step + c, 4 * spot.column + o);
    }
    return sum;
}
