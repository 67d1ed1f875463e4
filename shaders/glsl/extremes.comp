#version 450
// The least and the greatest of the reduced floats; NaN, if there is one, is both, as in torch. `lows` and `highs` are the same tensor,
// or what was found of parts of a longer one.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"
#include "float_bits.glsl"

WRITES(0, least)
WRITES(1, greatest)
READS(2, lows)
READS(3, highs)
shared ivec4 partial[LOCAL_SIZE];

vec4 lower(vec4 a, vec4 b) { return or_nan(or_nan(min(a, b), b), a); }
vec4 higher(vec4 a, vec4 b) { return or_nan(or_nan(max(a, b), b), a); }
ivec4 lower_bits(ivec4 a, ivec4 b) { return floatBitsToInt(lower(intBitsToFloat(a), intBitsToFloat(b))); }
ivec4 higher_bits(ivec4 a, ivec4 b) { return floatBitsToInt(higher(intBitsToFloat(a), intBitsToFloat(b))); }

vec4 infinite = intBitsToFloat(ivec4(0x7f800000));

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    vec4 low = infinite, high = -infinite;
    for (int s = item.thread; s < reduced_steps(); s += THREADS) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        vec4 own_low = intBitsToFloat(LOAD_STEP(lows, start, step, item)), own_high = intBitsToFloat(LOAD_STEP(highs, start, step, item));
        if (LANES_REDUCED != 0) {
            bvec4 real = lanes_of(step);
            own_low = mix(infinite, own_low, real);
            own_high = mix(-infinite, own_high, real);
        }
        low = lower(low, own_low);
        high = higher(high, own_high);
    }
    ivec4 low_bits = floatBitsToInt(low), high_bits = floatBitsToInt(high);
    SHARE(partial, low_bits, lower_bits)
    SHARE(partial, high_bits, higher_bits)
    if (LANES_REDUCED != 0) {
        low_bits = lower_bits(low_bits, low_bits.zwxy);
        low_bits = lower_bits(low_bits, low_bits.yxwz);
        high_bits = higher_bits(high_bits, high_bits.zwxy);
        high_bits = higher_bits(high_bits, high_bits.yxwz);
    }
    if (!item.exists || item.thread != 0) return;
    int target = kept_offset(item, OUTPUT_WORD), step = words[OUTPUT_WORD + KEPT_RANK];
    STORE_LANES4(least, STORE_MODE, target, step, item.last, low_bits)
    STORE_LANES4(greatest, STORE_MODE, target, step, item.last, high_bits)
}
