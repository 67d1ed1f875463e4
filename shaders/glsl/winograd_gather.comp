#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// The results of a convolution of 3 x 3 taps from products with its filters: see winograd_spread.comp. An invocation computes 4 x 4 pixels
// of four channels; neighbours hold neighbouring channels.
#define FORMS_ID 10
#include "product_operands.glsl"
#include "local_index.glsl"
#include "rolled.glsl"

layout(constant_id = 8) const int LOCAL_SIZE = 64;
layout(constant_id = 9) const int ROLLED = 0; // the stores are a loop, see rolled.glsl
layout(local_size_x_id = 8, local_size_y = 1, local_size_z = 1) in;

#include "winograd.glsl"

Tile at;
int channel;

void finish(int y, int x, vec4 sum) {
    if (y >= height || x >= width) return;
    vec4 value = before_residual(sum);
    if (HAS_RESIDUAL != 0)
        value = with_residual(value, RESIDUAL(residual_offset + at.batch * residual_batch + y * residual_row + x * residual_pitch + channel));
    store(image_offset + at.batch * image_batch + y * image_row + x * image_pitch + channel, after_residual(value));
}

#define STORE_PIXEL(i) finish(at.y + i / TILE, at.x + i % TILE, kept[i]);

void main() {
    int index = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * LOCAL_SIZE + local_index();
    if (index >= tiles * vectors) return;
    int tile = index / vectors;
    channel = index - tile * vectors;
    at = tile_of(tile);
    vec4 values[SPAN * SPAN];
    [[unroll]] for (int i = 0; i < SPAN * SPAN; ++i) values[i] = ACTIVATION((i * tiles + tile) * vectors + channel);
    [[unroll]] for (int i = 0; i < SPAN; ++i) ALONG(gather, values, i, SPAN)
    [[unroll]] for (int i = 0; i < TILE; ++i) ALONG(gather, values, i * SPAN, 1)
    vec4 bias = HAS_BIAS != 0 ? BIAS(channel) : vec4(0.0);
    vec4 kept[TILE * TILE];
    [[unroll]] for (int i = 0; i < TILE * TILE; ++i) kept[i] = values[i / TILE * SPAN + i % TILE] + bias;
    EACH_STORED(TILE * TILE, STORE_PIXEL)
}
