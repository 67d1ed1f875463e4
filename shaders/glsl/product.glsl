// What the kernels for implicit GEMM share: rows are output pixels (or rows of a matrix), columns are output channels in
// vec4s, and the inner dimension runs over the filter's taps and the input's channels. All offsets and strides count vec4s.

layout(constant_id = 8) const int SPATIAL = 0;    // rows are pixels of a (batch, height, width) grid, else they are one run
layout(constant_id = 9) const int PADDED = 0;     // taps may fall outside of the input
layout(constant_id = 10) const int INNER_TAIL = 0; // channels of the last vec4 of the inner dimension, 0 if it is full
layout(constant_id = 11) const int GROUPED = 0;   // a column reads only the channels of its group

#include "product_operands.glsl"

#include "product_push.glsl"

struct Pixel {
    int batch, y, x;
};

Pixel pixel_of(int row) {
    int line = row / out_width;
    int batch = line / out_height;
    return Pixel(batch, line - batch * out_height, row - line * out_width);
}

Pixel next_pixel(Pixel pixel) {
    bool wraps = pixel.x + 1 == out_width;
    bool turns = wraps && pixel.y + 1 == out_height;
    return Pixel(pixel.batch + int(turns), turns ? 0 : pixel.y + int(wraps), wraps ? 0 : pixel.x + 1);
}

// The first `count` components; the others, which may hold anything, become 0.
vec4 head(vec4 value, int count) { return mix(vec4(0.0), value, lessThan(ivec4(0, 1, 2, 3), ivec4(count))); }

// Where row `row` (at `pixel`, if SPATIAL) of batch `batch` is in the result and in the residual, without the column.
int result_index(int batch, int row, Pixel pixel) {
    return SPATIAL != 0 ? out_offset + pixel.batch * out_batch + pixel.y * out_row + pixel.x * out_pitch
                        : out_offset + batch * out_batch + row * out_pitch;
}

int residual_index(int batch, int row, Pixel pixel) {
    return SPATIAL != 0 ? residual_offset + pixel.batch * residual_batch + pixel.y * residual_row + pixel.x * residual_pitch
                        : residual_offset + batch * residual_batch + row * residual_pitch;
}

vec4 residual_at(int index) { return HAS_RESIDUAL != 0 ? RESIDUAL(index) : vec4(0.0); }

// The same as it lies in memory, for who reads it long before it is added: halves take half of the registers so.
ivec4 residual_bits(int index) {
    if (HAS_RESIDUAL == 0) return ivec4(0);
    return RESIDUAL_FORM == WORDS ? QUAD(residuals, index) : ivec4(PAIR(residuals, index), 0, 0);
}

vec4 residual_of(ivec4 bits) {
    if (RESIDUAL_FORM == ROUNDED) return converted_halves(bits.xy);
    return intBitsToFloat(RESIDUAL_FORM == WORDS ? bits : widened(RESIDUAL_FORM, split(bits.xy)));
}

// What becomes of a sum that the bias is part of.
vec4 finished(vec4 sum, vec4 residual) {
    sum = before_residual(sum);
    if (HAS_RESIDUAL != 0) sum = with_residual(sum, residual);
    return after_residual(sum);
}

void store_biased(int result, int residual, int column, vec4 sum) {
    store(result + column, finished(sum, residual_at(residual + column)));
}
