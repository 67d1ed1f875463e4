// How product_fragments.comp multiplies floats, each of which is the sum of two halves (split.glsl). Weights are split on the host: of eight
// columns of a step there are first the high halves, then the low ones.
#define OPERANDS 1
#include "split.glsl"

const int VALUE = 0;
const uint FACTOR_SCALE = ONE + 8u; // see split_floats.py
const int FACTORS = 2 * EIGHTS;     // loads of a step

struct Floats {
    vec4 lower, upper;
};

#define FETCHED Floats
#define NOTHING Floats(vec4(0.0), vec4(0.0))
#define FETCHED_AT(place) Floats(ACTIVATION(place), ACTIVATION((place) + 1))
#define OTHER_AT(place) Floats(RESIDUAL(place), RESIDUAL((place) + 1))
#define CUT_TAIL(run, reach)

// Before the first barrier.
void begin_split() {
    if (me == 0) extremes[VALUE] = 0u;
    scales = uint[1](ONE + 4u);
}

// Before an attempt: what is met of it is scaled.
void forget_values() { met = float[1](0.0); }

bool is_split_settled() {
    met[VALUE] *= UNSCALING(VALUE);
    barrier(); // extremes are zero
    return is_settled();
}

vec4 unscaled_factors(vec4 x) { return x * power_of_two(2u * ONE - FACTOR_SCALE); }

#ifdef SCALED
Floats scaled_run(Floats floats, Scale lower, Scale upper) { return Floats(scaled(floats.lower, lower), scaled(floats.upper, upper)); }
#endif

struct SplitRun {
    uvec4 high, low;
};

SplitRun split_run(Floats floats) {
    vec4 first = floats.lower * SCALING(VALUE), last = floats.upper * SCALING(VALUE);
    MEET(VALUE, first)
    MEET(VALUE, last)
    Halves lower = halved(first), upper = halved(last);
    return SplitRun(uvec4(lower.high, upper.high), uvec4(lower.low, upper.low));
}

// By the first or the second four of the eight neighbours that an invocation has of each line, for two columns of fragments.
#define MULTIPLY_FOURS(rows_of, columns_of, j, four)                                                                             \
    {                                                                                                                            \
        Right factor = right_of(columns_of[4 * j].four, columns_of[4 * j + 2].four);                                             \
        Right rest = right_of(columns_of[4 * j + 1].four, columns_of[4 * j + 3].four);                                           \
        [[unroll]] for (int i = 0; i < HIGH; ++i) {                                                                              \
            Left high = left_of(rows_of[2 * i].high.four, rows_of[2 * i + 1].high.four);                                         \
            Left low = left_of(rows_of[2 * i].low.four, rows_of[2 * i + 1].low.four);                                            \
            own[i] = multiplied(high, rest, own[i]);                                                                             \
            own[i] = multiplied(low, factor, own[i]);                                                                            \
            own[i] = multiplied(high, factor, own[i]);                                                                           \
        }                                                                                                                        \
    }
// A step is summed up by itself, as units drop bits of what they add to. What comes next of the input is read as soon as there is room.
#define TURN(rows_of, columns_of, turn)                                                                                          \
    {                                                                                                                            \
        PREPARE(rows_of, turn)                                                                                                   \
        SplitRun runs[LINES];                                                                                                    \
        [[unroll]] for (int i = 0; i < LINES; ++i) runs[i] = split_run(rows_of[i]);                                              \
        FETCH_VALUES(rows_of, turn + DEPTH)                                                                                      \
        [[unroll]] for (int j = 0; j < WIDE; ++j) {                                                                              \
            Sums own[HIGH];                                                                                                      \
            [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = no_sums();                                                        \
            MULTIPLY_FOURS(runs, columns_of, j, xy)                                                                              \
            MULTIPLY_FOURS(runs, columns_of, j, zw)                                                                              \
            [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + j] = added(sums[i * WIDE + j], own[i]);                    \
        }                                                                                                                        \
        FETCH_FACTORS(columns_of, turn + DEPTH)                                                                                  \
    }

vec4 whole_sum(vec4 sum, Spot spot) { return unscaled_factors(sum * UNSCALING(VALUE)); }

// Four neighbours of a column.
vec4 factors_of(uvec2 high, uvec2 low) {
    return vec4(unpackHalf2x16(high.x), unpackHalf2x16(high.y)) + vec4(unpackHalf2x16(low.x), unpackHalf2x16(low.y));
}

// Where sums of halves can't tell: by ordinary arithmetic.
vec4 plain_sum(Spot spot) {
    ivec2 place;
    int address;
    find_row(spot.row, place, address);
#ifdef SHORTCUT
    int other = other_address(spot.row);
#endif
    vec4 sum = vec4(0.0);
    int share = turns * TEAMS * STEP;
    for (int run = part * share; run < min(part * share + share, total); ++run) {
        Reach reach = reach_at(0, run * VECTORS);
        if (!is_inside(place, reach)) continue;
#ifdef SHORTCUT
        Floats floats = NOTHING;
        if (reach.is_other)
            floats = OTHER_AT(other + reach.offset);
        else
            floats = FETCHED_AT(address + reach.offset);
#else
        Floats floats = FETCHED_AT(address + reach.offset);
#endif
#ifdef SCALED
        int scale = scales_of(spot.row) + reach.offset;
        floats = scaled_run(floats, scale_at(scale), scale_at(scale + 1));
#endif
        int load = (run / STEP * weight_pitch + spot.column / 2 * 2) * LANES_USED + spot.column % 2 * 4 * STEP + run % STEP;
        [[unroll]] for (int o = 0; o < 4; ++o) {
            RUN high = RUN(QUAD(weights, load + o * STEP)), low = RUN(QUAD(weights, load + o * STEP + LANES_USED));
            sum[o] += dot(floats.lower, factors_of(high.xy, low.xy)) + dot(floats.upper, factors_of(high.zw, low.zw));
        }
    }
    return unscaled_factors(sum);
}
