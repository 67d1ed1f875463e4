// Fragments that invocations fill from registers, where matrix_units.glsl has them from shared memory. The order of elements is that of
// NVIDIA's units of 16 x 8 x 16; whether a device has it is tried (engine/fragment_order.py). Element e of an invocation is in line
// lane / 4 + e / 4 * 8 (a row of the left side and of sums, a column of the right side), at place 2 * (lane % 4) + e % 2 + e / 2 % 2 * 8 of it, so
// four invocations share a line. Eight neighbours of the inner dimension that an invocation reads at once are its part of two fragments: which neighbour a fragment takes for its first
// doesn't matter as long as both sides agree, as it is summed over. Likewise a fragment of sums is one of the left side as it lies.
const int LANES_USED = 32;
const int OWN_ELEMENTS = 8;

#include "unit_halves.glsl"
#ifdef EMULATED
#extension GL_KHR_shader_subgroup_basic : require
struct Left {
    float own[OWN_ELEMENTS];
};
#define Right Left
#define Sums Left
#define ELEMENT(fragment, e) fragment.own[e]

int subgroup() { return me / LANES_USED; }
int lane() { return me % LANES_USED; }

#else
#include "matrix_units.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

int line_of_lane() { return lane() / 4; }
int run_of_lane() { return lane() % 4; }
int line_of(int e) { return line_of_lane() + e / 4 * 8; }
int place_of(int e) { return 2 * run_of_lane() + e % 2 + e / 2 % 2 * 8; }

#ifdef EMULATED
shared uint exchanged[SUBGROUPS * 256]; // pairs of halves of a left and a right fragment of each subgroup

Sums no_sums() {
    Sums sums;
    for (int e = 0; e < OWN_ELEMENTS; ++e) sums.own[e] = 0.0;
    return sums;
}

// All invocations of a workgroup together.
Sums multiplied(Left left, Right right, Sums sums) {
    for (int e = 0; e < OWN_ELEMENTS; e += 2) {
        int at = subgroup() * 256 + line_of(e) * 8 + place_of(e) / 2;
        exchanged[at] = rounded_pair(vec2(left.own[e], left.own[e + 1]));
        exchanged[at + 128] = rounded_pair(vec2(right.own[e], right.own[e + 1]));
    }
    barrier();
    [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) { // as in matrix_units.glsl
        int row = subgroup() * 256 + line_of(e) * 8, column = subgroup() * 256 + 128 + place_of(e) * 8;
        [[dont_unroll]] for (int k = 0; k < 8; ++k) {
            vec2 x = pair_of(exchanged[row + k]), y = pair_of(exchanged[column + k]);
            sums.own[e] += x.x * y.x + x.y * y.y;
        }
    }
    barrier();
    return sums;
}

#ifdef STAGED
float half_at(int line, int column) { return pair_of(pool[line + column / 8][column / 2 % 4])[column % 2]; }

Left load_left(int place, int pitch) {
    Left left;
    for (int e = 0; e < OWN_ELEMENTS; ++e) left.own[e] = half_at(place + line_of(e) * pitch, place_of(e));
    return left;
}

Right load_right(int place, int pitch) {
    Right right;
    for (int e = 0; e < OWN_ELEMENTS; ++e) right.own[e] = half_at(place + place_of(e) * pitch, line_of(e));
    return right;
}

Right load_columns(int place, int pitch) { return load_left(place, pitch); }
#endif

Sums added(Sums sums, Sums others) {
    for (int e = 0; e < OWN_ELEMENTS; ++e) sums.own[e] += others.own[e];
    return sums;
}

void store_sums(Sums sums, int place, int pitch) {
    for (int e = 0; e < OWN_ELEMENTS; ++e) pool[place + line_of(e) * pitch + place_of(e) / 4][place_of(e) % 4] = floatBitsToUint(sums.own[e]);
}
#endif

// Of four neighbours in each of two lines, eight lines apart.
#define FILL(fragment, upper, lower)                                                                                   \
    ELEMENT(fragment, 0) = UNIT_PAIR(upper.x).x;                                                                       \
    ELEMENT(fragment, 1) = UNIT_PAIR(upper.x).y;                                                                       \
    ELEMENT(fragment, 2) = UNIT_PAIR(upper.y).x;                                                                       \
    ELEMENT(fragment, 3) = UNIT_PAIR(upper.y).y;                                                                       \
    ELEMENT(fragment, 4) = UNIT_PAIR(lower.x).x;                                                                       \
    ELEMENT(fragment, 5) = UNIT_PAIR(lower.x).y;                                                                       \
    ELEMENT(fragment, 6) = UNIT_PAIR(lower.y).x;                                                                       \
    ELEMENT(fragment, 7) = UNIT_PAIR(lower.y).y;

Left left_of(uvec2 upper, uvec2 lower) {
    Left left;
    FILL(left, upper, lower)
    return left;
}

Right right_of(uvec2 upper, uvec2 lower) {
    Right right;
    FILL(right, upper, lower)
    return right;
}

// Sums that are rounded, as the left side of another product.
Left left_of_sums(Sums sums) {
    Left left;
    [[unroll]] for (int e = 0; e < OWN_ELEMENTS; ++e) ELEMENT(left, e) = UNIT_HALF(ELEMENT(sums, e));
    return left;
}

// The largest, or the sum, of what the four invocations of each line have; and what the neighbour of an invocation has, of which each is the
// other's. All invocations of a workgroup together.
#ifdef EMULATED
shared vec2 shared_lines[SUBGROUPS * LANES_USED];

vec2 of_neighbour(vec2 own) {
    shared_lines[me] = own;
    barrier();
    vec2 other = shared_lines[me ^ 1];
    barrier();
    return other;
}

vec2 largest_of_lines(vec2 own) {
    shared_lines[me] = own;
    barrier();
    for (int i = 0; i < 4; ++i) own = max(own, shared_lines[me / 4 * 4 + i]);
    barrier();
    return own;
}

vec2 sum_of_lines(vec2 own) {
    shared_lines[me] = own;
    barrier();
    int at = me / 4 * 4;
    own = (shared_lines[at] + shared_lines[at + 1]) + (shared_lines[at + 2] + shared_lines[at + 3]);
    barrier();
    return own;
}
#else
vec2 of_neighbour(vec2 own) { return subgroupShuffleXor(own, 1u); }

vec2 largest_of_lines(vec2 own) {
    own = max(own, subgroupShuffleXor(own, 1u));
    return max(own, subgroupShuffleXor(own, 2u));
}

vec2 sum_of_lines(vec2 own) {
    own += subgroupShuffleXor(own, 1u);
    return own + subgroupShuffleXor(own, 2u);
}
#endif

// Four neighbouring columns of a fragment of sums: of line line_of_lane() + 8 * lower, the vec4 columns_of_lane().
vec4 four_columns(Sums sums, int lower) {
    vec2 first = vec2(ELEMENT(sums, 4 * lower), ELEMENT(sums, 4 * lower + 1)), last = vec2(ELEMENT(sums, 4 * lower + 2), ELEMENT(sums, 4 * lower + 3));
    bool is_odd = (lane() & 1) != 0;
    vec2 other = of_neighbour(is_odd ? first : last);
    return is_odd ? vec4(other, last) : vec4(first, other);
}

int columns_of_lane() { return run_of_lane() % 2 * 2 + run_of_lane() / 2; }
