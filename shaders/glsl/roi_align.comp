#version 450
// Means of bilinear samples in the cells of a grid on each region of an image. An invocation computes one channel of one cell.
// (K. He et al., "Mask R-CNN", 2017; torchvision's conventions for edges.)
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int SAMPLES = 1; // of a cell along each side
layout(constant_id = 2) const int IMAGE_FORM = 0;
layout(constant_id = 3) const int REGION_FORM = 0;
layout(constant_id = 4) const int TARGET_FORM = 0;
layout(constant_id = 5) const int ALIGNED = 0; // whether coordinates speak of the middle of elements

WRITES(0, result)
READS(1, images)
READS(2, regions)
RAISES(3)

#include "roi_align_push.glsl"

float region_item(int start, int number) { return intBitsToFloat(LOAD1(regions, REGION_FORM, start + number * region_strides[1])); }

// The two elements along a side that a place lies between, and the second one's share; no share of either outside.
struct Pair { ivec2 elements; vec2 weights; };

Pair pair_at(float place, int size) {
    if (!(place >= -1.0 && place <= float(size))) return Pair(ivec2(0), vec2(0.0));
    place = min(max(place, 0.0), float(size - 1));
    int first = int(place);
    precise float share = place - float(first);
    return Pair(ivec2(first, min(first + 1, size - 1)), vec2(1.0 - share, share));
}

float weighed(float weight, int offset) {
    float element = weight == 0.0 ? 0.0 : intBitsToFloat(LOAD1(images, IMAGE_FORM, offset));
    return weight * element;
}

void main() {
    int rest = invocation_index();
    if (rest >= sizes[0] * sizes[1] * sizes[2] * sizes[3]) return;
    int place[4]; // region, channel, row, column
    for (int d = 3; d >= 0; --d) {
        int quotient = d > 0 ? divide(rest, sizes[d]) : 0;
        place[d] = rest - quotient * sizes[d];
        rest = quotient;
    }
    int start = region_offset + place[0] * region_strides[0];
    int number = int(region_item(start, 0));
    if (number < 0 || number >= image_count) {
        RAISE_FLAG
        number = 0;
    }
    int from = image_offset + number * image_strides[0] + place[1] * image_strides[1];
    precise float begin[2];
    precise float cell[2];
    for (int d = 0; d < 2; ++d) { // rows, then columns; a region has x before y
        begin[d] = region_item(start, 2 - d) * region_scale - (ALIGNED != 0 ? 0.5 : 0.0);
        precise float end = region_item(start, 4 - d) * region_scale - (ALIGNED != 0 ? 0.5 : 0.0);
        precise float extent = end - begin[d];
        cell[d] = (ALIGNED != 0 ? extent : max(extent, 1.0)) / float(sizes[2 + d]);
        begin[d] += float(place[2 + d]) * cell[d];
    }
    precise float total = 0.0;
    for (int i = 0; i < SAMPLES; ++i) {
        precise float y = begin[0] + (float(i) + 0.5) * cell[0] / float(SAMPLES);
        Pair down = pair_at(y, image_sizes[0]);
        int row = down.elements.x * image_strides[2];
        int next = down.elements.y * image_strides[2];
        for (int j = 0; j < SAMPLES; ++j) {
            precise float x = begin[1] + (float(j) + 0.5) * cell[1] / float(SAMPLES);
            Pair across = pair_at(x, image_sizes[1]);
            for (int k = 0; k < 2; ++k) {
                int column = from + across.elements[k] * image_strides[3];
                total += weighed(down.weights.x * across.weights[k], row + column);
                total += weighed(down.weights.y * across.weights[k], next + column);
            }
        }
    }
    float value = total / float(SAMPLES * SAMPLES);
    int target = result_offset;
    for (int d = 0; d < 4; ++d) target += place[d] * result_strides[d];
    int bits = narrowed(TARGET_FORM, ivec4(floatBitsToInt(value))).x;
    PUT1(result, TARGET_FORM, target, bits)
}
