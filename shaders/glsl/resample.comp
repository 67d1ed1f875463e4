#version 450
// Every output place is a weighted sum of a few input places, chosen by a table for each dimension of space: interpolation of any
// kind, and padding that repeats or mirrors. An invocation computes four neighbouring channels.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

// TAPS are the input places of each dimension: 0, the same place as the output's; 1, one place; more, that many pairs of place and weight.
layout(constant_id = 1) const int MODE = 0;
layout(constant_id = 2) const int STORE_VECTOR = 0;
layout(constant_id = 3) const int TAPS_D = 0;
layout(constant_id = 4) const int TAPS_H = 0;
layout(constant_id = 5) const int TAPS_W = 0;

WRITES(0, result)
READS(1, data)
READS(2, table)

layout(push_constant) uniform Geometry {
    int batch, channels;
    int out_d, out_h, out_w;
    int in_offset, in_n, in_c, in_z, in_y, in_x;       // offset and strides
    int out_offset, out_n, out_c, out_z, out_y, out_x; // offset and strides
    int table_d, table_h, table_w;
    int unused[12];
};

#define TAP_PLACE(taps, first, place, tap)                                                                             \
    ((taps) == 0 ? (place) : (taps) == 1 ? LOAD1(table, (first) + (place)) : LOAD1(table, (first) + ((place) * (taps) + (tap)) * 2))
#define TAP_WEIGHT(taps, first, place, tap)                                                                            \
    ((taps) < 2 ? 1.0 : intBitsToFloat(LOAD1(table, (first) + ((place) * (taps) + (tap)) * 2 + 1)))

void main() {
    int runs = (channels + 3) >> 2;
    int index = invocation_index();
    if (index >= batch * out_d * out_h * out_w * runs) return;
    int rest = divide(index, runs);
    int channel = (index - rest * runs) * 4;
    int quotient = divide(rest, out_w);
    int x = rest - quotient * out_w;
    rest = quotient;
    quotient = divide(rest, out_h);
    int y = rest - quotient * out_h;
    rest = quotient;
    quotient = divide(rest, out_d);
    int z = rest - quotient * out_d;
    int n = quotient;
    int last = min(channels - channel - 1, 3);
    int base = in_offset + n * in_n + channel * in_c;

    ivec4 value = ivec4(0);
    if (max(max(TAPS_D, TAPS_H), TAPS_W) < 2) {
        int place = base + TAP_PLACE(TAPS_D, table_d, z, 0) * in_z + TAP_PLACE(TAPS_H, table_h, y, 0) * in_y
                  + TAP_PLACE(TAPS_W, table_w, x, 0) * in_x;
        value = LOAD_LANES4(data, MODE, place, in_c, last);
    } else {
        vec4 total = vec4(0.0);
        for (int k = 0; k < max(TAPS_D, 1); ++k) {
            int plane = base + TAP_PLACE(TAPS_D, table_d, z, k) * in_z;
            vec4 sheet = vec4(0.0);
            for (int j = 0; j < max(TAPS_H, 1); ++j) {
                int row = plane + TAP_PLACE(TAPS_H, table_h, y, j) * in_y;
                vec4 line = vec4(0.0);
                for (int i = 0; i < max(TAPS_W, 1); ++i) {
                    int place = row + TAP_PLACE(TAPS_W, table_w, x, i) * in_x;
                    line += TAP_WEIGHT(TAPS_W, table_w, x, i) * intBitsToFloat(LOAD_LANES4(data, MODE, place, in_c, last));
                }
                sheet += TAP_WEIGHT(TAPS_H, table_h, y, j) * line;
            }
            total += TAP_WEIGHT(TAPS_D, table_d, z, k) * sheet;
        }
        value = floatBitsToInt(total);
    }
    int target = out_offset + n * out_n + channel * out_c + z * out_z + y * out_y + x * out_x;
    STORE_LANES4(result, STORE_VECTOR != 0, target, out_c, last, value)
}
