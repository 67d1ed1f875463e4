// How kernels reach four neighbouring lanes of tensors of any strides, and how a grid is spread.
#include "elements.glsl"

// The flag of a run, which a kernel raises where it meets operands that it must not be given; see Plan.flag.
#define RAISES(slot) layout(set = 0, binding = slot, std430) writeonly buffer Flag { int flag; };
#define RAISE_FLAG flag = 1;

// How an operand is read: the two low bits of its access say how four neighbouring lanes are, the others are the form of its elements;
// `step` is from one lane to the next, `last` the last lane that exists. See read_access in runtimes/vulkan/kernels/kernel_access.py.
#include "load_mode.glsl"

#define LOAD_LANES4(name, access, first, step, last)                                                                   \
    widened((access) >> 2,                                                                                             \
            ((access) & 3) == VECTOR  ? RAW4(name, (access) >> 2, (first) >> 2)                                        \
            : ((access) & 3) == SPLAT ? ivec4(RAW1(name, (access) >> 2, first))                                        \
                                      : ivec4(RAW1(name, (access) >> 2, first),                                        \
                                              RAW1(name, (access) >> 2, (first) + min(1, last) * (step)),              \
                                              RAW1(name, (access) >> 2, (first) + min(2, last) * (step)),              \
                                              RAW1(name, (access) >> 2, (first) + min(3, last) * (step))))

// How a result is written: the low bit of its access says whether its lanes are whole vec4s, the others are the form of its elements;
// see write_access in kernel_access.py.
#define RELOAD_LANES4(name, access, first, step, last)                                                                 \
    widened((access) >> 1,                                                                                             \
            ((access) & 1) != 0 ? RELOAD_RAW4(name, (access) >> 1, (first) >> 2)                                       \
                                : ivec4(RELOAD_RAW1(name, (access) >> 1, first),                                       \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(1, last) * (step)),             \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(2, last) * (step)),             \
                                        RELOAD_RAW1(name, (access) >> 1, (first) + min(3, last) * (step))))

#define STORE_LANES4(name, access, first, step, last, value)                                                           \
    {                                                                                                                  \
        ivec4 narrow = narrowed((access) >> 1, value);                                                                 \
        if (((access) & 1) != 0) {                                                                                     \
            PUT4(name, (access) >> 1, (first) >> 2, narrow)                                                            \
        } else {                                                                                                       \
            PUT1(name, (access) >> 1, first, narrow.x)                                                                 \
            if ((last) > 0) PUT1(name, (access) >> 1, (first) + (step), narrow.y)                                      \
            if ((last) > 1) PUT1(name, (access) >> 1, (first) + 2 * (step), narrow.z)                                  \
            if ((last) > 2) PUT1(name, (access) >> 1, (first) + 3 * (step), narrow.w)                                  \
        }                                                                                                              \
    }

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
    return int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * LOCAL_SIZE + int(gl_LocalInvocationID.x);
}
