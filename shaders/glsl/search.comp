#version 450
// For each value how many elements of a sorted line are less (or, with RIGHT, not greater), by a binary search. As in torch, whatever is
// compared with NaN is not greater or equal.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "order.glsl"

layout(constant_id = 1) const int RANK = 1; // of the values
layout(constant_id = 2) const int LINE_FORM = 0;
layout(constant_id = 3) const int VALUE_FORM = 0;
layout(constant_id = 4) const int INTEGER = 0;
layout(constant_id = 5) const int RIGHT = 0;

WRITES(0, result)
READS(1, lines)
READS(2, values)

#include "search_push.glsl"

// By order_key: a driver may flush subnormal numbers to zero in comparisons of floats.
#ifdef LONG_INTEGERS
bool is_beyond(Key element, Key value) { return RIGHT != 0 ? is_less(value, element) : !is_less(element, value); }
#define ELEMENT(name, form, index) KEY_AT(name, INTEGER, form, index)
#else
#define ELEMENT(name, form, index) LOAD1(name, form, index)
bool is_beyond(int element, int value) {
    if (INTEGER == 0 && (is_nan(element) || is_nan(value))) return false;
    int element_key = order_key(INTEGER, element), value_key = order_key(INTEGER, value);
    return RIGHT != 0 ? element_key > value_key : element_key >= value_key;
}
#endif

void main() {
    int items = 1;
    for (int d = 0; d < RANK; ++d) items *= words[d];
    int rest = invocation_index();
    if (rest >= items) return;
    int offsets[3];
    for (int t = 0; t < 3; ++t) offsets[t] = words[tensor_word(t)];
    for (int d = RANK - 1; d >= 0; --d) {
        int quotient = d > 0 ? divide(rest, words[d]) : 0;
        int place = rest - quotient * words[d];
        for (int t = 0; t < 3; ++t) offsets[t] += place * words[tensor_word(t) + 1 + d];
        rest = quotient;
    }
    Key value = ELEMENT(values, VALUE_FORM, offsets[2]);
    int low = 0;
    int high = words[LENGTH_WORD];
    int stride = words[STRIDE_WORD];
    while (low < high) {
        int middle = (low + high) >> 1;
        if (is_beyond(ELEMENT(lines, LINE_FORM, offsets[1] + middle * stride), value)) high = middle;
        else low = middle + 1;
    }
    result_words[offsets[0]] = low;
}
