#version 450
#extension GL_GOOGLE_include_directive : require
// Images whose channels, four at most, lie in planes, as pixels of four numbers beside each other, with zeros around each image. A line is
// places of HELD pixels, each of which begins where the one before ends, or, if pixels REPEAT, one pixel after it. An invocation makes a
// pixel. See runtimes/vulkan/kernels/image_rows.py.
#include "access.glsl"

layout(constant_id = 1) const int CHANNELS = 3;
layout(constant_id = 2) const int FORM = 0; // of the planes' elements
layout(constant_id = 3) const int RESULT_FORM = 0;
layout(constant_id = 4) const int HELD = 1;
layout(constant_id = 5) const int REPEATS = 0;

WRITES(0, result)
READS(1, planes)
#include "image_rows_push.glsl"

void main() {
    int index = invocation_index();
    if (index >= pixels) return;
    int place = index / HELD;
    int line = divide(place, out_width);
    int batch = divide(line, out_height);
    int x = (place - line * out_width) * (REPEATS != 0 ? 1 : HELD) + index % HELD - left;
    int y = line - batch * out_height - top;
    ivec4 bits = ivec4(0);
    if (uint(x) < uint(width) && uint(y) < uint(height)) {
        int plane = height * width;
        int first = input_offset + batch * CHANNELS * plane + y * width + x;
        bits.x = RAW1(planes, FORM, first);
        if (CHANNELS > 1) bits.y = RAW1(planes, FORM, first + plane);
        if (CHANNELS > 2) bits.z = RAW1(planes, FORM, first + 2 * plane);
        if (CHANNELS > 3) bits.w = RAW1(planes, FORM, first + 3 * plane);
    }
    STORE_FLOATS4(result, RESULT_FORM, index, intBitsToFloat(widened(FORM, bits)))
}
