// Weights of few bits in place of floats: blocks of four lines of the inner dimension and four columns, a line after the other, as
// integers of BITS bits, with a scale for each column of 1 << GROUP vec4s of the inner dimension. Offsets and pitches of weights
// count blocks. Fields are those of Scales in runtimes/vulkan/kernels/weight_packing.py.
layout(constant_id = FORMS_ID + 1) const int BITS = 8;
layout(constant_id = FORMS_ID + 2) const int GROUP = 30;
layout(constant_id = FORMS_ID + 3) const int HAS_OFFSETS = 0; // a vec4 that is added follows each vec4 of scales

READS(5, scales)

// Four lines of four columns as they lie in memory.
#define WEIGHT_BLOCK(index) (BITS == 8 ? QUAD(weights, index) : ivec4(PAIR(weights, index), 0, 0))

struct Scale {
    vec4 factor, offset;
};

Scale scale_of(int step, int column) {
    int index = ((step >> GROUP) * columns + column) << HAS_OFFSETS;
    return Scale(LOAD_FLOATS4(scales, WORDS, index), HAS_OFFSETS != 0 ? LOAD_FLOATS4(scales, WORDS, index + 1) : vec4(0.0));
}

// Line `line` of a block: its integers as floats. Bits are put into the low end of 2^23, where they count as integers do, at the places at
// which they lie in their word, and made the integers by one multiplication and sum, which are exact.
vec4 integers_of(ivec4 block, int line) {
    const int ONE = 0x4b000000; // 2^23
    if (BITS == 8) {
        int word = block[line] ^ 0x80808080; // in two's complement 128 less
        ivec4 bits = ivec4(word, word, word >> 16, word >> 16) & ivec4(0xff, 0xff00, 0xff, 0xff00);
        const vec4 SHARE = vec4(1.0, 1.0 / 256.0, 1.0, 1.0 / 256.0);
        return intBitsToFloat(bits | ONE) * SHARE - (8388608.0 * SHARE + 128.0);
    }
    int word = (block[line >> 1] ^ 0x88888888) >> ((line & 1) << 4);
    const vec4 SHARE = vec4(1.0, 1.0 / 16.0, 1.0 / 256.0, 1.0 / 4096.0);
    return intBitsToFloat(ivec4(word) & ivec4(0xf, 0xf0, 0xf00, 0xf000) | ONE) * SHARE - (8388608.0 * SHARE + 8.0);
}

// The same times their scales.
vec4 line_of(ivec4 block, int line, Scale scale) {
    vec4 value = integers_of(block, line) * scale.factor;
    return HAS_OFFSETS != 0 ? value + scale.offset : value;
}
