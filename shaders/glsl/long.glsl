// Integers of 64 bits, four at once, as two words each: no device feature is needed. Everything wraps around, as in torch.
#ifndef LONG_GLSL
#define LONG_GLSL

struct Long {
    ivec4 low;
    ivec4 high;
};

Long extended(ivec4 value) { return Long(value, value >> 31); }

// Four that lie side by side, two in each quad.
Long neighbours(ivec4 first, ivec4 second) { return Long(ivec4(first.xz, second.xz), ivec4(first.yw, second.yw)); }

bvec4 both_of(bvec4 a, bvec4 b) { return notEqual(ivec4(a) & ivec4(b), ivec4(0)); }
bvec4 either_of(bvec4 a, bvec4 b) { return notEqual(ivec4(a) | ivec4(b), ivec4(0)); }

Long chosen(Long no, Long yes, bvec4 condition) { return Long(mix(no.low, yes.low, condition), mix(no.high, yes.high, condition)); }

bvec4 equal_longs(Long a, Long b) { return equal((a.low ^ b.low) | (a.high ^ b.high), ivec4(0)); }
bvec4 is_zero_long(Long a) { return equal(a.low | a.high, ivec4(0)); }
bvec4 is_negative(Long a) { return lessThan(a.high, ivec4(0)); }
bvec4 less_unsigned(Long a, Long b) {
    bvec4 lows = lessThan(uvec4(a.low), uvec4(b.low)), highs = lessThan(uvec4(a.high), uvec4(b.high));
    return either_of(highs, both_of(equal(a.high, b.high), lows));
}
bvec4 less(Long a, Long b) { return less_unsigned(Long(a.low, a.high ^ 0x80000000), Long(b.low, b.high ^ 0x80000000)); }

Long plus(Long a, Long b) {
    uvec4 carry;
    ivec4 low = ivec4(uaddCarry(uvec4(a.low), uvec4(b.low), carry));
    return Long(low, a.high + b.high + ivec4(carry));
}

Long negated(Long a) { return plus(Long(~a.low, ~a.high), Long(ivec4(1), ivec4(0))); }
Long minus(Long a, Long b) { return plus(a, negated(b)); }
Long magnitude_of(Long a) { return chosen(a, negated(a), is_negative(a)); }

Long times(Long a, Long b) {
    uvec4 high, low;
    umulExtended(uvec4(a.low), uvec4(b.low), high, low);
    return Long(ivec4(low), ivec4(high) + a.low * b.high + a.high * b.low);
}

// Shifts by 0 to 63.
Long shifted_left(Long a, ivec4 count) {
    ivec4 part = count & 31;
    ivec4 carried = ivec4((uvec4(a.low) >> 1u) >> uvec4(31 - part));
    Long near = Long(a.low << part, a.high << part | carried);
    return chosen(near, Long(ivec4(0), a.low << part), greaterThan(count, ivec4(31)));
}

Long shifted_right(Long a, ivec4 count) {
    ivec4 part = count & 31;
    ivec4 carried = (a.high << 1) << (31 - part);
    Long near = Long(ivec4(uvec4(a.low) >> uvec4(part)) | carried, a.high >> part);
    return chosen(near, extended(a.high >> part), greaterThan(count, ivec4(31)));
}

// Shifts by more than there are bits, or by less than none, leave nothing but the sign.
bvec4 is_beyond(Long count) { return notEqual((count.low & ~63) | count.high, ivec4(0)); }
Long shift_left(Long a, Long count) { return chosen(shifted_left(a, count.low & 63), extended(ivec4(0)), is_beyond(count)); }
Long shift_right(Long a, Long count) { return shifted_right(a, mix(count.low & 63, ivec4(63), is_beyond(count))); }

// An unsigned number, to a few units in the last place of a float.
vec4 rough(Long a) { return vec4(uvec4(a.high)) * 4294967296.0 + vec4(uvec4(a.low)); }

// The quotient of unsigned numbers below or at 2^63; divisors are not zero. Each turn finds 21 bits more by a division of floats, rounded
// to the nearest, so that what is left, which may be negative, is at most half of the divisor after the last.
Long divide_unsigned(Long dividend, Long divisor) {
    vec4 scale = rough(divisor);
    Long quotient = extended(ivec4(0)), rest = dividend;
    bvec4 below = bvec4(false);
    for (int turn = 0; turn < 4; ++turn) {
        vec4 part = floor(rough(chosen(rest, negated(rest), below)) / scale + 0.5);
        uvec4 high = uvec4(part * 2.3283064365386963e-10);
        Long step = Long(ivec4(uvec4(part - vec4(high) * 4294967296.0)), ivec4(high));
        step = chosen(step, negated(step), below);
        quotient = plus(quotient, step);
        rest = minus(rest, times(step, divisor));
        below = is_negative(rest);
    }
    return plus(quotient, extended(-ivec4(below)));
}

// Division by zero is refused (see refuses()), and is one by one here; the lowest integer by -1 wraps.
Long divide_truncated(Long a, Long b) {
    Long divisor = chosen(magnitude_of(b), Long(ivec4(1), ivec4(0)), is_zero_long(b));
    Long quotient = divide_unsigned(magnitude_of(a), divisor);
    return chosen(quotient, negated(quotient), lessThan(a.high ^ b.high, ivec4(0)));
}

Long remainder_truncated(Long a, Long b) { return minus(a, times(divide_truncated(a, b), b)); }

// Whether a division that truncates is one above that which rounds down.
bvec4 is_rounded_up(Long rest, Long divisor) {
    return both_of(not(is_zero_long(rest)), lessThan(rest.high ^ divisor.high, ivec4(0)));
}

Long divide_floor(Long a, Long b) {
    Long quotient = divide_truncated(a, b);
    return plus(quotient, extended(-ivec4(is_rounded_up(minus(a, times(quotient, b)), b))));
}

Long remainder_floor(Long a, Long b) {
    Long rest = remainder_truncated(a, b);
    return chosen(rest, plus(rest, b), is_rounded_up(rest, b));
}

Long integer_power(Long base, Long exponent) {
    Long one = extended(ivec4(1)), result = one, square = base, bits = exponent;
    for (int bit = 0; bit < 63; ++bit) {
        result = chosen(result, times(result, square), equal(bits.low & 1, ivec4(1)));
        square = times(square, square);
        bits = shifted_right(bits, ivec4(1));
    }
    Long sign = chosen(one, extended(ivec4(-1)), equal(exponent.low & 1, ivec4(1)));
    Long reciprocal = chosen(extended(ivec4(0)), sign, equal_longs(base, extended(ivec4(-1))));
    reciprocal = chosen(reciprocal, one, equal_longs(base, one));
    return chosen(result, reciprocal, is_negative(exponent));
}

Long largest(Long a, Long b) { return chosen(a, b, less(a, b)); }
Long smallest(Long a, Long b) { return chosen(a, b, less(b, a)); }

// The nearest floats, ties to even.
ivec4 float_bits(Long a) {
    Long whole = magnitude_of(a);
    bvec4 has_high = notEqual(whole.high, ivec4(0));
    ivec4 zeros = mix(63 - findMSB(uvec4(whole.low)), 31 - findMSB(uvec4(whole.high)), has_high);
    whole = shifted_left(whole, zeros & 63);
    ivec4 mantissa = ivec4(uvec4(whole.high) >> 8u);
    ivec4 below = whole.high & 0x7f | ivec4(notEqual(whole.low, ivec4(0)));
    ivec4 up = (whole.high >> 7) & 1 & (ivec4(notEqual(below, ivec4(0))) | mantissa);
    ivec4 bits = (((63 - zeros + 126) << 23) + mantissa + up) | (a.high & 0x80000000);
    return mix(bits, ivec4(0), is_zero_long(a));
}

// Floats without their fractions. As x86 converts: what no int64 can say, NaN included, is the lowest one.
Long truncated_long(ivec4 bits) {
    ivec4 exponent = ((bits >> 23) & 0xff) - 127;
    ivec4 mantissa = (bits & 0x7fffff) | 0x800000;
    Long large = shifted_left(extended(mantissa), clamp(exponent - 23, 0, 63));
    Long whole = chosen(extended(mantissa >> clamp(23 - exponent, 0, 31)), large, greaterThan(exponent, ivec4(23)));
    whole = chosen(whole, negated(whole), lessThan(bits, ivec4(0)));
    return chosen(whole, Long(ivec4(0), ivec4(0x80000000)), greaterThan(exponent, ivec4(62)));
}
#endif
