// How kernels reach four neighbouring lanes of tensors of any strides, and how a grid is spread.
#include "elements.glsl"
#include "local_index.glsl"

// The flag of a run, which a kernel raises where it meets operands that it must not be given; see Plan.flag.
#define RAISES(slot) layout(set = 0, binding = slot, std430) writeonly buffer Flag { int flag; };
#define RAISE_FLAG flag = 1;

// How an operand is read: the two low bits of its access say how four neighbouring lanes are, the others are the form of its elements;
// `step` is from one lane to the next, `last` the last lane that exists. See read_access in runtimes/vulkan/kernels/kernel_access.py.
#include "load_mode.glsl"

#define LOAD_WORDS4(name, access, first, step, last)                                                                   \
    (((access) & 3) == VECTOR                                                                                          \
         ? LOAD4(name, (access) >> 2, (first) >> 2)                                                                    \
         : widened((access) >> 2, ((access) & 3) == SPLAT                                                              \
                                      ? ivec4(RAW1(name, (access) >> 2, first))                                        \
                                      : ivec4(RAW1(name, (access) >> 2, first),                                        \
                                              RAW1(name, (access) >> 2, (first) + min(1, last) * (step)),              \
                                              RAW1(name, (access) >> 2, (first) + min(2, last) * (step)),              \
                                              RAW1(name, (access) >> 2, (first) + min(3, last) * (step)))))

#define WORDS_AT(name, form, place)                                                                                    \
    widened(form, ivec4(RAW1(name, form, (place).x), RAW1(name, form, (place).y), RAW1(name, form, (place).z), RAW1(name, form, (place).w)))

// How a result is written: the low bit of its access says whether its lanes are whole vec4s, the others are the form of its elements;
// see write_access in kernel_access.py.
#define RELOAD_LANES4(name, access, first, step, last)                                                                 \
    widened((access) >> 1,                                                                                             \
            ((access) & 1) != 0 ? RELOAD_RAW4(name, (access) >> 1, (first) >> 2)                                       \
                                : ivec4(RELOAD_RAW1(name, (access) >> 1, first),                                       \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(1, last) * (step)),             \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(2, last) * (step)),             \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(3, last) * (step))))

#define STORE_WORDS4(name, access, first, step, last, value)                                                           \
    {                                                                                                                  \
        if (((access) & 1) != 0) {                                                                                     \
            STORE4(name, (access) >> 1, (first) >> 2, value)                                                           \
        } else {                                                                                                       \
            ivec4 narrow = narrowed((access) >> 1, value);                                                             \
            PUT1(name, (access) >> 1, first, narrow.x)                                                                 \
            if ((last) > 0) PUT1(name, (access) >> 1, (first) + (step), narrow.y)                                      \
            if ((last) > 1) PUT1(name, (access) >> 1, (first) + 2 * (step), narrow.z)                                  \
            if ((last) > 2) PUT1(name, (access) >> 1, (first) + 3 * (step), narrow.w)                                  \
        }                                                                                                              \
    }

// What registers of four lanes are: 32 bits of each, or with LONG_INTEGERS 64, whatever the form in storage; narrower integers are extended as
// they are read, and wrap around as they are written. LOAD_PLACES4 reads elements of any four places.
#ifdef LONG_INTEGERS
#include "long.glsl"
#define Lanes Long
#define EACH_LONG(name, first, step, last, word)                                                                       \
    ivec4(WORD(name, 2 * (first) + word), WORD(name, 2 * ((first) + min(1, last) * (step)) + word),                    \
          WORD(name, 2 * ((first) + min(2, last) * (step)) + word), WORD(name, 2 * ((first) + min(3, last) * (step)) + word))
#define LOAD_LANES4(name, access, first, step, last)                                                                   \
    ((access) >> 2 != LONGS       ? extended(LOAD_WORDS4(name, access, first, step, last))                             \
     : ((access) & 3) == VECTOR ? neighbours(QUAD(name, (first) >> 1), QUAD(name, ((first) >> 1) + 1))                 \
     : ((access) & 3) == SPLAT  ? Long(ivec4(WORD(name, 2 * (first))), ivec4(WORD(name, 2 * (first) + 1)))             \
                                : Long(EACH_LONG(name, first, step, last, 0), EACH_LONG(name, first, step, last, 1)))
#define LOAD_PLACES4(name, form, place)                                                                                \
    ((form) == LONGS ? Long(WORDS_AT(name, WORDS, 2 * (place)), WORDS_AT(name, WORDS, 2 * (place) + 1)) : extended(WORDS_AT(name, form, place)))
#define PUT_LONG(name, index, value, lane)                                                                             \
    {                                                                                                                  \
        name##_words[2 * (index)] = value.low.lane;                                                                    \
        name##_words[2 * (index) + 1] = value.high.lane;                                                               \
    }
#define STORE_LANES4(name, access, first, step, last, value)                                                           \
    if ((access) >> 1 != LONGS) {                                                                                      \
        STORE_WORDS4(name, access, first, step, last, value.low)                                                       \
    } else if (((access) & 1) != 0) {                                                                                  \
        name##_quads[(first) >> 1] = ivec4(value.low.x, value.high.x, value.low.y, value.high.y);                      \
        name##_quads[((first) >> 1) + 1] = ivec4(value.low.z, value.high.z, value.low.w, value.high.w);                \
    } else {                                                                                                           \
        PUT_LONG(name, first, value, x)                                                                                \
        if ((last) > 0) PUT_LONG(name, (first) + (step), value, y)                                                     \
        if ((last) > 1) PUT_LONG(name, (first) + 2 * (step), value, z)                                                 \
        if ((last) > 2) PUT_LONG(name, (first) + 3 * (step), value, w)                                                 \
    }
#else
#define Lanes ivec4
#define LOAD_LANES4(name, access, first, step, last) LOAD_WORDS4(name, access, first, step, last)
#define LOAD_PLACES4(name, form, place) WORDS_AT(name, form, place)
#define STORE_LANES4(name, access, first, step, last, value) STORE_WORDS4(name, access, first, step, last, value)
#endif

// The quotient of non-negative integers. Drivers without a vector integer division are several times slower with `/`.
int divide(int dividend, int divisor) {
    float reciprocal = 1.0 / float(divisor);
    int quotient = int(float(dividend) * reciprocal);
    quotient += int(float(dividend - quotient * divisor) * reciprocal); // the first guess can be far off beyond 2^24
    int remainder = dividend - quotient * divisor;
    return remainder < 0 ? quotient - 1 : remainder >= divisor ? quotient + 1 : quotient;
}

// Invocations of a workgroup. (gl_WorkGroupSize is not specialized on every driver.)
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int LOCAL_SIZE = 1;

// This invocation's place in a grid whose groups are spread over x and y.
int invocation_index() {
    return int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * LOCAL_SIZE + local_index();
}
