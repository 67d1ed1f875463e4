#version 450
// The largest (or smallest) of the reduced elements and its index, the first one if several are equal. NaN beats all, as in torch.
// With MERGES the elements are those that parts of a longer item found, and come with their indices within the parts.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 8) const int INTEGER = 0;
layout(constant_id = 9) const int SMALLEST = 0;

WRITES(0, indices)
WRITES(1, values)
READS(2, data)
#ifdef MERGES
#include "index_merge_push.glsl"
READS(3, places)
#endif
shared ivec4 partial_keys[LOCAL_SIZE];
shared ivec4 partial_indices[LOCAL_SIZE];

// Integers in the order of the elements: a larger key wins.
ivec4 key(ivec4 bits) {
    if (INTEGER == 0) {
        ivec4 magnitude = bits & 0x7fffffff;
        bvec4 negative = lessThan(bits, ivec4(0));
        bvec4 nan = greaterThan(magnitude, ivec4(0x7f800000));
        bits = mix(magnitude, -magnitude, negative);
        if (SMALLEST != 0) bits = -bits;
        return mix(bits, ivec4(0x7fffffff), nan);
    }
    return SMALLEST != 0 ? ~bits : bits;
}

ivec4 value_of(ivec4 key) {
    if (INTEGER == 0) {
        if (SMALLEST != 0) key = mix(-key, key, equal(key, ivec4(0x7fffffff)));
        return mix(key, ivec4(0x80000000) | -key, lessThan(key, ivec4(0)));
    }
    return SMALLEST != 0 ? ~key : key;
}

void take(inout ivec4 best, inout ivec4 where, ivec4 other, ivec4 other_where) {
    bvec4 larger = greaterThan(other, best);
    bvec4 earlier = equal(mix(ivec4(0), ivec4(1), equal(other, best)) & ivec4(lessThan(other_where, where)), ivec4(1));
    where = mix(mix(where, other_where, earlier), other_where, larger);
    best = max(best, other);
}

void main() {
    Item item = this_item();
    int start = kept_offset(item, INPUT_WORD);
    ivec4 best = ivec4(0x80000000);
    ivec4 where = ivec4(0x7fffffff);
    for (int s = item.thread; s < reduced_steps(); s += THREADS) {
        Step step = reduced_step(s, INPUT_WORD + 1 + KEPT_RANK);
        ivec4 candidate = key(LOAD_STEP(data, start, step, item));
        ivec4 index = ivec4(step.index) + (LANES_REDUCED != 0 ? ivec4(0, 1, 2, 3) : ivec4(0));
#ifdef MERGES
        index = index * words[PART_LENGTH_WORD] + LOAD_STEP(places, start, step, item); // elements from part to part
#endif
        if (LANES_REDUCED != 0) {
            bvec4 real = lanes_of(step);
            candidate = mix(ivec4(0x80000000), candidate, real);
            index = mix(ivec4(0x7fffffff), index, real);
        }
        take(best, where, candidate, index);
    }
    if (THREADS > 1) {
        int local = int(gl_LocalInvocationID.x);
        int apart = LANES_REDUCED != 0 ? 1 : LOCAL_SIZE / THREADS;
        partial_keys[local] = best;
        partial_indices[local] = where;
        for (int width = THREADS / 2; width > 0; width /= 2) {
            barrier();
            if (item.thread < width) {
                take(best, where, partial_keys[local + width * apart], partial_indices[local + width * apart]);
                partial_keys[local] = best;
                partial_indices[local] = where;
            }
        }
    }
    if (LANES_REDUCED != 0) {
        take(best, where, best.zwxy, where.zwxy);
        take(best, where, best.yxwz, where.yxwz);
    }
    if (!item.exists || item.thread != 0) return;
    int step = words[OUTPUT_WORD + KEPT_RANK];
    int target = kept_offset(item, OUTPUT_WORD);
    ivec4 value = value_of(best);
    STORE_LANES4(indices, STORE_MODE & 1, target, step, item.last, where)
    STORE_LANES4(values, STORE_MODE, target, step, item.last, value)
}
