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

// Keys of elements: with LONG_INTEGERS both words of an integer of 64 bits.
#ifdef LONG_INTEGERS
#define Key ivec2
#define KEY_AT(name, integer, form, index) key_of(LOAD_PLACES4(name, form, ivec4(index)))
#define KEPT_KEY(name, index) key_of(LOAD_PLACES4(name, LONGS, ivec4(index)))
#define KEEP_KEY(name, index, key)                                                                                     \
    name##_words[2 * (index)] = (key).x;                                                                               \
    name##_words[2 * (index) + 1] = (key).y;

ivec2 key_of(Long value) { return ivec2(value.low.x, value.high.x); }
bool is_less(ivec2 a, ivec2 b) { return a.y < b.y || (a.y == b.y && uint(a.x) < uint(b.x)); }
#else
#define Key int
#define KEY_AT(name, integer, form, index) order_key(integer, LOAD1(name, form, index))
#define KEPT_KEY(name, index) WORD(name, index)
#define KEEP_KEY(name, index, key) name##_words[index] = key;

bool is_less(int a, int b) { return a < b; }
#endif
#endif
