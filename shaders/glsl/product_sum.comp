#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// The partial sums that product_shared.comp writes for a result whose inner dimension it divides into PARTS, added up.
#include "product.glsl"

layout(constant_id = 12) const int PARTS = 2;
layout(constant_id = 13) const int INVOCATIONS = 64;
layout(local_size_x_id = 13, local_size_y = 1, local_size_z = 1) in;

void main() {
    int batch = int(gl_WorkGroupID.z);
    int index = int(gl_GlobalInvocationID.x);
    if (index >= rows * columns) return;
    int row = index / columns;
    vec4 sum = vec4(0.0);
    [[unroll]] for (int part = 0; part < PARTS; ++part) sum += VECTOR(activations, (batch * PARTS + part) * rows * columns + index);
    Pixel pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) pixel = pixel_of(row);
    store_result(result_index(batch, row, pixel), residual_index(batch, row, pixel), index - row * columns, sum);
}
