#version 450
// A sweep of rotations of pairs of columns, after which they are nearer to being orthogonal, and ordered by length; another matrix is turned
// alike. The last sweep gives the lengths, which are singular values. An invocation has one matrix.
// (G. H. Golub and C. F. Van Loan, "Matrix Computations", section 8.6.3: one-sided Jacobi.)
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int FIRST = 0; // the other matrix begins as the identity; what is not finite raises the flag
layout(constant_id = 2) const int LAST = 0;

UPDATES(0, matrices)
UPDATES(1, turns)
UPDATES(2, values) // before the last sweep, the first has the scale that the matrix is divided by, so that squares fit
RAISES(3)

#include "factor_push.glsl"

const float SMALL = 1e-7; // cosine of an angle that counts as a right one
const float MOST = 3.4028235e38;

int start;
int turn_start;

float column_at(int row, int column) { return intBitsToFloat(matrices_words[start + row * columns + column]); }

float turn_at(int row, int column) { return intBitsToFloat(turns_words[turn_start + row * columns + column]); }

// Of a column and one to its right; the cosine is 1 - sine * half_tangent, so that small angles, of which there are many, keep lengths.
vec2 turned(vec2 pair, float sine, float half_tangent) {
    return vec2(pair.x - sine * (pair.y + half_tangent * pair.x), pair.y + sine * (pair.x - half_tangent * pair.y));
}

void set_pair(int row, int p, int q, vec2 pair) {
    matrices_words[start + row * columns + p] = floatBitsToInt(pair.x);
    matrices_words[start + row * columns + q] = floatBitsToInt(pair.y);
}

void set_turn(int row, int p, int q, vec2 pair) {
    turns_words[turn_start + row * columns + p] = floatBitsToInt(pair.x);
    turns_words[turn_start + row * columns + q] = floatBitsToInt(pair.y);
}

void turn_columns(int p, int q, float sine, float half_tangent) {
    for (int i = 0; i < rows; ++i) set_pair(i, p, q, turned(vec2(column_at(i, p), column_at(i, q)), sine, half_tangent));
    for (int i = 0; i < columns; ++i) set_turn(i, p, q, turned(vec2(turn_at(i, p), turn_at(i, q)), sine, half_tangent));
}

void exchange_columns(int p, int q) {
    for (int i = 0; i < rows; ++i) set_pair(i, p, q, vec2(column_at(i, q), -column_at(i, p)));
    for (int i = 0; i < columns; ++i) set_turn(i, p, q, vec2(turn_at(i, q), -turn_at(i, p)));
}

void begin(int number) {
    float scale = 0.0;
    bool is_finite = true;
    for (int i = 0; i < rows * columns; ++i) {
        float size = abs(intBitsToFloat(matrices_words[start + i]));
        is_finite = is_finite && size <= MOST;
        scale = max(scale, size);
    }
    if (!is_finite) RAISE_FLAG
    if (scale == 0.0) scale = 1.0;
    for (int i = 0; i < rows * columns; ++i) {
        matrices_words[start + i] = floatBitsToInt(intBitsToFloat(matrices_words[start + i]) / scale);
    }
    values_words[number * columns] = floatBitsToInt(scale);
    for (int i = 0; i < columns * columns; ++i) turns_words[turn_start + i] = 0;
    for (int i = 0; i < columns; ++i) turns_words[turn_start + i * (columns + 1)] = floatBitsToInt(1.0);
}

void main() {
    int number = invocation_index();
    if (number >= count) return;
    start = number * rows * columns;
    turn_start = number * columns * columns;
    if (FIRST != 0) begin(number);
    for (int p = 0; p < columns - 1; ++p) {
        for (int q = p + 1; q < columns; ++q) {
            precise float aa = 0.0;
            precise float bb = 0.0;
            precise float ab = 0.0;
            for (int i = 0; i < rows; ++i) {
                float a = column_at(i, p);
                float b = column_at(i, q);
                aa += a * a;
                bb += b * b;
                ab += a * b;
            }
            float lengths = sqrt(aa) * sqrt(bb);
            if (abs(ab) > SMALL * lengths) {
                float ratio = (bb - aa) / (2.0 * ab);
                float tangent = (ratio < 0.0 ? -1.0 : 1.0) / (abs(ratio) + sqrt(1.0 + ratio * ratio));
                float cosine = 1.0 / sqrt(1.0 + tangent * tangent);
                float sine = cosine * tangent;
                float excess = sine * sine - (1.0 - cosine) * (1.0 + cosine); // of what should be 1, as devices round
                sine -= 0.5 * excess * sine;
                turn_columns(p, q, sine, sine / (1.0 + cosine));
                float change = tangent * ab;
                aa -= change;
                bb += change;
            }
            if (aa < bb) exchange_columns(p, q);
        }
    }
    if (LAST == 0) return;
    float scale = intBitsToFloat(values_words[number * columns]);
    for (int j = 0; j < columns; ++j) {
        precise float total = 0.0;
        for (int i = 0; i < rows; ++i) total += column_at(i, j) * column_at(i, j);
        values_words[number * columns + j] = floatBitsToInt(scale * sqrt(total));
    }
}
