#version 450
// target[..., indices[i...], ...] = source[i...], or combined with what is there: an index chooses the place along one dimension of the
// target. An invocation walks a line of the source in its order, so that equal indices have a defined result: it is that of torch's
// kernels on the CPU, roundings included. With ATOMIC an invocation has one element, and equal indices are combined by operations whose
// order makes no difference. With ORDERED indices are sorted, with the places that they had: an invocation walks a run of equal ones, of one line.
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "order.glsl"

layout(constant_id = 1) const int RANK = 1; // dimensions of which the lines are the places
layout(constant_id = 2) const int TARGET_FORM = 0;
layout(constant_id = 3) const int SOURCE_FORM = 0;
layout(constant_id = 4) const int INDEX_FORM = 0;
layout(constant_id = 5) const int OPERATION = 0;
layout(constant_id = 6) const int INTEGER = 0;
layout(constant_id = 7) const int NEGATIVE = 0; // what is refused raises the flag, as what is too large does
#ifdef ORDERED
layout(constant_id = 8) const int MOST = 1;  // elements of a run that an invocation puts, a multiple of those ...
layout(constant_id = 9) const int AHEAD = 1; // ... that it reads at once, some of them behind the end
#else
layout(constant_id = 8) const int ATOMIC = 0;
#endif

#include "negative.glsl"
#include "put.glsl"

UPDATES(0, target)
READS(1, source)
READS(2, indices)
RAISES(3)

#ifdef ORDERED
READS(4, places)
#include "scatter_ordered_push.glsl"
#else
#include "scatter_push.glsl"
#endif

int combined(int old, int given) {
    if (OPERATION == REPLACE) return given;
    if (INTEGER != 0) {
        switch (OPERATION) {
        case ADD: return old + given;
        case MULTIPLY: return old * given;
        case LARGEST: return max(old, given);
        }
        return min(old, given);
    }
    precise float a = intBitsToFloat(old);
    precise float b = intBitsToFloat(given);
    precise float sum = a + b;
    precise float product = a * b;
    if (OPERATION == ADD) return floatBitsToInt(sum);
    if (OPERATION == MULTIPLY) return floatBitsToInt(product);
    if (is_nan(old) || is_nan(given)) return is_nan(old) ? old : given;
    return (OPERATION == LARGEST ? a < b : b < a) ? given : old;
}

#ifdef LONG_INTEGERS // in the first lanes; the others are alike
Long combined(Long old, Long given) {
    if (OPERATION == REPLACE) return given;
    if (INTEGER == 0) return extended(ivec4(combined(old.low.x, given.low.x)));
    switch (OPERATION) {
    case ADD: return plus(old, given);
    case MULTIPLY: return times(old, given);
    case LARGEST: return largest(old, given);
    }
    return smallest(old, given);
}

void put(int place, Long value) {
    if (TARGET_FORM == LONGS) {
        Long old = Long(ivec4(target_words[2 * place]), ivec4(target_words[2 * place + 1]));
        Long result = combined(old, value);
        PUT_LONG(target, place, result, x)
    } else {
        Long old = extended(widened(TARGET_FORM, ivec4(RELOAD_RAW1(target, TARGET_FORM, place))));
        int bits = narrowed(TARGET_FORM, combined(old, value).low).x;
        PUT1(target, TARGET_FORM, place, bits)
    }
}

// What 32 bits can't hold is out of range.
int index_at(int place) {
    Long index = LOAD_PLACES4(indices, INDEX_FORM, ivec4(place));
    return index.high.x == index.low.x >> 31 ? index.low.x : 0x7fffffff;
}
Long source_at(int place) { return LOAD_PLACES4(source, SOURCE_FORM, ivec4(place)); }
#else
#ifndef ORDERED
void put(int place, int value) {
    if (ATOMIC != 0) { // of 32 bits, and an integer, or all the same
        if (OPERATION == REPLACE) PUT1(target, TARGET_FORM, place, value)
        if (OPERATION == ADD) atomicAdd(target_shared[place], value);
        if (OPERATION == LARGEST) atomicMax(target_shared[place], value);
        if (OPERATION == SMALLEST) atomicMin(target_shared[place], value);
        return;
    }
    int old = OPERATION == REPLACE ? 0 : widened(TARGET_FORM, ivec4(RELOAD_RAW1(target, TARGET_FORM, place))).x;
    int bits = narrowed(TARGET_FORM, ivec4(combined(old, value))).x;
    PUT1(target, TARGET_FORM, place, bits)
}
#endif

int index_at(int place) { return LOAD1(indices, INDEX_FORM, place); }
int source_at(int place) { return LOAD1(source, SOURCE_FORM, place); }
#endif

#ifdef ORDERED
int key_at(int line, int i) { return WORD(indices, line + i); }

// The i-th of a line's sorted indices, which begins a part of a run, or ends a run of which the last element stays.
void put_run(int target_start, int source_start, int line, int i) {
    int count = words[COUNT_WORD], skipped = words[SKIPPED_WORD];
    int chosen = key_at(line, i), begin = i - skipped;
    if (OPERATION == REPLACE) {
        if (i + 1 < count && key_at(line, i + 1) == chosen) return;
    } else if (key_at(line, begin) != chosen || (begin > 0 && key_at(line, begin - 1) == chosen)) {
        return;
    }
    if (chosen < 0 || chosen >= words[LENGTH_WORD]) {
        RAISE_FLAG
        return;
    }
    int place = target_start + chosen * words[TARGET_STEP_WORD];
    int value = OPERATION == REPLACE ? 0 : widened(TARGET_FORM, ivec4(RELOAD_RAW1(target, TARGET_FORM, place))).x;
    int bits = 0;
    int end = min(i + MOST, count);
    bool goes_on = true;
    for (int j = i; goes_on; j += AHEAD) {
        int given[AHEAD];
        bool is_there[AHEAD];
        [[unroll]] for (int a = 0; a < AHEAD; ++a) {
            int known = min(j + a, count - 1);
            is_there[a] = j + a < end && key_at(line, known) == chosen;
            given[a] = source_at(source_start + WORD(places, line + known) * words[SOURCE_STEP_WORD]);
        }
        [[unroll]] for (int a = 0; a < AHEAD; ++a) {
            if (!is_there[a]) continue;
            bits = narrowed(TARGET_FORM, ivec4(combined(value, given[a]))).x;
            value = widened(TARGET_FORM, ivec4(bits)).x;
        }
        goes_on = is_there[AHEAD - 1];
    }
    PUT1(target, TARGET_FORM, place, bits)
}
#endif

void main() {
    int lines = 1;
    for (int d = 0; d < RANK; ++d) lines *= words[d];
    int rest = invocation_index();
#ifdef ORDERED
    int i = words[SKIPPED_WORD] + divide(rest, lines);
    if (i >= words[COUNT_WORD]) return;
    rest -= divide(rest, lines) * lines;
#else
    if (rest >= lines) return;
#endif
    int offsets[3];
    for (int t = 0; t < 3; ++t) offsets[t] = words[tensor_word(t)];
    for (int d = RANK - 1; d >= 0; --d) {
        int quotient = d > 0 ? divide(rest, words[d]) : 0;
        int place = rest - quotient * words[d];
        for (int t = 0; t < 3; ++t) offsets[t] += place * words[tensor_word(t) + 1 + d];
        rest = quotient;
    }
#ifdef ORDERED
    put_run(offsets[0], offsets[1], offsets[2], i);
#else
    int count = words[COUNT_WORD];
    int length = words[LENGTH_WORD];
    for (int i = 0; i < count; ++i) {
        int chosen = index_at(offsets[2] + i * words[INDEX_STEP_WORD]);
        if (chosen < (NEGATIVE == FROM_END ? -length : 0) || chosen >= length) {
            RAISE_FLAG
            continue;
        }
        if (chosen < 0) chosen += length;
        put(offsets[0] + chosen * words[TARGET_STEP_WORD], source_at(offsets[1] + i * words[SOURCE_STEP_WORD]));
    }
#endif
}
