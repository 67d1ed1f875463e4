#version 450
// Elements of an image, or a volume, at places that a grid names: -1 and 1 are its edges. An invocation computes one channel of one place.
// (M. Jaderberg et al., "Spatial Transformer Networks", 2015; torch's conventions for edges and corners.)
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int RANK = 2; // dimensions of space
layout(constant_id = 2) const int IMAGE_FORM = 0;
layout(constant_id = 3) const int GRID_FORM = 0;
layout(constant_id = 4) const int TARGET_FORM = 0;
layout(constant_id = 5) const int INTERPOLATION = 0;
layout(constant_id = 6) const int PADDING = 0;
layout(constant_id = 7) const int ALIGNED = 0; // -1 and 1 are the middles of the outermost elements

const int LINEAR = 0;
const int NEAREST = 1;
const int CUBIC = 2;
const int ZEROS = 0;
const int BORDER = 1;
const int REFLECTION = 2;

WRITES(0, result)
READS(1, image)
READS(2, grid)

#include "grid_sample_push.glsl"

int image_start;

float size_of(int d) { return float(words[IMAGE_SIZES_WORD + d]); }

float reflected(float place, int d) {
    precise float low = ALIGNED != 0 ? 0.0 : -0.5;
    precise float span = ALIGNED != 0 ? size_of(d) - 1.0 : size_of(d);
    if (span <= 0.0) return 0.0;
    precise float far = abs(place - low);
    float turns = floor(far / span);
    precise float extra = far - turns * span;
    bool is_even = turns - 2.0 * floor(turns * 0.5) == 0.0;
    precise float back = span - extra;
    precise float inside = (is_even ? extra : back) + low;
    return inside;
}

// Where an element is looked for, by the rule for what lies outside.
float placed(float place, int d) {
    if (PADDING == ZEROS) return place;
    if (PADDING == REFLECTION) place = reflected(place, d);
    return min(max(place, 0.0), size_of(d) - 1.0);
}

float element(float places[RANK]) {
    int offset = image_start;
    for (int d = 0; d < RANK; ++d) {
        if (!(places[d] >= 0.0 && places[d] < size_of(d))) return 0.0;
        offset += int(places[d]) * words[IMAGE_WORD + 3 + d];
    }
    return intBitsToFloat(LOAD1(image, IMAGE_FORM, offset));
}

// Weights of four neighbours, of which the second is `t` before the place. (R. Keys, "Cubic Convolution Interpolation", 1981.)
vec4 cubic(float t) {
    const float A = -0.75;
    vec4 far = vec4(t + 1.0, t, 1.0 - t, 2.0 - t);
    vec4 inner = ((A + 2.0) * far - (A + 3.0)) * far * far + 1.0;
    vec4 outer = ((A * far - 5.0 * A) * far + 8.0 * A) * far - 4.0 * A;
    return vec4(outer.x, inner.y, inner.z, outer.w);
}

float at_cubic(float places[RANK]) {
    float firsts[RANK];
    vec4 weights[RANK];
    for (int d = 0; d < RANK; ++d) {
        firsts[d] = floor(places[d]);
        weights[d] = cubic(places[d] - firsts[d]);
    }
    precise float total = 0.0;
    for (int i = 0; i < 4; ++i) {
        precise float row = 0.0;
        for (int j = 0; j < 4; ++j) {
            float tap[RANK];
            for (int d = 0; d < RANK; ++d) tap[d] = placed(firsts[d] + float(d == 0 ? i : j) - 1.0, d);
            row += weights[RANK - 1][j] * element(tap);
        }
        total += weights[0][i] * row;
    }
    return total;
}

float at_linear(float places[RANK]) {
    precise float total = 0.0;
    for (int corner = 0; corner < 1 << RANK; ++corner) {
        float tap[RANK];
        precise float weight = 1.0;
        for (int d = 0; d < RANK; ++d) {
            float first = floor(places[d]);
            bool is_next = (corner >> d & 1) != 0;
            tap[d] = is_next ? first + 1.0 : first;
            weight *= is_next ? places[d] - first : first + 1.0 - places[d];
        }
        float found = element(tap);
        total += found == 0.0 ? 0.0 : weight * found;
    }
    return total;
}

void main() {
    int items = 1;
    for (int d = 0; d < 2 + RANK; ++d) items *= words[d];
    int rest = invocation_index();
    if (rest >= items) return;
    int channel = rest - divide(rest, words[1]) * words[1]; // neighbours share a place
    rest = divide(rest, words[1]);
    int target = words[RESULT_WORD] + channel * words[RESULT_WORD + 2];
    int from = words[GRID_WORD];
    for (int d = RANK - 1; d >= 0; --d) {
        int quotient = divide(rest, words[2 + d]);
        int place = rest - quotient * words[2 + d];
        target += place * words[RESULT_WORD + 3 + d];
        from += place * words[GRID_WORD + 2 + d];
        rest = quotient;
    }
    target += rest * words[RESULT_WORD + 1];
    from += rest * words[GRID_WORD + 1];
    image_start = words[IMAGE_WORD] + rest * words[IMAGE_WORD + 1] + channel * words[IMAGE_WORD + 2];
    float places[RANK];
    for (int d = 0; d < RANK; ++d) {
        // The coordinates of a place are the other way round: x first.
        float given = intBitsToFloat(LOAD1(grid, GRID_FORM, from + (RANK - 1 - d) * words[GRID_WORD + 2 + RANK]));
        precise float aligned = (given + 1.0) / 2.0 * (size_of(d) - 1.0);
        precise float centred = ((given + 1.0) * size_of(d) - 1.0) / 2.0;
        places[d] = ALIGNED != 0 ? aligned : centred;
        if (INTERPOLATION != CUBIC) places[d] = placed(places[d], d);
        if (INTERPOLATION == NEAREST) places[d] = roundEven(places[d]);
    }
    float value = INTERPOLATION == NEAREST ? element(places) : INTERPOLATION == CUBIC ? at_cubic(places) : at_linear(places);
    int bits = narrowed(TARGET_FORM, ivec4(floatBitsToInt(value))).x;
    PUT1(result, TARGET_FORM, target, bits)
}
