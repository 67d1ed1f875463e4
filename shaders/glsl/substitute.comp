#version 450
// Triangular systems, in place, and the exchanges of rows that come with their matrices. An invocation has one column of one right side.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int UPPER = 0;
layout(constant_id = 2) const int UNIT = 0;        // the diagonal counts as ones
layout(constant_id = 3) const int EXCHANGES = 0;   // of rows: FIRST, before it substitutes; UNDONE, and nothing else
#include "exchanges.glsl"

UPDATES(0, sides)
READS(1, matrices)
READS(2, pivots)

#include "substitute_push.glsl"

int start;

int place_of(int row) { return start + row * columns; }
float coefficient(int first, int row, int column) {
    return intBitsToFloat(WORD(matrices, first + row * row_stride + column * column_stride));
}

void exchange(int row, int number) {
    int other = WORD(pivots, number * rows + row) - 1;
    int kept = sides_words[place_of(row)];
    sides_words[place_of(row)] = sides_words[place_of(other)];
    sides_words[place_of(other)] = kept;
}

void main() {
    int item = invocation_index();
    if (item >= count * columns) return;
    int number = divide(item, columns);
    start = number * rows * columns + item - number * columns;
    int first = offset + number * system_stride;
    if (EXCHANGES == UNDONE) {
        for (int i = rows - 1; i >= 0; --i) exchange(i, number);
        return;
    }
    if (EXCHANGES == FIRST) {
        for (int i = 0; i < rows; ++i) exchange(i, number);
    }
    for (int step = 0; step < rows; ++step) {
        int i = UPPER != 0 ? rows - 1 - step : step;
        precise float rest = intBitsToFloat(sides_words[place_of(i)]);
        int from = UPPER != 0 ? i + 1 : 0;
        int end = UPPER != 0 ? rows : i;
        for (int j = from; j < end; ++j) rest -= coefficient(first, i, j) * intBitsToFloat(sides_words[place_of(j)]);
        sides_words[place_of(i)] = floatBitsToInt(UNIT != 0 ? rest : rest / coefficient(first, i, i));
    }
}
