#version 450
// Sum, product, largest or smallest of the reduced elements, each element changed before and the result after.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"
#include "power.glsl"

layout(constant_id = 8) const int INTEGER = 0;
layout(constant_id = 9) const int COMBINATION = 0;
layout(constant_id = 10) const int BEFORE = 0;
layout(constant_id = 11) const int AFTER = 0;

#include "combination.glsl"
#include "before.glsl"
#include "after.glsl"

WRITES(0, result)
READS(1, data)
shared ivec4 partial[LOCAL_SIZE];

#include "reduce_push.glsl"

ivec4 combined(ivec4 i, ivec4 j) {
    vec4 a = intBitsToFloat(i), b = intBitsToFloat(j);
    if (INTEGER != 0)
        return COMBINATION == ADD ? i + j : COMBINATION == MULTIPLY ? i * j : COMBINATION == LARGEST ? max(i, j) : min(i, j);
    return floatBitsToInt(COMBINATION == ADD        ? a + b
                          : COMBINATION == MULTIPLY ? a * b
                          : COMBINATION == LARGEST  ? or_nan(or_nan(max(a, b), b), a)
                                                    : or_nan(or_nan(min(a, b), b), a));
}

ivec4 neutral() {
    if (INTEGER != 0) return ivec4(COMBINATION == ADD ? 0 : COMBINATION == MULTIPLY ? 1 : COMBINATION == LARGEST ? 0x80000000 : 0x7fffffff);
    return ivec4(COMBINATION == ADD ? 0 : COMBINATION == MULTIPLY ? floatBitsToInt(1.0) : COMBINATION == LARGEST ? 0xff800000 : 0x7f800000);
}

ivec4 before(ivec4 bits) {
    vec4 x = intBitsToFloat(bits);
    if (BEFORE == ABSOLUTE) return floatBitsToInt(abs(x));
    if (BEFORE == SQUARED) return floatBitsToInt(x * x);
    if (BEFORE == RAISED) return floatBitsToInt(power(abs(x), vec4(number_at(EXPONENT_WORD))));
    return bits;
}

ivec4 after(ivec4 bits) {
    vec4 x = intBitsToFloat(bits);
    if (AFTER == SCALED) return floatBitsToInt(x * number_at(SCALE_WORD));
    if (AFTER == ROOT) return floatBitsToInt(sqrt(x));
    if (AFTER == POWER) return floatBitsToInt(power(x, vec4(number_at(SCALE_WORD))));
    return bits;
}

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    ivec4 total = neutral();
    int steps = reduced_steps();
    STRETCHES(first, steps) {
        ivec4 part = neutral();
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
            ivec4 value = before(LOAD_STEP(data, start, step, item));
            if (LANES_REDUCED != 0) value = mix(neutral(), value, lanes_of(step));
            part = combined(part, value);
        }
        total = combined(total, part);
    }
    SHARE(partial, total, combined)
    if (LANES_REDUCED != 0) {
        total = combined(total, total.zwxy);
        total = combined(total, total.yxwz);
    }
    total = after(total);
    if (!item.exists || item.thread != 0) return;
    int target = kept_offset(item, OUTPUT_WORD);
    STORE_LANES4(result, STORE_MODE, target, words[OUTPUT_WORD + KEPT_RANK], item.last, total)
}
