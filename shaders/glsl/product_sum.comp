#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// The partial sums that product_shared.comp or product_tiles.comp writes for a result whose inner dimension it divides into PARTS,
// added up.
#define FORMS_ID 14
#include "product.glsl"

layout(constant_id = 12) const int PARTS = 2;
layout(constant_id = 13) const int INVOCATIONS = 64;
layout(local_size_x_id = 13, local_size_y = 1, local_size_z = 1) in;

const int STRETCH = PARTS < 8 ? PARTS : 8; // parts added up at a time

void main() {
    int batch = int(gl_WorkGroupID.z);
    int index = start_row * columns + int(gl_GlobalInvocationID.x);
    if (index >= rows * columns) return;
    int row = index / columns;
    vec4 sum = vec4(0.0);
    for (int first = 0; first < PARTS; first += STRETCH) {
        vec4 stretch = vec4(0.0);
        [[unroll]] for (int i = 0; i < STRETCH; ++i)
            if (PARTS % STRETCH == 0 || first + i < PARTS)
                stretch += ACTIVATION((batch * PARTS + first + i) * rows * columns + index);
        sum += stretch;
    }
    Pixel pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) pixel = pixel_of(row);
    int column = index - row * columns;
    if (HAS_BIAS != 0) sum += BIAS(column);
    store_biased(result_index(batch, row, pixel), residual_index(batch, row, pixel), column, sum);
}
