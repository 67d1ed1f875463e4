#version 450
// Running sums or products along one dimension: an invocation walks it for four neighbours.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 7) const int INTEGER = 0;
layout(constant_id = 8) const int PRODUCT = 0;

WRITES(0, result)
READS(1, data)
const int OUTPUT_REDUCED_WORD = OUTPUT_WORD + 1 + KEPT_RANK;

void main() {
    Item item = this_item();
    if (!item.exists) return;
    int start = kept_offset(item, INPUT_WORD);
    int target = kept_offset(item, OUTPUT_WORD);
    ivec4 total = PRODUCT == 0 ? ivec4(0) : INTEGER != 0 ? ivec4(1) : floatBitsToInt(vec4(1.0));
    for (int s = 0; s < reduced_steps(); ++s) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        ivec4 value = LOAD_STEP(data, start, step, item);
        if (INTEGER != 0)
            total = PRODUCT != 0 ? total * value : total + value;
        else
            total = floatBitsToInt(PRODUCT != 0 ? intBitsToFloat(total) * intBitsToFloat(value)
                                                : intBitsToFloat(total) + intBitsToFloat(value));
        int place = target + reduced_step(s, OUTPUT_REDUCED_WORD).offset;
        STORE_LANES4(result, STORE_VECTOR != 0, place, words[OUTPUT_WORD + KEPT_RANK], item.last, total)
    }
}
