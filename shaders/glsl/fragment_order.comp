#version 450
// Products of small integers, which halves hold exactly, by every way into fragments and out of them for which kernels rely on the order that
// matrix_fragments.glsl has. The host tells whether they are right (runtimes/vulkan/engine/fragment_order.py). A subgroup has three matrices, of
// 16 x 16 numbers: a left side and two right ones.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

READS(0, matrices)
WRITES(1, products)

#define STAGED
#define RUN uvec4
const int VECTORS = 2; // vec4s of a run
const int M = 16, N = 16, K = 16;
const int SUBGROUPS = LOCAL_SIZE / 32;
const int PITCH = 3; // runs of a line of the pool, of which one is not used
const int LEFT = 0, RIGHT = 1, OTHER_RIGHT = 2;
shared RUN pool[SUBGROUPS * 3 * M * PITCH];
int me = int(gl_LocalInvocationID.x);
#include "matrix_fragments.glsl"

int place_of_matrix(int matrix) { return (subgroup() * 3 + matrix) * M; }
float number(int matrix, int row, int column) { return intBitsToFloat(WORD(matrices, (place_of_matrix(matrix) + row) * N + column)); }

// Two neighbours of a line of a fragment: of a row of a left side, of a column of a right one.
uint pair(int matrix, int line, int place) {
    bool by_rows = matrix == LEFT;
    float first = by_rows ? number(matrix, line, place) : number(matrix, place, line);
    float second = by_rows ? number(matrix, line, place + 1) : number(matrix, place + 1, line);
    return rounded_pair(vec2(first, second));
}

uvec2 pairs(int matrix, int e) { return uvec2(pair(matrix, line_of(e), place_of(e)), pair(matrix, line_of(e + 2), place_of(e + 2))); }

void fill_pool(int matrix) {
    int row = lane() / 2, column = lane() % 2 * 8;
    RUN run;
    for (int i = 0; i < 4; ++i) run[i] = rounded_pair(vec2(number(matrix, row, column + 2 * i), number(matrix, row, column + 2 * i + 1)));
    pool[(place_of_matrix(matrix) + row) * PITCH + column / 8] = run;
}

void store(int product, Sums sums) {
    [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) {
        int place = ((subgroup() * 4 + product) * M + line_of(e)) * N + place_of(e);
        products_words[place] = floatBitsToInt(ELEMENT(sums, e));
    }
}

void main() {
    fill_pool(LEFT);
    fill_pool(RIGHT);
    fill_pool(OTHER_RIGHT);
    barrier();
    Left left = left_of(pairs(LEFT, 0), pairs(LEFT, 4));
    Right right = right_of(pairs(RIGHT, 0), pairs(RIGHT, 4));
    Sums sums = multiplied(left, right, no_sums());
    store(0, sums);
    store(1, multiplied(left, load_right(place_of_matrix(RIGHT) * PITCH, PITCH), no_sums()));
    store(2, multiplied(load_left(place_of_matrix(LEFT) * PITCH, PITCH), right, no_sums()));
    store(3, multiplied(left_of_sums(sums), load_right(place_of_matrix(OTHER_RIGHT) * PITCH, PITCH), no_sums()));
}
