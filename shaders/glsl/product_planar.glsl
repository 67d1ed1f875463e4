// How a product reads an image whose channels, four at most, lie as planes, one after the other: places and strides of the input count
// elements, floats or halves, and the inner dimension is one vec4 of each tap. See Planes in runtimes/vulkan/kernels/product_planes.py.
const int CHANNELS = INNER_TAIL != 0 ? INNER_TAIL : 4;

#define PLANE_BITS(place) RAW1(activations, ACTIVATION_FORM, place)

// The channels of a pixel, then zeros.
vec4 planes_at(int place) {
    int plane = height * width;
    ivec4 bits = ivec4(PLANE_BITS(place), 0, 0, 0);
    if (CHANNELS > 1) bits.y = PLANE_BITS(place + plane);
    if (CHANNELS > 2) bits.z = PLANE_BITS(place + 2 * plane);
    if (CHANNELS > 3) bits.w = PLANE_BITS(place + 3 * plane);
    return intBitsToFloat(widened(ACTIVATION_FORM, bits));
}
#undef ACTIVATION
#define ACTIVATION(place) planes_at(place)

// The tap `count` taps further on.
ivec2 tap_after(ivec2 tap, int count) {
    int x = tap.x + count;
    int lines = x / taps_wide;
    return ivec2(x - lines * taps_wide, tap.y + lines);
}
