// Elements as integers in their order.
#ifndef ORDER_GLSL
#define ORDER_GLSL

bool is_nan(int bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// An integer that is larger where an element is: both zeros are equal, and NaN is larger than all.
int order_key(int integer, int bits) {
    if (integer != 0) return bits;
    if (is_nan(bits)) return 0x7fffffff;
    int magnitude = bits & 0x7fffffff;
    return bits < 0 ? -magnitude : magnitude;
}
#endif
