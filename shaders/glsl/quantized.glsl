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

// Line `line` of a block, as floats.
vec4 line_of(ivec4 block, int line, Scale scale) {
    int word = BITS == 8 ? block[line] : block[line >> 1] >> ((line & 1) << 4);
    ivec4 integers = BITS == 8 ? ivec4(word << 24, word << 16, word << 8, word) >> 24
                               : ivec4(word << 28, word << 24, word << 20, word << 16) >> 28;
    vec4 value = vec4(integers) * scale.factor;
    return HAS_OFFSETS != 0 ? value + scale.offset : value;
}
