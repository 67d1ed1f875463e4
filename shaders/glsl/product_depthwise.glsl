// A depthwise convolution of what a product makes, in the same dispatch: a workgroup computes a region of pixels of its columns, keeps it in
// shared memory, and filters it. Where images are larger than a region, regions overlap by what the filter reads. Rows are the
// pixels of the region; see runtimes/vulkan/kernels/expanded_depthwise.py.
layout(constant_id = FORMS_ID + 1) const int TAPS_HIGH = 3;
layout(constant_id = FORMS_ID + 2) const int TAPS_WIDE = 3;
layout(constant_id = FORMS_ID + 3) const int STRIDE_HIGH = 1;
layout(constant_id = FORMS_ID + 4) const int STRIDE_WIDE = 1;
layout(constant_id = FORMS_ID + 5) const int DILATION_HIGH = 1;
layout(constant_id = FORMS_ID + 6) const int DILATION_WIDE = 1;
layout(constant_id = FORMS_ID + 7) const int PADDING_HIGH = 1; // before and after
layout(constant_id = FORMS_ID + 8) const int PADDING_WIDE = 1;
layout(constant_id = FORMS_ID + 9) const int REGION_HIGH = 14;
layout(constant_id = FORMS_ID + 10) const int REGION_WIDE = 14;
layout(constant_id = FORMS_ID + 11) const int TILE_HIGH = 14; // results of a region
layout(constant_id = FORMS_ID + 12) const int TILE_WIDE = 14;
layout(constant_id = FORMS_ID + 13) const int IS_WHOLE = 1;  // a region is all of an image
layout(constant_id = FORMS_ID + 14) const int HAS_FILTER_BIAS = 0;
layout(constant_id = FORMS_ID + 15) const int THEN = MOVE;
layout(constant_id = FORMS_ID + 16) const float THEN_FIRST = 0.0;
layout(constant_id = FORMS_ID + 17) const float THEN_SECOND = 0.0;
layout(constant_id = FORMS_ID + 18) const int FILTER_FORM = WORDS;
layout(constant_id = FORMS_ID + 19) const int HAS_MEANS = 0; // of the pixels of each tile, over the number of all pixels
layout(constant_id = FORMS_ID + 20) const int MEANS_FORM = WORDS;
layout(constant_id = FORMS_ID + 21) const int THEN_AFTER = MOVE;
layout(constant_id = FORMS_ID + 22) const float THEN_AFTER_FIRST = 0.0;
layout(constant_id = FORMS_ID + 23) const float THEN_AFTER_SECOND = 0.0;
const int GROUP = 1;
const int OUT_HIGH = 1; // an invocation takes one pixel at a time
const int OUT_WIDE = 1;

READS(5, filter_weights)
READS(6, filter_biases)
WRITES(7, means)

// Of the result, by the sizes of what is filtered.
int filtered_height = (out_height + 2 * PADDING_HIGH - DILATION_HIGH * (TAPS_HIGH - 1) - 1) / STRIDE_HIGH + 1;
int filtered_width = (out_width + 2 * PADDING_WIDE - DILATION_WIDE * (TAPS_WIDE - 1) - 1) / STRIDE_WIDE + 1;

int tiles_wide = (filtered_width + TILE_WIDE - 1) / TILE_WIDE;
int tile_y = int(gl_WorkGroupID.y) / tiles_wide * TILE_HIGH;
int tile_x = int(gl_WorkGroupID.y) % tiles_wide * TILE_WIDE;
int region_y = IS_WHOLE != 0 ? 0 : tile_y * STRIDE_HIGH - PADDING_HIGH;
int region_x = IS_WHOLE != 0 ? 0 : tile_x * STRIDE_WIDE - PADDING_WIDE;

const int FILTERS = TAPS_HIGH * TAPS_WIDE * BLOCK_COLUMNS;
shared vec4 kept_filters[FILTERS];
#define FILTER(tap) kept_filters[(tap) * BLOCK_COLUMNS + me % BLOCK_COLUMNS]
#include "depthwise_block.glsl"

// The pixel of a row, which may lie outside of the image.
Pixel region_pixel(int row) { return Pixel(0, region_y + row / REGION_WIDE, region_x + row % REGION_WIDE); }

bool is_in_image(Pixel pixel) { return uint(pixel.y) < uint(out_height) && uint(pixel.x) < uint(out_width); }

vec4 filter_bias = vec4(0.0); // of the column of this invocation

// Filters are constants: they are read before the dispatch waits for what it reads.
void keep_filters(int block_column) {
    int own = block_column + me % BLOCK_COLUMNS;
    if (HAS_FILTER_BIAS != 0 && own < columns) filter_bias = LOAD_FLOATS4(filter_biases, WORDS, own);
    for (int slot = me; slot < FILTERS; slot += INVOCATIONS) {
        int column = block_column + slot % BLOCK_COLUMNS;
        kept_filters[slot] = vec4(0.0);
        if (column < columns) kept_filters[slot] = LOAD_FLOATS4(filter_weights, FILTER_FORM, slot / BLOCK_COLUMNS * columns + column);
    }
}

int first_y, first_x; // of the region: the pixel that the first tap reads

// What lies outside of the image is zero in a region, and outside of one that is all of an image.
vec4 input_at(int row, int column) {
    int y = first_y + row, x = first_x + column;
    bool inside = IS_WHOLE == 0 || uint(y) < uint(REGION_HIGH) && uint(x) < uint(REGION_WIDE);
    return inside ? pool[(y * REGION_WIDE + x) * BLOCK_COLUMNS + me % BLOCK_COLUMNS] : vec4(0.0);
}

// The sum of a vec4 of each invocation over those of its column, by one of them.
vec4 column_sum(vec4 own) {
    barrier();
    pool[me] = own;
    barrier();
    const int COUNT = INVOCATIONS / BLOCK_COLUMNS;
    int width = 1;
    while (2 * width < COUNT) width *= 2;
    for (; width > 0; width /= 2) {
        int lane = me / BLOCK_COLUMNS;
        if (lane < width && lane + width < COUNT) pool[me] += pool[me + width * BLOCK_COLUMNS];
        barrier();
    }
    return pool[me % BLOCK_COLUMNS];
}

// Filters what is in `pool`, and stores it.
void filter_region(int block_column, int batch) {
    int column = block_column + me % BLOCK_COLUMNS;
    bool has_column = column < columns;
    vec4 total = vec4(0.0);
    for (int pixel = me / BLOCK_COLUMNS; pixel < TILE_HIGH * TILE_WIDE; pixel += INVOCATIONS / BLOCK_COLUMNS) {
        int y = pixel / TILE_WIDE, x = pixel % TILE_WIDE;
        first_y = y * STRIDE_HIGH;
        first_x = x * STRIDE_WIDE;
        if (IS_WHOLE != 0) first_y -= PADDING_HIGH, first_x -= PADDING_WIDE;
        filter_block(filter_bias);
        y += tile_y;
        x += tile_x;
        if (has_column && y < filtered_height && x < filtered_width) {
            vec4 value = activation(THEN, filtered[0], THEN_FIRST, THEN_SECOND);
            if (THEN_AFTER != MOVE) value = activation(THEN_AFTER, between(value), THEN_AFTER_FIRST, THEN_AFTER_SECOND);
            store(out_offset + batch * out_batch + y * out_row + x * out_pitch + column, value);
            total += value;
        }
    }
    if (HAS_MEANS != 0) {
        total = column_sum(total);
        if (me < BLOCK_COLUMNS && has_column)
            STORE_FLOATS4(means, MEANS_FORM, (batch * int(gl_NumWorkGroups.y) + int(gl_WorkGroupID.y)) * columns + column,
                          total / float(filtered_height * filtered_width))
    }
}
