#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// What a convolution of 3 x 3 taps multiplies with its filters: of each tile of 4 x 4 results and each channel 36 numbers, which are rows of
// as many matrices. An invocation computes those of a tile and of four channels; neighbours hold neighbouring channels.
#include "access.glsl"
#include "rolled.glsl"

layout(constant_id = 1) const int ROLLED = 0; // the stores are a loop, see rolled.glsl

WRITES(0, rows)
READS(1, pixels)
#include "winograd.glsl"

#define STORE_ROW(i) STORE_FLOATS4(rows, WORDS, (i * tiles + tile) * vectors + channel, kept[i])

void main() {
    int index = invocation_index();
    if (index >= tiles * vectors) return;
    int tile = index / vectors;
    int channel = index - tile * vectors;
    Tile at = tile_of(tile);
    int first = image_offset + at.batch * image_batch + channel;
    vec4 values[SPAN * SPAN];
    [[unroll]] for (int i = 0; i < SPAN * SPAN; ++i) {
        int y = at.y - top + i / SPAN, x = at.x - left + i % SPAN;
        bool inside = uint(y) < uint(height) && uint(x) < uint(width);
        vec4 value = LOAD_FLOATS4(pixels, WORDS, inside ? first + y * image_row + x * image_pitch : 0);
        values[i] = inside ? value : vec4(0.0);
    }
    [[unroll]] for (int i = 0; i < SPAN; ++i) ALONG(widen, values, i, SPAN)
    [[unroll]] for (int i = 0; i < SPAN; ++i) ALONG(widen, values, i * SPAN, 1)
    vec4 kept[SPAN * SPAN];
    [[unroll]] for (int i = 0; i < SPAN * SPAN; ++i) kept[i] = values[i];
    EACH_STORED(SPAN * SPAN, STORE_ROW)
}
