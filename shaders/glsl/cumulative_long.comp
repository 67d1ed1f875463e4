#version 450
// Running sums or products along one dimension as integers of 64 bits: an invocation walks it for four neighbours.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 9) const int PRODUCT = 0; // others are those of cumulative.comp

WRITES(0, result)
READS(1, data)
#include "rewriting_push.glsl"

void main() {
    Item item = this_item();
    if (!item.exists) return;
    int start = kept_offset(item, INPUT_WORD);
    int target = kept_offset(item, OUTPUT_WORD);
    Long total = extended(ivec4(PRODUCT));
    for (int s = 0; s < reduced_steps(); ++s) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        Long value = LOAD_STEP(data, start, step, item);
        if (PRODUCT != 0) {
            total = times(total, value);
        } else {
            total = plus(total, value);
        }
        int place = target + reduced_step(s, OUTPUT_REDUCED_WORD).offset;
        STORE_LANES4(result, STORE_MODE, place, words[OUTPUT_WORD + KEPT_RANK], item.last, total)
    }
}
