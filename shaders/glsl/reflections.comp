#version 450
// The product of the reflections that householder.comp leaves, as a matrix of some columns. An invocation has one column of one product.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int SIGNED = 0; // columns are turned, so that the triangle has no negative diagonal

READS(0, matrices)
READS(1, scales)
UPDATES(2, products)

#include "reflections_push.glsl"

int start;
int column_start;

float vector(int row, int k) { return row == k ? 1.0 : intBitsToFloat(WORD(matrices, start + row * columns + k)); }
float at(int row) { return intBitsToFloat(products_words[column_start + row * width]); }
void set(int row, float value) { products_words[column_start + row * width] = floatBitsToInt(value); }

void main() {
    int item = invocation_index();
    if (item >= count * width) return;
    int number = divide(item, width);
    int column = item - number * width;
    start = number * rows * columns;
    column_start = number * rows * width + column;
    float one = 1.0;
    if (SIGNED != 0 && column < columns) {
        one = intBitsToFloat(WORD(matrices, start + column * columns + column)) < 0.0 ? -1.0 : 1.0;
    }
    for (int i = 0; i < rows; ++i) set(i, i == column ? one : 0.0);
    for (int k = steps - 1; k >= 0; --k) {
        precise float total = 0.0;
        for (int i = k; i < rows; ++i) total += vector(i, k) * at(i);
        total *= intBitsToFloat(WORD(scales, number * steps + k));
        for (int i = k; i < rows; ++i) set(i, at(i) - vector(i, k) * total);
    }
}
