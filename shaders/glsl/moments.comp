#version 450
// Mean and variance (or what is made of it) of the reduced elements, in two passes: a sum tells about where they lie, then distances
// from there and their squares are summed, and the sum of distances corrects both (T. Chan, G. Golub and R. LeVeque, "Algorithms for
// computing the sample variance", 1983). With PART the item is a part of a longer one: what moments_merge.comp needs is written.
#extension GL_GOOGLE_include_directive : require
#include "moments.glsl"

WRITES(0, mean)
WRITES(1, spread)
#ifdef PART
WRITES(2, shift)
READS(3, data)
#else
READS(2, data)
#endif

#include "moments_push.glsl"

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    int strides = INPUT_WORD + 1 + KEPT_RANK;
    int steps = reduced_steps();
    vec4 own = vec4(0.0);
    STRETCHES(first, steps) {
        vec4 part = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            vec4 value = intBitsToFloat(LOAD_STEP(data, start, step, item));
            part += LANES_REDUCED != 0 ? mix(vec4(0.0), value, lanes_of(step)) : value;
        }
        own += part;
    }
    vec4 center = total_of(own) * number_at(SHARE_WORD);
    vec4 own_distance = vec4(0.0), own_square = vec4(0.0);
    STRETCHES(first, steps) {
        vec4 distance = vec4(0.0), square = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            vec4 off = intBitsToFloat(LOAD_STEP(data, start, step, item)) - center;
            if (LANES_REDUCED != 0) off = mix(vec4(0.0), off, lanes_of(step));
            distance += off;
            square += off * off;
        }
        own_distance += distance;
        own_square += square;
    }
    totals_of(own_distance, own_square);
    vec4 moved = own_distance * number_at(SHARE_WORD);
    vec4 squares = not_negative(own_square - own_distance * moved);
    if (!item.exists || item.thread != 0) return;
#ifdef PART
    STORE_RESULT(mean, item, center)
    STORE_RESULT(spread, item, squares)
    STORE_RESULT(shift, item, moved)
#else
    STORE_RESULT(mean, item, center + moved)
    STORE_RESULT(spread, item, spread_of(squares * number_at(NARROWER_WORD), number_at(ADDED_WORD)))
#endif
}
