#version 450
// Stable sorting of lines by merging: each element counts how many of the others come before it. The first pass orders blocks of BLOCK
// neighbours by comparing all of them; each further pass merges WAYS runs that are `width` long, both powers of two, in which an element finds its
// place among those of each other run by a binary search; these take their steps together, so that their loads don't wait for each other. So
// loops are short, lines have any length, and equal elements keep their order.
// What is sorted are integers in the order of the elements, with the places that they had.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "order.glsl"

#ifdef MERGES
layout(constant_id = 1) const int WAYS = 2;
const int OTHERS = WAYS - 1;
#else
layout(constant_id = 1) const int RANK = 1; // dimensions of which the lines are the places
layout(constant_id = 2) const int FORM = 0;
layout(constant_id = 3) const int INTEGER = 0;
layout(constant_id = 4) const int DESCENDING = 0;
layout(constant_id = 5) const int BLOCK = 32;
#endif

WRITES(0, keys)
WRITES(1, places)
#ifdef MERGES
READS(2, old_keys)
READS(3, old_places)
#include "merge_push.glsl"
#else
READS(2, data)
#include "sort_push.glsl"

int start_of(int line) {
    int start = words[DATA_WORD];
    for (int d = RANK - 1; d >= 0; --d) {
        int quotient = d > 0 ? divide(line, words[d]) : 0;
        start += (line - quotient * words[d]) * words[DATA_WORD + 1 + d];
        line = quotient;
    }
    return start;
}

Key key_at(int start, int index) {
    Key key = KEY_AT(data, INTEGER, FORM, start + index * words[STRIDE_WORD]);
    return DESCENDING != 0 ? ~key : key;
}
#endif

void main() {
    int item = invocation_index();
#ifndef MERGES
    int count = words[COUNT_WORD], length = words[LENGTH_WORD];
#endif
    if (item >= count) return;
    int line = divide(item, length);
    int index = item - line * length;
#ifdef MERGES
    int first = index & -(WAYS * width), own = index & -width; // of these runs, and of the element's
    Key key = KEPT_KEY(old_keys, item);
#define OTHER_RUN(i) (first + (own - first + ((i) + 1) * width & WAYS * width - 1))
    int ends[OTHERS]; // behind the elements of each other run that come before
    [[unroll]] for (int i = 0; i < OTHERS; ++i) ends[i] = OTHER_RUN(i);
    for (int step = width; step > 0; step >>= 1) {
        [[unroll]] for (int i = 0; i < OTHERS; ++i) {
            int run = OTHER_RUN(i);
            int last = ends[i] + step - 1;
            if (last >= min(run + width, length)) continue;
            Key other = KEPT_KEY(old_keys, line * length + last);
            if (run < own ? !is_less(key, other) : is_less(other, key)) ends[i] += step;
        }
    }
    int place = first + index - own;
    [[unroll]] for (int i = 0; i < OTHERS; ++i) place += ends[i] - (OTHER_RUN(i));
    int from = WORD(old_places, item);
#else
    int start = start_of(line);
    Key key = key_at(start, index);
    int first = index & ~(BLOCK - 1);
    int end = min(first + BLOCK, length);
    int place = first;
    for (int other = first; other < end; ++other) {
        Key against = key_at(start, other);
        place += int(is_less(against, key) || (against == key && other < index));
    }
    int from = index;
#endif
    KEEP_KEY(keys, line * length + place, key)
    places_words[line * length + place] = from;
}
