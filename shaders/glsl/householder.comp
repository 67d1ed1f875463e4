#version 450
// Small matrices as products of reflections and an upper triangle, in place: each column below the diagonal is turned into one element. What is
// left there are the vectors of the reflections I - scale v v^T, without their first element, which is one; signs are LAPACK's.
// An invocation has one matrix. (G. H. Golub and C. F. Van Loan, "Matrix Computations", algorithm 5.2.1.)
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

UPDATES(0, matrices)
WRITES(1, scales)

#include "factor_push.glsl"

int start;

float at(int row, int column) { return intBitsToFloat(matrices_words[start + row * columns + column]); }
void set(int row, int column, float value) { matrices_words[start + row * columns + column] = floatBitsToInt(value); }

// The length of a column below a row, without overflow.
float length_below(int k) {
    float largest = 0.0;
    for (int i = k + 1; i < rows; ++i) largest = max(largest, abs(at(i, k)));
    if (largest == 0.0) return 0.0;
    precise float total = 0.0;
    for (int i = k + 1; i < rows; ++i) {
        float part = at(i, k) / largest;
        total += part * part;
    }
    return largest * sqrt(total);
}

void main() {
    int number = invocation_index();
    if (number >= count) return;
    int steps = min(rows, columns);
    start = number * rows * columns;
    for (int k = 0; k < steps; ++k) {
        float below = length_below(k);
        if (below == 0.0) {
            scales_words[number * steps + k] = floatBitsToInt(0.0);
            continue;
        }
        float first = at(k, k);
        float largest = max(abs(first), below);
        float whole = largest * sqrt((first / largest) * (first / largest) + (below / largest) * (below / largest));
        float turned = first < 0.0 ? whole : -whole;
        float scale = (turned - first) / turned;
        for (int i = k + 1; i < rows; ++i) set(i, k, at(i, k) / (first - turned));
        set(k, k, turned);
        for (int j = k + 1; j < columns; ++j) {
            precise float total = at(k, j);
            for (int i = k + 1; i < rows; ++i) total += at(i, k) * at(i, j);
            total *= scale;
            set(k, j, at(k, j) - total);
            for (int i = k + 1; i < rows; ++i) set(i, j, at(i, j) - at(i, k) * total);
        }
        scales_words[number * steps + k] = floatBitsToInt(scale);
    }
}
