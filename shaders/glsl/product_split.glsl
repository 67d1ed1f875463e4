// How product_matrix.comp reads and keeps floats: see split.glsl.
#define OPERANDS 2
#include "split.glsl"

struct Floats {
    vec4 own[VECTORS];
};

const int VALUE = 0, FACTOR = 1;
const uint FACTOR_SCALE = ONE + 8u; // also of weights that the host has split, see split_floats.py

#define FETCHED Floats
#ifdef NARROW
#define LINE_OF(name, form, index) Floats(vec4[1](LOAD_FLOATS4(name, form, index)))
#define NOTHING Floats(vec4[1](vec4(0.0)))
#else
#define LINE_OF(name, form, index) Floats(vec4[2](LOAD_FLOATS4(name, form, index), LOAD_FLOATS4(name, form, (index) + 1)))
#define NOTHING Floats(vec4[2](vec4(0.0), vec4(0.0)))
#endif

bool is_tail = false; // whether this invocation fetches the last columns

// Before the first barrier.
void begin_split() {
    if (me < 2) extremes[me] = 0u;
    met = float[2](0.0, IS_WEIGHT_SPLIT != 0 ? 1.0 : 0.0); // the scale suits weights that the host has split
    scales = uint[2](ONE + 4u, FACTOR_SCALE);
}

// Puts floats at a place of `pool` for high halves, and another for low ones.
void keep_split(int operand, int high_place, int low_place, Floats floats) {
    RUN high, low;
    [[unroll]] for (int v = 0; v < VECTORS; ++v) {
        MEET(operand, floats.own[v])
        Halves halves = halved(floats.own[v] * SCALING(operand));
        high[2 * v] = halves.high.x;
        high[2 * v + 1] = halves.high.y;
        low[2 * v] = halves.low.x;
        low[2 * v + 1] = halves.low.y;
    }
    pool[high_place] = high;
    pool[low_place] = low;
}

void keep_value(int place, Floats floats) { keep_split(VALUE, place, place + TILE_PAIR, floats); }

void keep_factor(int place, Floats floats) {
    if (IS_WEIGHT_SPLIT != 0) {
        RUN high, low;
        [[unroll]] for (int v = 0; v < VECTORS; ++v) {
            uvec4 halves = floatBitsToUint(floats.own[v]);
            high[2 * v] = halves.x;
            high[2 * v + 1] = halves.y;
            low[2 * v] = halves.z;
            low[2 * v + 1] = halves.w;
        }
        pool[place] = high;
        pool[place + TILE_PAIR] = low;
    } else {
        keep_split(FACTOR, place, place + TILE_PAIR, floats);
    }
}

// Four weights.
vec4 factor_at(int index) {
    if (IS_WEIGHT_SPLIT == 0) return WEIGHT(index);
    uvec4 halves = uvec4(QUAD(weights, index));
    vec4 high = vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
    return (high + vec4(unpackHalf2x16(halves.z), unpackHalf2x16(halves.w))) * power_of_two(2u * ONE - FACTOR_SCALE);
}

// Without what lies beside the last `count` numbers, which may be anything, and would be met.
Floats head_of(Floats floats, int count) {
    floats.own[VECTORS - 1] = head(floats.own[VECTORS - 1], count);
    return floats;
}

#ifdef SCALED
Floats scaled_run(Floats floats, int index) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v) floats.own[v] = scaled(floats.own[v], index + v);
    return floats;
}
#endif

#ifdef PLANAR
Floats planar_run(int place) { return Floats(vec4[1](planes_at(place))); }
#endif
