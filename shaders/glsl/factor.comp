#version 450
// Small matrices as products of triangular ones, in place: P A = L U by elimination with partial pivoting, or A = L L^T (Cholesky).
// An invocation has one matrix. (G. H. Golub and C. F. Van Loan, "Matrix Computations", algorithms 3.4.1 and 4.2.1.)
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int METHOD = 0;
layout(constant_id = 2) const int REFUSES = 0; // what can't be divided by raises the flag

#include "method.glsl"

UPDATES(0, matrices)
WRITES(1, pivots) // from 1, as in LAPACK
WRITES(2, facts)  // of each matrix: the number of the first step that failed, or 0; whether the permutation is odd
RAISES(3)

#include "factor_push.glsl"

int start;

float at(int row, int column) { return intBitsToFloat(matrices_words[start + row * columns + column]); }
void set(int row, int column, float value) { matrices_words[start + row * columns + column] = floatBitsToInt(value); }

int largest_from(int k) {
    int best = k;
    for (int i = k + 1; i < rows; ++i) {
        if (abs(at(i, k)) > abs(at(best, k))) best = i;
    }
    return best;
}

void exchange(int first, int second) {
    for (int j = 0; j < columns; ++j) {
        float kept = at(first, j);
        set(first, j, at(second, j));
        set(second, j, kept);
    }
}

void main() {
    int number = invocation_index();
    if (number >= count) return;
    int steps = min(rows, columns);
    start = number * rows * columns;
    int failed = 0;
    int odd = 0;
    for (int k = 0; k < steps; ++k) {
        if (METHOD == CHOLESKY) {
            precise float rest = at(k, k);
            for (int j = 0; j < k; ++j) rest -= at(k, j) * at(k, j);
            if (!(rest > 0.0)) {
                failed = k + 1;
                break;
            }
            float root = sqrt(rest);
            set(k, k, root);
            for (int i = k + 1; i < rows; ++i) {
                precise float below = at(i, k);
                for (int j = 0; j < k; ++j) below -= at(i, j) * at(k, j);
                set(i, k, below / root);
                set(k, i, 0.0);
            }
            continue;
        }
        int best = METHOD == PIVOTED ? largest_from(k) : k;
        pivots_words[number * steps + k] = best + 1;
        if (best != k) {
            exchange(k, best);
            odd ^= 1;
        }
        float pivot = at(k, k);
        if (pivot == 0.0) {
            if (failed == 0) failed = k + 1;
            continue;
        }
        for (int i = k + 1; i < rows; ++i) {
            float factor = at(i, k) / pivot;
            set(i, k, factor);
            for (int j = k + 1; j < columns; ++j) {
                precise float rest = at(i, j) - factor * at(k, j);
                set(i, j, rest);
            }
        }
    }
    facts_words[2 * number] = failed;
    facts_words[2 * number + 1] = odd;
    if (REFUSES != 0 && failed != 0) RAISE_FLAG
}
