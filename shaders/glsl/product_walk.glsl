// How the products for CPU drivers walk along the inner dimension: taps and channels in one loop, as each further level would merge all
// the sums once more on drivers that mask lanes: they do so in each turn of the loop, which takes TURN steps therefore. A long one is
// divided into PARTS, whose sums product_sum.comp adds up.
#define FORMS_ID 17
#include "product.glsl"
#include "rolled.glsl"
#ifdef QUANTIZED
#include "quantized.glsl"
const int LINES = 1; // from a vec4 of the inner dimension to the next one, in lines of weight_pitch
#else
const int LINES = 4;
#endif

layout(constant_id = 12) const int ROWS = 8;
layout(constant_id = 13) const int COLUMNS = 4;
layout(constant_id = 14) const int PARTS = 1;
layout(constant_id = 15) const int TURN = 1; // divides `inner`
layout(constant_id = 16) const int ROLLED = 0; // the stores are a loop, see rolled.glsl
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;

struct Walk {
    int step, end;
    int weight; // where the factors of the step begin
    int k, tap_x, tap_y;
};

int step_count() { return SPATIAL != 0 ? taps_high * taps_wide * inner : inner; }

Walk walk_of(int batch, int part) {
    int steps = step_count();
    Walk walk = Walk(0, steps, weight_offset + batch * weight_batch, 0, 0, 0);
    if (PARTS > 1) {
        int share = (steps + PARTS * TURN - 1) / (PARTS * TURN) * TURN;
        walk.step = part * share;
        walk.end = min(walk.step + share, steps);
        walk.weight += LINES * weight_pitch * walk.step;
        int index = SPATIAL != 0 ? walk.step / inner : 0;
        walk.k = walk.step - index * inner;
        walk.tap_y = index / taps_wide;
        walk.tap_x = index - walk.tap_y * taps_wide;
    }
    return walk;
}

void advance(inout Walk walk) {
    walk.step += TURN;
    walk.weight += TURN * LINES * weight_pitch;
    walk.k += TURN;
    if (SPATIAL != 0) {
        bool next = walk.k == inner;
        walk.k = next ? 0 : walk.k;
        walk.tap_x += int(next);
        bool turns = walk.tap_x == taps_wide;
        walk.tap_x = turns ? 0 : walk.tap_x;
        walk.tap_y += int(turns);
    }
}

// Components that exist of the vec4 of step `t` of the turn.
int present_of(Walk walk, int t) { return INNER_TAIL != 0 && walk.k + t == inner - 1 ? INNER_TAIL : 4; }

// The weights' columns lie in panels of weight_pitch, each of all the rows.
int factor_column(int column) {
    int panel = int((float(column) + 0.5) / float(weight_pitch));
    return column + panel * (LINES * step_count() - 1) * weight_pitch;
}

// An input's vec4 at step `t` of the turn, for the row whose first tap is at `top` and `left` and whose first vec4 is at `address`.
vec4 activation_of(Walk walk, int t, int address, int top, int left) {
    int source = address + walk.k + t;
    if (SPATIAL != 0) source += (walk.tap_y * dilation_high * width + walk.tap_x * dilation_wide) * input_pitch;
    bool inside = PADDED == 0 || (uint(top + walk.tap_y * dilation_high) < uint(height) &&
                                  uint(left + walk.tap_x * dilation_wide) < uint(width));
    vec4 value = ACTIVATION(inside ? source : 0);
    if (PADDED != 0) value = inside ? value : vec4(0.0);
    return INNER_TAIL != 0 ? head(value, present_of(walk, t)) : value;
}

#ifdef QUANTIZED
#define LOAD_FACTORS(factors, walk, column, place)                                                                     \
    [[unroll]] for (int t = 0; t < TURN; ++t)                                                                          \
        [[unroll]] for (int j = 0; j < COLUMNS; ++j) {                                                                 \
            ivec4 block = WEIGHT_BLOCK((walk).weight + t * weight_pitch + (place)[j]);                                 \
            Scale scale = GROUP < 30 ? scale_of((walk).step + t, (column)[j]) : column_scales[j];                      \
            [[unroll]] for (int c = 0; c < 4; ++c) (factors)[(4 * t + c) * COLUMNS + j] = line_of(block, c, scale);    \
        }
#else
#define LOAD_FACTORS(factors, walk, column, place)                                                                     \
    [[unroll]] for (int c = 0; c < 4 * TURN; ++c)                                                                      \
        [[unroll]] for (int j = 0; j < COLUMNS; ++j) {                                                                 \
            int lines = c / 4 * 4 + present_of(walk, c / 4);                                                           \
            int line = INNER_TAIL != 0 ? min(c, lines - 1) : c;                                                        \
            vec4 factor = WEIGHT((walk).weight + line * weight_pitch + (place)[j]);                                    \
            (factors)[c * COLUMNS + j] = INNER_TAIL != 0 && c >= lines ? vec4(0.0) : factor;                           \
        }
#endif

// The products of step `t` of one sum, which are added up before they are added to it: so it is rounded once.
#define ADD_PRODUCTS(sum, value, factors, t, j)                                                                        \
    sum += (value).x * (factors)[4 * (t) * COLUMNS + (j)] + (value).y * (factors)[(4 * (t) + 1) * COLUMNS + (j)] +     \
           (value).z * (factors)[(4 * (t) + 2) * COLUMNS + (j)] + (value).w * (factors)[(4 * (t) + 3) * COLUMNS + (j)];
