#version 450
// Floats of integers of few bits, an element by each invocation; see mobopt/ops/quantized.py. Used where a tensor of few bits is read
// by something else than a product, or was chosen from rows of a larger one.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int FORM = BYTES; // of the elements that hold the integers
layout(constant_id = 2) const int BITS = 8;
layout(constant_id = 3) const int ZERO = 0;     // what integers count from without zero points
layout(constant_id = 4) const int HAS_ZERO_POINTS = 0;

READS(0, values)
READS(1, scales)
READS(2, zeros)
WRITES(3, results)

#include "dequantize_push.glsl"

void main() {
    int index = invocation_index();
    if (index >= count) return;
    int row = divide(index, size_3);
    int column = index - row * size_3;
    int plane = divide(row, size_2);
    int first = divide(plane, size_1);
    int place = divide(first, block_0) * stride_0 + divide(plane - first * size_1, block_1) * stride_1 +
                divide(row - plane * size_2, block_2) * stride_2 + divide(column, block_3) * stride_3;
    int integer = BITS == 4 ? LOAD1(values, OCTETS, row * held + (column >> 1)) >> ((column & 1) << 2) & 15
                            : LOAD1(values, FORM, row * held + column);
    float value = float(integer) - (HAS_ZERO_POINTS != 0 ? intBitsToFloat(WORD(zeros, place)) : float(ZERO));
    results_words[index] = floatBitsToInt(value * intBitsToFloat(WORD(scales, place)));
}
