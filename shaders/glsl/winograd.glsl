// Winograd's minimal filtering of one dimension, F(4, 3): four results of a filter of three taps from six products (A. Lavin and S. Gray,
// "Fast algorithms for convolutional neural networks", 2016; the matrices are those of Cook and Toom for the points 0, +-A, +-2A and
// infinity). With A = 3/4, in place of the usual 1, errors are up to 2.6 times a plain sum's: 1.3e-6 of scale for 64 channels in place of 7e-6.
// The filter's half is in runtimes/vulkan/kernels/winograd_weights.py.
const float A = 0.75;
const int TILE = 4;
const int SPAN = 6;

// Six neighbours as what is multiplied.
void widen(inout vec4 a, inout vec4 b, inout vec4 c, inout vec4 d, inout vec4 e, inout vec4 f) {
    vec4 even = e - 4.0 * A * A * c, odd = A * (d - 4.0 * A * A * b);
    vec4 far_even = e - A * A * c, far_odd = 2.0 * A * (d - A * A * b);
    vec4 first = e - 5.0 * A * A * c + 4.0 * A * A * A * A * a;
    vec4 last = f - 5.0 * A * A * d + 4.0 * A * A * A * A * b;
    a = first;
    b = even + odd;
    c = even - odd;
    d = far_even + far_odd;
    e = far_even - far_odd;
    f = last;
}

// Six products as four results, which are the first four.
void gather(inout vec4 a, inout vec4 b, inout vec4 c, inout vec4 d, vec4 e, vec4 f) {
    vec4 sum = b + c, difference = b - c, far_sum = d + e, far_difference = d - e;
    a = a + sum + far_sum;
    b = A * difference + 2.0 * A * far_difference;
    c = A * A * sum + 4.0 * A * A * far_sum;
    d = A * A * A * difference + 8.0 * A * A * A * far_difference + f;
}

// Of an array of SPAN x SPAN, along the dimension whose neighbours are `step` apart.
#define ALONG(function, values, first, step)                                                                           \
    function((values)[first], (values)[(first) + (step)], (values)[(first) + 2 * (step)], (values)[(first) + 3 * (step)], \
             (values)[(first) + 4 * (step)], (values)[(first) + 5 * (step)]);

#include "winograd_push.glsl"

// Where a tile of a band is: its image, and its first pixel of the result.
struct Tile {
    int batch, y, x;
};

Tile tile_of(int tile) {
    tile += first_tile;
    int line = tile / tiles_wide;
    int batch = line / tiles_high;
    return Tile(batch, (line - batch * tiles_high) * TILE, (tile - line * tiles_wide) * TILE);
}
