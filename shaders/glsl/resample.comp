#version 450
// Every output place is a weighted sum of a few input places, chosen by a table for each dimension of space: interpolation of any
// kind, and padding that repeats or mirrors. An invocation computes four neighbouring channels.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

// TAPS are the input places of each dimension: 0, the same place as the output's; 1, one place; else a multiple of 2, as
// vec4s of two places and the bits of their two weights.
layout(constant_id = 1) const int MODE = 0;
layout(constant_id = 2) const int STORE_MODE = 0;
layout(constant_id = 3) const int TAPS_D = 0;
layout(constant_id = 4) const int TAPS_H = 0;
layout(constant_id = 5) const int TAPS_W = 0;

WRITES(0, result)
READS(1, data)
READS(2, table)

#include "resample_push.glsl"

// The bindings of the table are read by single elements if no dimension has more than one tap, else by vec4s.
#define PLACE(taps, first, place) ((taps) == 0 ? (place) : WORD(table, (first) + (place)))
#define TAP_PAIR(taps, first, place, pair) ((taps) == 0 ? ivec4(place, 0, floatBitsToInt(1.0), 0) : QUAD(table, (first) + (place) * ((taps) / 2) + (pair)))

const int PAIRS_D = (TAPS_D + 1) / 2 + (TAPS_D == 0 ? 1 : 0), PAIRS_H = (TAPS_H + 1) / 2 + (TAPS_H == 0 ? 1 : 0),
          PAIRS_W = (TAPS_W + 1) / 2 + (TAPS_W == 0 ? 1 : 0);
const int SIDES_D = TAPS_D == 0 ? 1 : 2, SIDES_H = TAPS_H == 0 ? 1 : 2, SIDES_W = TAPS_W == 0 ? 1 : 2;

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
    int base = source_offset + n * source_n + channel * source_c;

    Lanes value;
    if (TAPS_D < 2 && TAPS_H < 2 && TAPS_W < 2) { // not by max(), which is no constant to whoever leaves branches out
        int place = base + PLACE(TAPS_D, table_d, z) * source_z + PLACE(TAPS_H, table_h, y) * source_y + PLACE(TAPS_W, table_w, x) * source_x;
        value = LOAD_LANES4(data, MODE, place, source_c, last);
    }
#ifndef LONG_INTEGERS // of which there are no weighted sums
    else {
        vec4 total = vec4(0.0);
        for (int i = 0; i < PAIRS_W; ++i) {
            ivec4 columns = TAP_PAIR(TAPS_W, table_w, x, i);
            for (int j = 0; j < PAIRS_H * SIDES_H; ++j) {
                ivec4 rows = TAP_PAIR(TAPS_H, table_h, y, j / SIDES_H);
                for (int k = 0; k < PAIRS_D * SIDES_D; ++k) {
                    ivec4 planes = TAP_PAIR(TAPS_D, table_d, z, k / SIDES_D);
                    int plane = k % SIDES_D == 0 ? planes.x : planes.y;
                    int row = j % SIDES_H == 0 ? rows.x : rows.y;
                    float weight = intBitsToFloat(k % SIDES_D == 0 ? planes.z : planes.w) * intBitsToFloat(j % SIDES_H == 0 ? rows.z : rows.w);
                    int line = base + plane * source_z + row * source_y;
                    vec4 sum = intBitsToFloat(columns.z) * intBitsToFloat(LOAD_LANES4(data, MODE, line + columns.x * source_x, source_c, last));
                    if (SIDES_W == 2)
                        sum += intBitsToFloat(columns.w) * intBitsToFloat(LOAD_LANES4(data, MODE, line + columns.y * source_x, source_c, last));
                    total += weight * sum;
                }
            }
        }
        value = floatBitsToInt(total);
    }
#endif
    int target = target_offset + n * target_n + channel * target_c + z * target_z + y * target_y + x * target_x;
    STORE_LANES4(result, STORE_MODE, target, target_c, last, value)
}
