// How the products for CPU drivers walk along the inner dimension: taps and channels in one loop, as each further level would merge all
// the sums once more on drivers that mask lanes. A long one is divided into PARTS, whose sums product_sum.comp adds up.
#define FORMS_ID 15
#include "product.glsl"
#ifdef QUANTIZED
#include "quantized.glsl"
const int LINES = 1; // from a vec4 of the inner dimension to the next one, in lines of weight_pitch
#else
const int LINES = 4;
#endif

layout(constant_id = 12) const int ROWS = 8;
layout(constant_id = 13) const int COLUMNS = 4;
layout(constant_id = 14) const int PARTS = 1;
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
        int share = (steps + PARTS - 1) / PARTS;
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
    ++walk.step;
    walk.weight += LINES * weight_pitch;
    ++walk.k;
    if (SPATIAL != 0) {
        bool next = walk.k == inner;
        walk.k = next ? 0 : walk.k;
        walk.tap_x += int(next);
        bool turns = walk.tap_x == taps_wide;
        walk.tap_x = turns ? 0 : walk.tap_x;
        walk.tap_y += int(turns);
    }
}

// Components of the step's vec4 that exist.
int present_of(Walk walk) { return INNER_TAIL != 0 && walk.k == inner - 1 ? INNER_TAIL : 4; }

// The weights' columns lie in panels of weight_pitch, each of all the rows.
int factor_column(int column) {
    int panel = int((float(column) + 0.5) / float(weight_pitch));
    return column + panel * (LINES * step_count() - 1) * weight_pitch;
}

// An input's vec4 at a step, for the row whose first tap is at `top` and `left` and whose first vec4 is at `address`.
vec4 activation_of(Walk walk, int present, int address, int top, int left) {
    int source = address + walk.k;
    if (SPATIAL != 0) source += (walk.tap_y * dilation_high * width + walk.tap_x * dilation_wide) * input_pitch;
    bool inside = PADDED == 0 || (uint(top + walk.tap_y * dilation_high) < uint(height) &&
                                  uint(left + walk.tap_x * dilation_wide) < uint(width));
    vec4 value = ACTIVATION(inside ? source : 0);
    if (PADDED != 0) value = inside ? value : vec4(0.0);
    return INNER_TAIL != 0 ? head(value, present) : value;
}

#ifdef QUANTIZED
#define LOAD_FACTORS(factors, walk, present, column, place)                                                            \
    [[unroll]] for (int j = 0; j < COLUMNS; ++j) {                                                                     \
        ivec4 block = WEIGHT_BLOCK((walk).weight + (place)[j]);                                                        \
        Scale scale = GROUP < 30 ? scale_of((walk).step, (column)[j]) : column_scales[j];                              \
        [[unroll]] for (int c = 0; c < 4; ++c) (factors)[c * COLUMNS + j] = line_of(block, c, scale);                  \
    }
#else
#define LOAD_FACTORS(factors, walk, present, column, place)                                                            \
    [[unroll]] for (int c = 0; c < 4; ++c)                                                                             \
        [[unroll]] for (int j = 0; j < COLUMNS; ++j) {                                                                 \
            int line = INNER_TAIL != 0 ? min(c, (present) - 1) : c;                                                    \
            vec4 factor = WEIGHT((walk).weight + line * weight_pitch + (place)[j]);                                    \
            (factors)[c * COLUMNS + j] = INNER_TAIL != 0 && c >= (present) ? vec4(0.0) : factor;                       \
        }
#endif

// Four steps of one sum of products.
#define ADD_PRODUCTS(sum, value, factors, j)                                                                           \
    sum += (value).x * (factors)[j];                                                                                   \
    sum += (value).y * (factors)[COLUMNS + (j)];                                                                       \
    sum += (value).z * (factors)[2 * COLUMNS + (j)];                                                                   \
    sum += (value).w * (factors)[3 * COLUMNS + (j)];
