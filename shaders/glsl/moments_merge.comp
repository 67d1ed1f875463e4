#version 450
// Mean and variance (or what is made of it) from those of parts (T. Chan, G. Golub and R. LeVeque, "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979). The mean of a part comes as a center and a shift, as their sum, rounded, would be
// too coarse where elements lie far from zero. All parts have the same number of elements but for the last.
#extension GL_GOOGLE_include_directive : require
#include "moments.glsl"

WRITES(0, mean)
WRITES(1, spread)
READS(2, centers)
READS(3, squares)
READS(4, shifts)

#include "moments_merge_push.glsl"

vec4 choice(ivec4 part, int last, int word, int last_word) {
    return mix(vec4(number_at(word)), vec4(number_at(last_word)), equal(part, ivec4(last)));
}

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    int strides = INPUT_WORD + 1 + KEPT_RANK;
    int steps = reduced_steps();
    int last = inner_reduced() - 1; // the parts are the only reduced dimension
    ivec4 lanes = LANES_REDUCED != 0 ? ivec4(0, 1, 2, 3) : ivec4(0);
    vec4 own = vec4(0.0);
    STRETCHES(first, steps) {
        vec4 sum = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            vec4 value = intBitsToFloat(LOAD_STEP(centers, start, step, item)) * choice(step.index + lanes, last, PART_SHARE_WORD, LAST_SHARE_WORD);
            sum += LANES_REDUCED != 0 ? mix(vec4(0.0), value, lanes_of(step)) : value;
        }
        own += sum;
    }
    vec4 center = total_of(own);
    vec4 own_distance = vec4(0.0), own_square = vec4(0.0);
    STRETCHES(first, steps) {
        vec4 distance = vec4(0.0), square = vec4(0.0);
        STEPS_OF(s, first, steps) {
            Step step = reduced_step(s, strides);
            ivec4 part = step.index + lanes;
            vec4 off = intBitsToFloat(LOAD_STEP(centers, start, step, item)) - center;
            off += intBitsToFloat(LOAD_STEP(shifts, start, step, item));
            vec4 within = intBitsToFloat(LOAD_STEP(squares, start, step, item));
            vec4 off_square = within + choice(part, last, PART_COUNT_WORD, LAST_COUNT_WORD) * off * off;
            off *= choice(part, last, PART_SHARE_WORD, LAST_SHARE_WORD);
            distance += LANES_REDUCED != 0 ? mix(vec4(0.0), off, lanes_of(step)) : off;
            square += LANES_REDUCED != 0 ? mix(vec4(0.0), off_square, lanes_of(step)) : off_square;
        }
        own_distance += distance;
        own_square += square;
    }
    totals_of(own_distance, own_square);
    vec4 all = not_negative(own_square - number_at(COUNT_WORD) * own_distance * own_distance);
    if (!item.exists || item.thread != 0) return;
    STORE_RESULT(mean, item, center + own_distance)
    STORE_RESULT(spread, item, spread_of(all * number_at(NARROWER_WORD), number_at(ADDED_WORD)))
}
