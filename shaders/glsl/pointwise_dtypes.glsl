// What torch's dtypes mean by their elements, on 32 bits: integers that wrap, divide and shift, and which
// operands an instruction must not be given.

// As x86 converts: what no int32 can say, NaN included, is the lowest one.
ivec4 truncated(vec4 x) {
    bvec4 fits = lessThan(floatBitsToInt(x) & 0x7fffffff, ivec4(0x4f000000));
    return mix(ivec4(0x80000000), ivec4(mix(vec4(0.0), x, fits)), fits);
}

// Divisors that a processor would trap on are replaced; zero is refused (see below), and the lowest integer by -1 wraps.
ivec4 safe_divisor(ivec4 a, ivec4 b) {
    ivec4 overflows = ivec4(equal(a, ivec4(0x80000000))) & ivec4(equal(b, ivec4(-1)));
    return mix(b, ivec4(1), notEqual(overflows | ivec4(equal(b, ivec4(0))), ivec4(0)));
}

ivec4 divide_truncated(ivec4 a, ivec4 b) { return a / safe_divisor(a, b); }

ivec4 divide_floor(ivec4 a, ivec4 b) {
    ivec4 quotient = divide_truncated(a, b);
    ivec4 remainder = a - quotient * b;
    ivec4 inexact = ivec4(notEqual(remainder, ivec4(0))) & ivec4(notEqual(lessThan(remainder, ivec4(0)), lessThan(b, ivec4(0))));
    return quotient - inexact;
}

// Shifts by more than there are bits, or by less than none, leave nothing but the sign.
ivec4 shift_left(ivec4 a, ivec4 count) {
    return mix(a << (count & 31), ivec4(0), notEqual(count & ~31, ivec4(0)));
}

ivec4 shift_right(ivec4 a, ivec4 count) { return a >> mix(count, ivec4(31), notEqual(count & ~31, ivec4(0))); }

// Whether torch refuses these operands, or an int64 that 32 bits can't hold comes out; lanes after `last` don't exist.
bool refuses(int opcode, ivec4 i, ivec4 j, int last) {
    bvec4 refused = bvec4(false);
    switch (opcode) {
    case FLOAT_TO_SMALL: refused = greaterThanEqual(i & 0x7fffffff, ivec4(0x4b800000)); break; // 2^24
    case INT_INDEX: refused = notEqual(ivec4(lessThan(i, -j)) | ivec4(greaterThanEqual(i, j)), ivec4(0)); break;
    case INT_DIV_FLOOR:
    case INT_DIV_TRUNC:
    case INT_REMAINDER:
    case INT_FMOD: refused = equal(j, ivec4(0)); break;
    }
    return any(notEqual(ivec4(refused) & ivec4(lessThanEqual(ivec4(0, 1, 2, 3), ivec4(last))), ivec4(0)));
}
