#version 450
// The largest of a window, as pool.comp, of halves that stand for float32: they are compared as they lie, eight neighbouring channels an
// invocation. Windows have no gaps, so a place outside of the input can be the nearest one inside: that is in the window, too.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "access.glsl"

layout(constant_id = 1) const int KERNEL_D = 1;
layout(constant_id = 2) const int KERNEL_H = 1;
layout(constant_id = 3) const int KERNEL_W = 1;

WRITES(0, result)
READS(1, data)

#include "pool_push.glsl"

const int RUN = 8; // channels
const uint INFINITIES = 0x7c007c00u, MAGNITUDES = 0x7fff7fffu, SIGNS = 0x80008000u;

f16vec2 halves(uint word) { return unpackFloat2x16(word); }

void main() {
    int runs = channels / RUN;
    int index = invocation_index();
    if (index >= batch * out_d * out_h * out_w * runs) return;
    int rest = divide(index, runs);
    int channel = (index - rest * runs) * RUN;
    int quotient = divide(rest, out_w);
    int x = rest - quotient * out_w;
    rest = quotient;
    quotient = divide(rest, out_h);
    int y = rest - quotient * out_h;
    int n = divide(quotient, out_d);
    int z = quotient - n * out_d;
    int base = source_offset + n * source_n + channel * source_c;

    f16vec2 largest[4];
    for (int i = 0; i < 4; ++i) largest[i] = halves(SIGNS | INFINITIES);
    // max() of NaN may be anything: a magnitude above infinity's carries into the bit of the sign.
    uvec4 met = uvec4(0u);
    for (int k = 0; k < KERNEL_D; ++k) {
        int plane = base + clamp(z * step_d - pad_d + k, 0, extent_d - 1) * source_z;
        for (int j = 0; j < KERNEL_H; ++j) {
            int row = plane + clamp(y * step_h - pad_h + j, 0, extent_h - 1) * source_y;
            for (int i = 0; i < KERNEL_W; ++i) {
                int place = row + clamp(x * step_w - pad_w + i, 0, extent_w - 1) * source_x;
                uvec4 words = uvec4(QUAD(data, place / RUN));
                met |= (words & MAGNITUDES) + (MAGNITUDES - INFINITIES);
                for (int word = 0; word < 4; ++word) largest[word] = max(largest[word], halves(words[word]));
            }
        }
    }
    uvec4 found = uvec4(packFloat2x16(largest[0]), packFloat2x16(largest[1]), packFloat2x16(largest[2]), packFloat2x16(largest[3]));
    found |= ((met & SIGNS) >> 15) * 0x7fffu; // NaN
    int target = target_offset + n * target_n + channel * target_c + z * target_z + y * target_y + x * target_x;
    result_quads[target / RUN] = ivec4(found);
}
