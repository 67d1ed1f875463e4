#version 450
// Largest or mean of a window, for up to three dimensions of space. An invocation computes four neighbouring channels. A long window is
// divided among dispatches, each of which goes on with what the one before left in the result.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int MODE = 0;
layout(constant_id = 2) const int STORE_MODE = 0;
layout(constant_id = 3) const int AVERAGE = 0;
layout(constant_id = 4) const int WRITES_INDICES = 0;
layout(constant_id = 5) const int ADAPTIVE = 0; // the window is this place's share of the input, KERNEL places of it from `pad` on
layout(constant_id = 6) const int COUNTS_PADDING = 0;
layout(constant_id = 7) const int KERNEL_D = 1;
layout(constant_id = 8) const int KERNEL_H = 1;
layout(constant_id = 9) const int KERNEL_W = 1;
layout(constant_id = 10) const int CONTINUES = 0;
const int STRETCH = KERNEL_W < 64 ? KERNEL_W : 64; // columns that are added up before they are added to the total

UPDATES(0, result)
UPDATES(1, indices)
READS(2, data)

#include "pool_push.glsl"

// First place and end of a window in one dimension, and its length with padding.
ivec3 window(int place, int size, int outputs, int kernel, int step, int pad, int gap) {
    if (ADAPTIVE != 0) {
        int start = divide(place * size, outputs) + pad;
        int end = min(divide((place + 1) * size + outputs - 1, outputs), start + kernel);
        return ivec3(start, end, end - start);
    }
    int start = place * step - pad;
    int end = start + (kernel - 1) * gap + 1;
    return ivec3(start, end, min(end, size + pad) - start);
}

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

    ivec3 span_z = window(z, extent_d, out_d, KERNEL_D, step_d, pad_d, gap_d);
    ivec3 span_y = window(y, extent_h, out_h, KERNEL_H, step_h, pad_h, gap_h);
    ivec3 span_x = window(x, extent_w, out_w, KERNEL_W, step_w, pad_w, gap_w);
    int planes = ADAPTIVE != 0 ? span_z.z : KERNEL_D;
    int rows = ADAPTIVE != 0 ? span_y.z : KERNEL_H;
    int columns = ADAPTIVE != 0 ? span_x.z : KERNEL_W;
    int base = source_offset + n * source_n + channel * source_c;

    vec4 total = vec4(AVERAGE != 0 ? 0.0 : intBitsToFloat(0xff800000));
    ivec4 where = ivec4((max(span_z.x, 0) * extent_h + max(span_y.x, 0)) * extent_w + max(span_x.x, 0));
    int target = target_offset + n * target_n + channel * target_c + z * target_z + y * target_y + x * target_x;
    if (CONTINUES != 0) {
        total = intBitsToFloat(RELOAD_LANES4(result, STORE_MODE, target, target_c, last));
        if (WRITES_INDICES != 0) where = RELOAD_LANES4(indices, STORE_MODE & 1, target, target_c, last);
    }
    for (int k = 0; k < planes; ++k) {
        int from_z = span_z.x + k * gap_d;
        for (int j = 0; j < rows; ++j) {
            int from_y = span_y.x + j * gap_h;
            for (int stretch = 0; stretch < columns; stretch += STRETCH) {
                vec4 line = vec4(0.0);
                for (int i = stretch; i < min(stretch + STRETCH, columns); ++i) {
                    int from_x = span_x.x + i * gap_w;
                    bool inside = from_z >= 0 && from_z < extent_d && from_y >= 0 && from_y < extent_h && from_x >= 0 && from_x < extent_w;
                    int place = base + clamp(from_z, 0, extent_d - 1) * source_z + clamp(from_y, 0, extent_h - 1) * source_y
                              + clamp(from_x, 0, extent_w - 1) * source_x;
                    vec4 value = intBitsToFloat(LOAD_LANES4(data, MODE, place, source_c, last));
                    if (AVERAGE != 0) {
                        line += inside ? value : vec4(0.0);
                    } else {
                        bvec4 better = inside ? bvec4(ivec4(greaterThan(value, total)) | ivec4(is_nan(value))) : bvec4(false);
                        total = mix(total, value, better);
                        if (WRITES_INDICES != 0)
                            where = mix(where, ivec4((from_z * extent_h + from_y) * extent_w + from_x), better);
                    }
                }
                if (AVERAGE != 0) total += line;
            }
        }
    }
    if (AVERAGE != 0) {
        int inside = (min(span_z.y, extent_d) - max(span_z.x, 0)) * (min(span_y.y, extent_h) - max(span_y.x, 0))
                   * (min(span_x.y, extent_w) - max(span_x.x, 0));
        int count = divisor != 0 ? divisor : COUNTS_PADDING != 0 ? span_z.z * span_y.z * span_x.z : inside;
        total /= float(count);
    }
    STORE_LANES4(result, STORE_MODE, target, target_c, last, floatBitsToInt(total))
    if (WRITES_INDICES != 0) { STORE_LANES4(indices, STORE_MODE & 1, target, target_c, last, where) }
}
