#version 450
// As extremes.comp, of all elements of a run in one dispatch: the last workgroup to arrive combines what all of them found.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "float_bits.glsl"

layout(constant_id = 1) const int GROUPS = 1;
layout(constant_id = 2) const int MODE = 0;
layout(constant_id = 3) const int STORE_MODE = 0;

WRITES(0, least)
WRITES(1, greatest)
READS(2, data)
layout(set = 0, binding = 3, std430) coherent buffer Found { vec2 found[]; }; // of each workgroup

shared vec2 bounds[LOCAL_SIZE];
#define ARRIVALS 4
#define LAST bounds[0].x
#include "arrival.glsl"
#include "extremes_push.glsl"

float infinite = intBitsToFloat(0x7f800000);

vec2 wider(vec2 a, vec2 b) {
    vec4 low = vec4(min(a.x, b.x)), high = vec4(max(a.y, b.y));
    return vec2(or_nan(or_nan(low, vec4(b.x)), vec4(a.x)).x, or_nan(or_nan(high, vec4(b.y)), vec4(a.y)).x);
}

// Of all invocations; the first one has it.
vec2 widest(int me, vec2 own) {
    barrier();
    bounds[me] = own;
    for (int width = LOCAL_SIZE / 2; width > 0; width /= 2) {
        barrier();
        if (me < width) bounds[me] = wider(bounds[me], bounds[me + width]);
    }
    barrier();
    return bounds[0];
}

void main() {
    int me = local_index(), group = int(gl_WorkGroupID.x);
    vec2 nothing = vec2(infinite, -infinite), own = nothing;
    int runs = (count + 3) >> 2;
    for (int run = group * LOCAL_SIZE + me; run < runs; run += GROUPS * LOCAL_SIZE) {
        int last = min(count - 4 * run - 1, 3);
        vec4 value = intBitsToFloat(LOAD_LANES4(data, MODE, start + 4 * run, 1, last));
        for (int lane = 0; lane <= last; ++lane) own = wider(own, vec2(value[lane]));
    }
    own = widest(me, own);
    if (GROUPS > 1) {
        if (me == 0) found[group] = own;
        if (!is_last(0, GROUPS)) return;
        own = nothing;
        for (int other = me; other < GROUPS; other += LOCAL_SIZE) own = wider(own, found[other]);
        own = widest(me, own);
    }
    if (me != 0) return;
    ivec4 low = ivec4(floatBitsToInt(own.x)), high = ivec4(floatBitsToInt(own.y));
    STORE_LANES4(least, STORE_MODE, 0, 1, 0, low)
    STORE_LANES4(greatest, STORE_MODE, 0, 1, 0, high)
}
