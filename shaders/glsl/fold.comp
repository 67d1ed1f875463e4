#version 450
// Sums of windows that are laid over an image (torch's `col2im`): at each place what every window has there that reaches it, in the order of
// taps, as torch's kernel on the CPU adds. An invocation computes four neighbouring channels; taps are the source's first dimension of space.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int MODE = 0;
layout(constant_id = 2) const int STORE_MODE = 0;
layout(constant_id = 3) const int TAPS_HIGH = 1;
layout(constant_id = 4) const int TAPS_WIDE = 1;

WRITES(0, result)
READS(1, data)

#include "pool_push.glsl"

// The window whose tap lies at a place of the padded image, or -1.
int window_at(int place, int tap, int step, int gap, int windows) {
    int first = place - tap * gap;
    int window = divide(max(first, 0), step);
    return first >= 0 && window * step == first && window < windows ? window : -1;
}

void main() {
    int runs = (channels + 3) >> 2;
    int index = invocation_index();
    if (index >= batch * out_h * out_w * runs) return;
    int rest = divide(index, runs);
    int channel = (index - rest * runs) * 4;
    int quotient = divide(rest, out_w);
    int x = rest - quotient * out_w;
    int n = divide(quotient, out_h);
    int y = quotient - n * out_h;
    int last = min(channels - channel - 1, 3);
    int base = source_offset + n * source_n + channel * source_c;

    precise vec4 total = vec4(0.0);
    for (int i = 0; i < TAPS_HIGH; ++i) {
        int row = window_at(y + pad_h, i, step_h, gap_h, extent_h);
        for (int j = 0; j < TAPS_WIDE; ++j) {
            int column = window_at(x + pad_w, j, step_w, gap_w, extent_w);
            int place = base + (i * TAPS_WIDE + j) * source_z + max(row, 0) * source_y + max(column, 0) * source_x;
            vec4 value = intBitsToFloat(LOAD_LANES4(data, MODE, place, source_c, last));
            total += row >= 0 && column >= 0 ? value : vec4(0.0);
        }
    }
    int target = target_offset + n * target_n + channel * target_c + y * target_y + x * target_x;
    STORE_LANES4(result, STORE_MODE, target, target_c, last, floatBitsToInt(total))
}
