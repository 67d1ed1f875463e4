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

// Sizes of the result: regions, channels, rows, columns; of the images: count, rows, columns; offset and strides of the result, the images and
// the regions; the scale from the regions' coordinates to the images', as a float.
layout(push_constant) uniform Geometry { int words[21]; };
const int IMAGES = 4;
const int RESULT = 7;
const int IMAGE = 12;
const int REGION = 17;

float region_item(int start, int number) { return intBitsToFloat(LOAD1(regions, REGION_FORM, start + number * words[REGION + 2])); }

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
    if (rest >= words[0] * words[1] * words[2] * words[3]) return;
    int place[4]; // region, channel, row, column
    for (int d = 3; d >= 0; --d) {
        int quotient = d > 0 ? divide(rest, words[d]) : 0;
        place[d] = rest - quotient * words[d];
        rest = quotient;
    }
    int start = words[REGION] + place[0] * words[REGION + 1];
    int number = int(region_item(start, 0));
    if (number < 0 || number >= words[IMAGES]) {
        RAISE_FLAG
        number = 0;
    }
    int from = words[IMAGE] + number * words[IMAGE + 1] + place[1] * words[IMAGE + 2];
    precise float scale = intBitsToFloat(words[REGION + 3]);
    precise float begin[2];
    precise float cell[2];
    for (int d = 0; d < 2; ++d) { // rows, then columns; a region has x before y
        begin[d] = region_item(start, 2 - d) * scale - (ALIGNED != 0 ? 0.5 : 0.0);
        precise float end = region_item(start, 4 - d) * scale - (ALIGNED != 0 ? 0.5 : 0.0);
        precise float extent = end - begin[d];
        cell[d] = (ALIGNED != 0 ? extent : max(extent, 1.0)) / float(words[2 + d]);
        begin[d] += float(place[2 + d]) * cell[d];
    }
    precise float total = 0.0;
    for (int i = 0; i < SAMPLES; ++i) {
        precise float y = begin[0] + (float(i) + 0.5) * cell[0] / float(SAMPLES);
        Pair down = pair_at(y, words[IMAGES + 1]);
        int row = down.elements.x * words[IMAGE + 3];
        int next = down.elements.y * words[IMAGE + 3];
        for (int j = 0; j < SAMPLES; ++j) {
            precise float x = begin[1] + (float(j) + 0.5) * cell[1] / float(SAMPLES);
            Pair across = pair_at(x, words[IMAGES + 2]);
            for (int k = 0; k < 2; ++k) {
                int column = from + across.elements[k] * words[IMAGE + 4];
                total += weighed(down.weights.x * across.weights[k], row + column);
                total += weighed(down.weights.y * across.weights[k], next + column);
            }
        }
    }
    float value = total / float(SAMPLES * SAMPLES);
    int target = words[RESULT];
    for (int d = 0; d < 4; ++d) target += place[d] * words[RESULT + 1 + d];
    int bits = narrowed(TARGET_FORM, ivec4(floatBitsToInt(value))).x;
    PUT1(result, TARGET_FORM, target, bits)
}
