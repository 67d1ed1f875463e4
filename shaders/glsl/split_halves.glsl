// A float, scaled by a power of two, as the sum of two halves.
const uint ONE = 127u; // exponents have the bias of floats

float power_of_two(uint exponent) { return uintBitsToFloat(exponent << 23); }

float largest(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

// The integers keep the driver from taking a number and its half for the same.
vec4 rounded_to_eleven_bits(vec4 x) { return uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & ~0x1fffu); }

struct Halves {
    uvec2 high, low;
};

uvec2 packed_halves(vec4 x) { return uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw)); }

// Of floats that are scaled.
Halves halved(vec4 x) {
    vec4 rounded = rounded_to_eleven_bits(x);
    return Halves(packed_halves(rounded), packed_halves(x - rounded));
}
