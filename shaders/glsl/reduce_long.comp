#version 450
// Sum, product, largest or smallest of the reduced elements as integers of 64 bits.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 9) const int COMBINATION = 0; // others are those of reduce.comp

#include "combination.glsl"

WRITES(0, result)
READS(1, data)
shared Long partial[LOCAL_SIZE];

Long combined(Long a, Long b) {
    return COMBINATION == ADD ? plus(a, b) : COMBINATION == MULTIPLY ? times(a, b) : COMBINATION == LARGEST ? largest(a, b) : smallest(a, b);
}

Long neutral() {
    if (COMBINATION == LARGEST) return Long(ivec4(0), ivec4(0x80000000));
    if (COMBINATION == SMALLEST) return Long(ivec4(-1), ivec4(0x7fffffff));
    return extended(ivec4(COMBINATION == ADD ? 0 : 1));
}

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    Long total = neutral();
    int steps = reduced_steps();
    for (int s = item.thread; s < steps; s += THREADS) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        Long value = LOAD_STEP(data, start, step, item);
        if (LANES_REDUCED != 0) value = chosen(neutral(), value, lanes_of(step));
        total = combined(total, value);
    }
    SHARE(partial, total, combined)
    if (LANES_REDUCED != 0) {
        total = combined(total, Long(total.low.zwxy, total.high.zwxy));
        total = combined(total, Long(total.low.yxwz, total.high.yxwz));
    }
    if (!item.exists || item.thread != 0) return;
    int target = kept_offset(item, OUTPUT_WORD);
    STORE_LANES4(result, STORE_MODE, target, words[OUTPUT_WORD + KEPT_RANK], item.last, total)
}
