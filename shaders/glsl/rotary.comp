#version 450
// What a decoder does between the product that makes queries, keys and values, and attention: up to three jobs, each of which copies rows, or
// turns them, or their first elements, by rotary positions, x * cosines + turned(x) * sines, where `turned` puts the second half, negated,
// before the first, or the second of two neighbours before the other (J. Su et al., "RoFormer", 2021); and puts what came of it into a cache, in place of the row that `places` says: into a copy, or the cache itself, whose row goes to a journal.
// See RotaryJob in runtimes/vulkan/kernels/rotary_kernel.py.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"
#include "rotary_push.glsl"

layout(constant_id = 1) const int QUADS = 2; // vec4s of a row
layout(constant_id = 2) const int KIND_0 = 0; // bits: whether rows are turned; there is a cache; it is written to; places count from its end too
layout(constant_id = 3) const int KIND_1 = 0;
layout(constant_id = 4) const int KIND_2 = 0;
layout(constant_id = 5) const int FORMS_0 = 0; // three bits each: of source, cache and result
layout(constant_id = 6) const int FORMS_1 = 0;
layout(constant_id = 7) const int FORMS_2 = 0;
layout(constant_id = 8) const int COSINES_FORM = 0;
layout(constant_id = 9) const int SINES_FORM = 0;
layout(constant_id = 10) const int TURNED = 2; // vec4s of a row that are turned, the first ones, an even number of halves
layout(constant_id = 11) const int NEIGHBOURS = 0; // whether neighbours are turned

UPDATES(0, result_0)
UPDATES(1, result_1)
UPDATES(2, result_2)
READS(3, source_0)
READS(4, source_1)
READS(5, source_2)
READS(6, cache_0)
READS(7, cache_1)
READS(8, cache_2)
READS(9, cosines)
READS(10, sines)
READS(11, places)
RAISES(12)
WRITES(13, journal) // a vec4 for each invocation

vec4 turned(vec4 own, vec4 other, int batch, int row, int quad) {
    vec4 c = LOAD_FLOATS4(cosines, COSINES_FORM, cosines_place.offset + batch * cosines_place.batch + row * cosines_place.row + quad);
    vec4 s = LOAD_FLOATS4(sines, SINES_FORM, sines_place.offset + batch * sines_place.batch + row * sines_place.row + quad);
    if (NEIGHBOURS != 0) return own * c + vec4(-own.y, own.x, -own.w, own.z) * s;
    return own * c + (quad < TURNED / 2 ? -other : other) * s;
}

#define JOB(n)                                                                                                         \
    {                                                                                                                  \
        bool has_cache = (KIND_##n & 2) != 0, in_place = (KIND_##n & 4) != 0;                                          \
        int lines = in_place ? 1 : rows[n];                                                                            \
        int count = batches * heads[n] * lines * QUADS;                                                                \
        int place = (KIND_##n & 8) != 0 && given < 0 ? given + rows[n] : given;                                        \
        bool is_there = place >= 0 && place < rows[n];                                                                 \
        if (item >= 0 && item < count) {                                                                               \
            int line = item / QUADS, quad = item % QUADS;                                                              \
            int head = divide(line, lines), row = in_place ? place : line - head * lines;                              \
            vec4 value;                                                                                                \
            if (has_cache && item == 0 && !is_there) RAISE_FLAG                                                        \
            if (has_cache && row != place) {                                                                           \
                value = LOAD_FLOATS4(cache_##n, FORMS_##n >> 3 & 7, cache_offset[n] + item);                           \
            } else {                                                                                                   \
                int batch = divide(head, heads[n]);                                                                    \
                int own_row = has_cache ? 0 : row;                                                                     \
                int start = source_offset[n] + batch * source_batch[n] + (head - batch * heads[n]) * source_head[n]    \
                            + own_row * source_row[n];                                                                 \
                value = LOAD_FLOATS4(source_##n, FORMS_##n & 7, start + quad);                                         \
                if ((KIND_##n & 1) != 0 && quad < TURNED) {                                                            \
                    int across = NEIGHBOURS != 0 ? 0 : quad < TURNED / 2 ? TURNED / 2 : -TURNED / 2;                   \
                    int other = start + quad + across;                                                                 \
                    value = turned(value, LOAD_FLOATS4(source_##n, FORMS_##n & 7, other), batch, own_row, quad);       \
                }                                                                                                      \
            }                                                                                                          \
            int index = result_offset[n] + (in_place ? (head * rows[n] + row) * QUADS + quad : item);                  \
            if (in_place && is_there) journal_quads[invocation] = RELOAD4(result_##n, FORMS_##n >> 6 & 7, index);      \
            if (!in_place || is_there) STORE_FLOATS4(result_##n, FORMS_##n >> 6 & 7, index, value)                     \
        }                                                                                                              \
        item -= count;                                                                                                 \
    }

void main() {
    int invocation = invocation_index(), item = invocation;
    int given = ((KIND_0 | KIND_1 | KIND_2) & 2) != 0 ? WORD(places, places_offset) : 0;
    JOB(0)
    JOB(1)
    JOB(2)
}
