// What the kernels for mean and variance share.
#extension GL_GOOGLE_include_directive : require
#include "reduction.glsl"

layout(constant_id = 8) const int SPREAD = 0;
#include "spread.glsl"

shared ivec4 partial[LOCAL_SIZE];
shared ivec4 partial_squares[LOCAL_SIZE];

ivec4 sum(ivec4 a, ivec4 b) { return floatBitsToInt(intBitsToFloat(a) + intBitsToFloat(b)); }

vec4 sum_of_lanes(vec4 value) {
    if (LANES_REDUCED == 0) return value;
    value += value.zwxy;
    return value + value.yxwz;
}

// The sum over all threads of an item and, with LANES_REDUCED, over lanes.
vec4 total_of(vec4 value) {
    ivec4 own = floatBitsToInt(value);
    SHARE(partial, own, sum)
    return sum_of_lanes(intBitsToFloat(own));
}

// The same for two values at once, which takes no more barriers.
void totals_of(inout vec4 a, inout vec4 b) {
    if (THREADS > 1) {
        int local = int(gl_LocalInvocationID.x);
        int apart = LANES_REDUCED != 0 ? 1 : LOCAL_SIZE / THREADS;
        int thread = LANES_REDUCED != 0 ? local % THREADS : local / apart;
        barrier();
        partial[local] = floatBitsToInt(a);
        partial_squares[local] = floatBitsToInt(b);
        for (int width = THREADS / 2; width > 0; width /= 2) {
            barrier();
            if (thread < width) {
                partial[local] = sum(partial[local], partial[local + width * apart]);
                partial_squares[local] = sum(partial_squares[local], partial_squares[local + width * apart]);
            }
        }
        barrier();
        a = intBitsToFloat(partial[local - thread * apart]);
        b = intBitsToFloat(partial_squares[local - thread * apart]);
    }
    a = sum_of_lanes(a);
    b = sum_of_lanes(b);
}

// Without what rounding leaves below zero; NaN stays.
vec4 not_negative(vec4 x) { return mix(x, vec4(0.0), lessThan(x, vec4(0.0))); }

vec4 spread_of(vec4 variance, float eps) {
    if (SPREAD == DEVIATION) return sqrt(variance);
    if (SPREAD == RECIPROCAL_DEVIATION) return 1.0 / sqrt(variance + eps);
    return variance;
}

#define STORE_RESULT(name, item, value)                                                                                \
    {                                                                                                                  \
        ivec4 stored = floatBitsToInt(value);                                                                          \
        int target = kept_offset(item, OUTPUT_WORD);                                                                   \
        STORE_LANES4(name, STORE_MODE, target, words[OUTPUT_WORD + KEPT_RANK], (item).last, stored)             \
    }
