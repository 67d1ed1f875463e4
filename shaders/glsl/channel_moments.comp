#version 450
// Mean, and variance or what is made of it, of groups of channels of images in which the channels of a pixel are neighbours in memory.
// Where moments.comp walks one group, a few channels of each pixel, a workgroup reads whole pixels here, in the order of memory and once.
// An invocation sums distances from the mean of the first that it reads, and their squares (T. Chan, G. Golub and R. LeVeque, "Algorithms
// for computing the sample variance", 1983); what invocations found is joined (the same, "Updating formulae and a pairwise algorithm for
// computing sample variances", 1979), and what workgroups found by the last one of an image to arrive.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int WIDTH = 1;   // vec4s of a pixel
layout(constant_id = 2) const int GROUP = 1;   // channels of a group
layout(constant_id = 3) const int PARTS = 1;   // workgroups that share an image
layout(constant_id = 4) const int JOINING = 1; // invocations that join what was found of a group, a power of two
layout(constant_id = 5) const int FORM = 0;    // of elements
layout(constant_id = 6) const int STORE_MODE = 0;
layout(constant_id = 7) const int SPREAD = 0;
#include "spread.glsl"
const int ROWS = LOCAL_SIZE / WIDTH; // pixels that a workgroup reads side by side
const int GROUPS = 4 * WIDTH / GROUP;
const int SIDE_BY_SIDE = LOCAL_SIZE / JOINING; // groups that are joined so
const int AHEAD = 8;                           // pixels that an invocation reads before it looks at them

WRITES(0, mean)
WRITES(1, spread)
READS(2, data)
layout(set = 0, binding = 3, std430) coherent buffer Found { vec2 found[]; }; // mean and squares, of each part of an image and group

shared vec4 means[LOCAL_SIZE], squares[LOCAL_SIZE];
shared vec2 joined[LOCAL_SIZE];
#define ARRIVALS 4
#define LAST joined[0].x
#include "arrival.glsl"
#include "channel_moments_push.glsl"

int own_pixels(int part, int row) { return max(0, (min(part_pixels, pixels - part * part_pixels) - row + ROWS - 1) / ROWS); }

// The sum over the invocations that join a group; the first of them has it.
vec2 total_of(int me, vec2 own) {
    barrier(); // for who reads what was there
    joined[me] = own;
    for (int width = JOINING / 2; width > 0; width /= 2) {
        barrier();
        if (me % JOINING < width && me < JOINING * SIDE_BY_SIDE) joined[me] += joined[me + width];
    }
    return joined[me];
}

// Adds what is known of some elements to the sums of distances from a pivot and of squares.
void add(inout vec2 sums, float count, vec2 moments, float pivot) {
    float off = moments.x - pivot;
    if (count > 0.0) sums += vec2(count * off, moments.y + count * off * off);
}

// Mean and squares of all that was added.
vec2 moments_of(vec2 sums, float count, float pivot) {
    float moved = sums.x / count, square = sums.y - sums.x * moved;
    return vec2(pivot + moved, square < 0.0 ? 0.0 : square); // what rounding left; NaN stays
}

void store(int image, int group, vec2 moments) {
    float variance = moments.y * narrower;
    float wide = SPREAD == DEVIATION ? sqrt(variance) : SPREAD == RECIPROCAL_DEVIATION ? 1.0 / sqrt(variance + added) : variance;
    int place = image * GROUPS + group;
    ivec4 center = ivec4(floatBitsToInt(moments.x)), width = ivec4(floatBitsToInt(wide));
    STORE_LANES4(mean, STORE_MODE, place, 1, 0, center)
    STORE_LANES4(spread, STORE_MODE, place, 1, 0, width)
}

void main() {
    int me = local_index(), workgroup = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int image = workgroup / PARTS, part = workgroup % PARTS;
    if (image >= images) return;
    int row = me / WIDTH, own = own_pixels(part, row), step = ROWS * data_pitch;
    int at = data_start + image * data_image + (part * part_pixels + row) * data_pitch + me % WIDTH;
    vec4 center = vec4(0.0), distance = vec4(0.0), square = vec4(0.0);
    for (int base = 0; base < own; base += AHEAD) {
        vec4 values[AHEAD];
        [[unroll]] for (int i = 0; i < AHEAD; ++i) values[i] = base + i < own ? LOAD_FLOATS4(data, FORM, at + (base + i) * step) : vec4(0.0);
        if (base == 0) {
            [[unroll]] for (int i = 0; i < AHEAD; ++i) center += values[i];
            center *= 1.0 / float(min(own, AHEAD));
        }
        [[unroll]] for (int i = 0; i < AHEAD; ++i) {
            precise vec4 off = base + i < own ? values[i] - center : vec4(0.0);
            distance += off;
            square += off * off;
        }
    }
    vec4 moved = distance / float(max(own, 1));
    means[me] = center + moved;
    square -= distance * moved;
    squares[me] = mix(square, vec4(0.0), lessThan(square, vec4(0.0)));
    barrier();

    int joining = me % JOINING, count = min(part_pixels, pixels - part * part_pixels);
    for (int first_group = 0; first_group < GROUPS; first_group += SIDE_BY_SIDE) {
        int group = first_group + me / JOINING;
        bool exists = group < GROUPS && me < JOINING * SIDE_BY_SIDE;
        int start = exists ? group * GROUP : 0;
        float pivot = means[start >> 2][start & 3];
        vec2 sums = vec2(0.0);
        for (int i = joining; exists && i < ROWS * GROUP; i += JOINING) {
            int from = i / GROUP, channel = start + i % GROUP, place = from * WIDTH + (channel >> 2);
            add(sums, float(own_pixels(part, from)), vec2(means[place][channel & 3], squares[place][channel & 3]), pivot);
        }
        sums = total_of(me, sums);
        if (!exists || joining != 0) continue;
        vec2 moments = moments_of(sums, float(count) * float(GROUP), pivot);
        if (PARTS == 1) store(image, group, moments);
        else found[(image * PARTS + part) * GROUPS + group] = moments;
    }
    if (PARTS == 1) return;
    if (!is_last(image, PARTS)) return;
    for (int first_group = 0; first_group < GROUPS; first_group += SIDE_BY_SIDE) {
        int group = first_group + me / JOINING;
        bool exists = group < GROUPS && me < JOINING * SIDE_BY_SIDE;
        int start = image * PARTS * GROUPS + (exists ? group : 0);
        float pivot = found[start].x;
        vec2 sums = vec2(0.0);
        for (int base = joining; exists && base < PARTS; base += AHEAD * JOINING) {
            vec2 values[AHEAD];
            [[unroll]] for (int i = 0; i < AHEAD; ++i) values[i] = found[start + min(base + i * JOINING, PARTS - 1) * GROUPS];
            [[unroll]] for (int i = 0; i < AHEAD; ++i) {
                int other = base + i * JOINING;
                if (other < PARTS) add(sums, float(min(part_pixels, pixels - other * part_pixels)) * float(GROUP), values[i], pivot);
            }
        }
        sums = total_of(me, sums);
        if (exists && joining == 0) store(image, group, moments_of(sums, float(pixels) * float(GROUP), pivot));
    }
}
