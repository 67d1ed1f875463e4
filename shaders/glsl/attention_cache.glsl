// What a decoder does before attention, as part of it: queries and the key of the new row are turned by rotary positions, as in rotary.comp, and
// the new key and value come into their caches, in place of the row that `places` says. Caches lie in memory from call to call, so all other
// rows of them can be read before the dispatches have ended that this one waits for. Tensors are nests of three dimensions, which
// begin at the first of four numbers, in vec4s. See CachedRows in runtimes/vulkan/kernels/attention_row_kernel.py.

layout(constant_id = 15) const int QUERY_TURNED = 0;
layout(constant_id = 16) const int KEY_TURNED = 0;
layout(constant_id = 17) const int TURNED = 2; // vec4s of a row that are turned, the first ones, an even number of halves
layout(constant_id = 18) const int WRAPS = 0;  // places count from the end of the caches, too
layout(constant_id = 19) const int PLACE = 0;  // which element of `places`
layout(constant_id = 20) const int NEW_FORMS = 0; // three bits each: of the new key, the new value, cosines and sines
layout(constant_id = 21) const int KEY_START = 0;
layout(constant_id = 22) const int KEY_OUTER = 0;
layout(constant_id = 23) const int KEY_MIDDLE = 0;
layout(constant_id = 24) const int KEY_INNER = 0;
layout(constant_id = 25) const int VALUE_START = 0;
layout(constant_id = 26) const int VALUE_OUTER = 0;
layout(constant_id = 27) const int VALUE_MIDDLE = 0;
layout(constant_id = 28) const int VALUE_INNER = 0;
layout(constant_id = 29) const int COSINES_START = 0;
layout(constant_id = 30) const int COSINES_OUTER = 0;
layout(constant_id = 31) const int COSINES_MIDDLE = 0;
layout(constant_id = 32) const int COSINES_INNER = 0;
layout(constant_id = 33) const int SINES_START = 0;
layout(constant_id = 34) const int SINES_OUTER = 0;
layout(constant_id = 35) const int SINES_MIDDLE = 0;
layout(constant_id = 36) const int SINES_INNER = 0;
layout(constant_id = 37) const int NEIGHBOURS = 0; // whether neighbours are turned, in place of halves

READS(7, new_keys)
READS(8, new_values)
READS(9, cosines)
READS(10, sines)
READS(11, places)
RAISES(12)
WRITES(13, journal) // what the new rows have been written over: keys of all batches, then values

#define NEST(name, batch) (name##_START + batch.x * name##_OUTER + batch.y * name##_MIDDLE + batch.z * name##_INNER)

// What turns a vec4 of queries and of keys.
vec4 cosines_at(int quad, ivec3 batch) { return LOAD_FLOATS4(cosines, NEW_FORMS >> 6 & 7, NEST(COSINES, batch) + quad); }
vec4 sines_at(int quad, ivec3 batch) { return LOAD_FLOATS4(sines, NEW_FORMS >> 9 & 7, NEST(SINES, batch) + quad); }

vec4 turned(vec4 own, vec4 other, int quad, vec4 cosines, vec4 sines) {
    if (NEIGHBOURS != 0) return own * cosines + vec4(-own.y, own.x, -own.w, own.z) * sines;
    return own * cosines + (quad < TURNED / 2 ? -other : other) * sines;
}

// The vec4 of the other half of what is turned, or, of neighbours, itself.
int opposite(int quad) {
    if (NEIGHBOURS != 0) return quad;
    return quad < TURNED / 2 ? quad + TURNED / 2 : quad - TURNED / 2;
}
