#version 450
// result[i, j, ...] = data[..., indices[i, j, ...], ...]: an index, itself a tensor, chooses the place along one dimension of the data.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "negative.glsl"

layout(constant_id = 1) const int RANK = 1;
layout(constant_id = 2) const int MODE = 0;
layout(constant_id = 3) const int INDEX_MODE = 0;
layout(constant_id = 4) const int STORE_MODE = 0;
layout(constant_id = 5) const int NEGATIVE = 0; // what is refused raises the flag, as what is too large does

WRITES(0, result)
READS(1, data)
READS(2, indices)
#ifdef CHECKED
RAISES(3)
#endif

#include "select_along_push.glsl"

void main() {
    int inner = words[RANK - 1];
    int runs = (inner + 3) >> 2;
    int items = runs;
    for (int d = 0; d < RANK - 1; ++d) items *= words[d];
    int rest = invocation_index();
    if (rest >= items) return;
    int offsets[3];
    for (int t = 0; t < 3; ++t) offsets[t] = words[tensor_word(t)];
    int last = 3;
    for (int d = RANK - 1; d >= 0; --d) {
        int size = d == RANK - 1 ? runs : words[d];
        int quotient = d > 0 ? divide(rest, size) : 0;
        int place = rest - quotient * size;
        if (d == RANK - 1) {
            place *= 4;
            last = min(inner - place - 1, 3);
        }
        for (int t = 0; t < 3; ++t) offsets[t] += place * words[tensor_word(t) + 1 + d];
        rest = quotient;
    }
    int length = words[LENGTH_WORD];
    int stride = words[STRIDE_WORD];
    int step = words[tensor_word(1) + RANK];
#ifdef LONG_INTEGERS // what 32 bits can't hold is out of range
    Long given = LOAD_LANES4(indices, INDEX_MODE, offsets[2], words[tensor_word(2) + RANK], last);
    ivec4 chosen = mix(given.low, ivec4(0x7fffffff), notEqual(given.high, given.low >> 31));
#else
    ivec4 chosen = LOAD_LANES4(indices, INDEX_MODE, offsets[2], words[tensor_word(2) + RANK], last);
#endif
#ifdef CHECKED
    ivec4 outside = ivec4(lessThan(chosen, ivec4(NEGATIVE == FROM_END ? -length : 0))) | ivec4(greaterThanEqual(chosen, ivec4(length)));
    if (any(notEqual(outside & ivec4(lessThanEqual(ivec4(0, 1, 2, 3), ivec4(last))), ivec4(0)))) RAISE_FLAG
#endif
    chosen += length * ivec4(lessThan(chosen, ivec4(0)));
    chosen = clamp(chosen, 0, length - 1);
    Lanes value;
    if ((INDEX_MODE & 3) == SPLAT) {
        value = LOAD_LANES4(data, MODE, offsets[1] + chosen.x * stride, step, last);
    } else {
        ivec4 place = offsets[1] + chosen * stride + min(ivec4(0, 1, 2, 3), last) * step;
        value = LOAD_PLACES4(data, MODE >> 2, place);
    }
    STORE_LANES4(result, STORE_MODE, offsets[0], words[tensor_word(0) + RANK], last, value)
}
