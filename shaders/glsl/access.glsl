// How kernels read and write tensors: elements are 32 bits wide and are moved as bits, so that one declaration serves
// float32 and int32. READS(slot, name) declares an input as a storage buffer, or, with TEXELS defined, as a uniform texel buffer,
// whose view has one or four components: LOAD4 counts in vec4s, LOAD1 in elements, and a binding is read by one of the two.

#ifdef TEXELS
#define READS(slot, name) layout(set = 0, binding = slot) uniform isamplerBuffer name;
#define LOAD1(name, index) texelFetch(name, index).x
#define LOAD4(name, index) texelFetch(name, index)
#else
#define READS(slot, name)                                                                                              \
    layout(set = 0, binding = slot, std430) readonly buffer name##_Elements { int name##_elements[]; };                \
    layout(set = 0, binding = slot, std430) readonly buffer name##_Vectors { ivec4 name##_vectors[]; };
#define LOAD1(name, index) name##_elements[index]
#define LOAD4(name, index) name##_vectors[index]
#endif

#define WRITES(slot, name)                                                                                             \
    layout(set = 0, binding = slot, std430) writeonly buffer name##_Elements { int name##_elements[]; };               \
    layout(set = 0, binding = slot, std430) writeonly buffer name##_Vectors { ivec4 name##_vectors[]; };
#define STORE1(name, index, value) name##_elements[index] = (value)
#define STORE4(name, index, value) name##_vectors[index] = (value)

// The flag of a run, which a kernel raises where it meets operands that it must not be given; see Plan.flag.
#define RAISES(slot) layout(set = 0, binding = slot, std430) writeonly buffer Flag { int flag; };
#define RAISE_FLAG flag = 1;

// As WRITES, for a kernel that reads back what an earlier dispatch left there.
#define UPDATES(slot, name)                                                                                            \
    layout(set = 0, binding = slot, std430) buffer name##_Elements { int name##_elements[]; };                         \
    layout(set = 0, binding = slot, std430) buffer name##_Vectors { ivec4 name##_vectors[]; };

#define RELOAD_LANES4(name, whole, first, step, last)                                                                  \
    ((whole) ? name##_vectors[(first) >> 2]                                                                            \
             : ivec4(name##_elements[first], name##_elements[(first) + min(1, last) * (step)],                         \
                     name##_elements[(first) + min(2, last) * (step)], name##_elements[(first) + min(3, last) * (step)]))

// How an operand is read for four neighbouring lanes; see LoadMode in runtimes/vulkan/kernels/kernel_access.py.
const int LOAD_VECTOR = 0; // an aligned vec4
const int LOAD_SPLAT = 1;  // one element for all lanes
const int LOAD_LANES = 2;  // an element per lane, `step` apart; `last` is the last lane that exists

#define LOAD_LANES4(name, mode, first, step, last)                                                                     \
    ((mode) == LOAD_VECTOR  ? LOAD4(name, (first) >> 2)                                                                \
     : (mode) == LOAD_SPLAT ? ivec4(LOAD1(name, first))                                                                \
                            : ivec4(LOAD1(name, first), LOAD1(name, (first) + min(1, last) * (step)),                  \
                                    LOAD1(name, (first) + min(2, last) * (step)),                                      \
                                    LOAD1(name, (first) + min(3, last) * (step))))

#define STORE_LANES4(name, whole, first, step, last, value)                                                            \
    if (whole) {                                                                                                       \
        STORE4(name, (first) >> 2, value);                                                                             \
    } else {                                                                                                           \
        STORE1(name, first, (value).x);                                                                                \
        if ((last) > 0) STORE1(name, (first) + (step), (value).y);                                                     \
        if ((last) > 1) STORE1(name, (first) + 2 * (step), (value).z);                                                 \
        if ((last) > 2) STORE1(name, (first) + 3 * (step), (value).w);                                                 \
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
