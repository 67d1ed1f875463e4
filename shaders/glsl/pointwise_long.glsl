// One pointwise instruction on four lanes of 64 bits. Integers are computed as such, all else in the low words; integers of 32 bits and
// less are extended, which what computes them sees to (INT_WRAP).
#include "pointwise_apply.glsl"
#include "long.glsl"

Long truth(bvec4 value) { return extended(ivec4(value)); }

Long apply(int opcode, Long a, Long b, Long c) {
    switch (opcode) {
    case MOVE: return a;
    case SELECT: return chosen(c, b, notEqual(a.low, ivec4(0)));
    case INT_TO_FLOAT: return extended(float_bits(a));
    case FLOAT_TO_LONG: return truncated_long(a.low);
    case INT_WRAP: return extended(a.low << (32 - b.low) >> (32 - b.low));
    case INT_NEG: return negated(a);
    case INT_ABS: return magnitude_of(a);
    case INT_SIGN: return extended(a.high >> 31 | ivec4(notEqual(a.low | a.high, ivec4(0))));
    case INT_NOT: return Long(~a.low, ~a.high);
    case INT_ADD: return plus(a, b);
    case INT_SUB: return minus(a, b);
    case INT_MUL: return times(a, b);
    case INT_DIV_FLOOR: return divide_floor(a, b);
    case INT_DIV_TRUNC: return divide_truncated(a, b);
    case INT_REMAINDER: return remainder_floor(a, b);
    case INT_FMOD: return remainder_truncated(a, b);
    case INT_POW: return integer_power(a, b);
    case INT_MAX: return largest(a, b);
    case INT_MIN: return smallest(a, b);
    case INT_EQ: return truth(equal_longs(a, b));
    case INT_NE: return truth(not(equal_longs(a, b)));
    case INT_LT: return truth(less(a, b));
    case INT_LE: return truth(not(less(b, a)));
    case INT_AND: return Long(a.low & b.low, a.high & b.high);
    case INT_OR: return Long(a.low | b.low, a.high | b.high);
    case INT_XOR: return Long(a.low ^ b.low, a.high ^ b.high);
    case INT_SHIFT_LEFT: return shift_left(a, b);
    case INT_SHIFT_RIGHT: return shift_right(a, b);
    case INT_INDEX: {
        Long place = chosen(a, plus(a, b), is_negative(a));
        return smallest(largest(place, extended(ivec4(0))), minus(b, extended(ivec4(1))));
    }
    }
    return extended(apply(opcode, a.low, b.low, c.low));
}

// As for 32 bits.
bool refuses(int opcode, Long a, Long b, int last) {
    bvec4 refused = bvec4(false);
    switch (opcode) {
    case INT_INDEX: refused = either_of(less(a, negated(b)), not(less(a, b))); break;
    case INT_DIV_FLOOR:
    case INT_DIV_TRUNC:
    case INT_REMAINDER:
    case INT_FMOD: refused = is_zero_long(b); break;
    default: return refuses(opcode, a.low, b.low, last);
    }
    return any(both_of(refused, lessThanEqual(ivec4(0, 1, 2, 3), ivec4(last))));
}
