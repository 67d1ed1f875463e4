#version 450
// Running sums or products along one dimension: an invocation walks it for four neighbours. What rounding takes from a sum is added
// with the next element (W. Kahan, "Further remarks on reducing truncation errors", 1965).
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 8) const int INTEGER = 0;
layout(constant_id = 9) const int PRODUCT = 0;

WRITES(0, result)
READS(1, data)
#include "rewriting_push.glsl"

void main() {
    Item item = this_item();
    if (!item.exists) return;
    int start = kept_offset(item, INPUT_WORD);
    int target = kept_offset(item, OUTPUT_WORD);
    precise vec4 lost = vec4(0.0);
    ivec4 total = PRODUCT == 0 ? ivec4(0) : INTEGER != 0 ? ivec4(1) : floatBitsToInt(vec4(1.0));
    for (int s = 0; s < reduced_steps(); ++s) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        ivec4 value = LOAD_STEP(data, start, step, item);
        if (INTEGER != 0) {
            total = PRODUCT != 0 ? total * value : total + value;
        } else if (PRODUCT != 0) {
            total = floatBitsToInt(intBitsToFloat(total) * intBitsToFloat(value));
        } else {
            precise vec4 before = intBitsToFloat(total);
            precise vec4 added = intBitsToFloat(value) - lost;
            precise vec4 after = before + added;
            lost = (after - before) - added;
            lost = mix(vec4(0.0), lost, lessThan(floatBitsToInt(lost) & 0x7fffffff, ivec4(0x7f800000))); // it may be infinite
            total = floatBitsToInt(after);
        }
        int place = target + reduced_step(s, OUTPUT_REDUCED_WORD).offset;
        STORE_LANES4(result, STORE_MODE, place, words[OUTPUT_WORD + KEPT_RANK], item.last, total)
    }
}
