// How shaders read and write the elements of storages. A storage is words of 32 bits; elements narrower than that lie side by side in
// them, and are taken apart and put together by arithmetic on bits, so that no device feature is needed and one shader serves every
// type: the type is a specialization constant. In registers an element is 32 bits, of a float32 or an int32.
// READS(slot, name) declares an input as a storage buffer, or, with TEXELS defined, as a storage texel buffer, whose texels are 1, 2 or
// 4 words; a binding is read by one of WORD, PAIR and QUAD.
#ifndef ELEMENTS_GLSL
#define ELEMENTS_GLSL

#include "element_form.glsl"

// What the variants that wait for other dispatches by a counter have besides; see chain.glsl.
#ifndef CHAINED
#define EXCHANGED
#define CHAIN_FIELDS
int after_wait = 0;
void wait_for_operands() {}
#endif

#ifdef TEXELS
#define READS(slot, name)                                                                                              \
    layout(set = 0, binding = slot, r32i) restrict readonly uniform iimageBuffer name##_words;                         \
    layout(set = 0, binding = slot, rg32i) restrict readonly uniform iimageBuffer name##_pairs;                        \
    layout(set = 0, binding = slot, rgba32i) restrict readonly uniform iimageBuffer name##_quads;
#define WORD(name, index) imageLoad(name##_words, index).x
#define PAIR(name, index) imageLoad(name##_pairs, index).xy
#define QUAD(name, index) imageLoad(name##_quads, index)
#else
#define READS(slot, name)                                                                                              \
    layout(set = 0, binding = slot, std430) EXCHANGED readonly buffer name##_Words { int name##_words[]; };            \
    layout(set = 0, binding = slot, std430) EXCHANGED readonly buffer name##_Pairs { ivec2 name##_pairs[]; };          \
    layout(set = 0, binding = slot, std430) EXCHANGED readonly buffer name##_Quads { ivec4 name##_quads[]; };
#define WORD(name, index) name##_words[(index) + after_wait]
#define PAIR(name, index) name##_pairs[(index) + after_wait]
#define QUAD(name, index) name##_quads[(index) + after_wait]
#endif

#define WRITES(slot, name)                                                                                             \
    layout(set = 0, binding = slot, std430) EXCHANGED writeonly buffer name##_Words { int name##_words[]; };           \
    layout(set = 0, binding = slot, std430) EXCHANGED writeonly buffer name##_Pairs { ivec2 name##_pairs[]; };         \
    layout(set = 0, binding = slot, std430) EXCHANGED writeonly buffer name##_Quads { ivec4 name##_quads[]; };         \
    layout(set = 0, binding = slot, std430) EXCHANGED buffer name##_Shared { int name##_shared[]; };

// As WRITES, for a kernel that reads back what an earlier dispatch left there.
#define UPDATES(slot, name)                                                                                            \
    layout(set = 0, binding = slot, std430) EXCHANGED buffer name##_Words { int name##_words[]; };                     \
    layout(set = 0, binding = slot, std430) EXCHANGED buffer name##_Pairs { ivec2 name##_pairs[]; };                   \
    layout(set = 0, binding = slot, std430) EXCHANGED buffer name##_Quads { ivec4 name##_quads[]; };                   \
    layout(set = 0, binding = slot, std430) EXCHANGED buffer name##_Shared { int name##_shared[]; };

// The logarithm of how many elements lie in a word, and the place of one within its word, in bits.
int word_shift(int form) { return form == WORDS ? 0 : form <= SHORTS ? 1 : 2; }
int bit_of(int form, int index) { return (index & ((1 << word_shift(form)) - 1)) << (5 - word_shift(form)); }

// Four elements that lie side by side, in the low bits of each lane; what is above them may be anything.
ivec4 split(ivec2 words) { return ivec4(words.x, words.x >> 16, words.y, words.y >> 16); }
ivec4 split(int word) { return ivec4(word, word >> 8, word >> 16, word >> 24); }

// Halves as float32. Done on bits, as drivers may flush subnormal halves: 2^-14 plus their fraction is a float whose distance from
// 2^-14 is exact.
ivec4 widened_halves(ivec4 bits) {
    ivec4 magnitude = (bits & 0x7fff) << 13;
    ivec4 normal = magnitude + 0x38000000;
    ivec4 subnormal = floatBitsToInt(intBitsToFloat(magnitude + 0x38800000) - 6.103515625e-05);
    ivec4 result = mix(normal, subnormal, lessThan(magnitude, ivec4(0x00800000)));
    result = mix(result, magnitude | 0x7f800000, greaterThanEqual(magnitude, ivec4(0x0f800000)));
    return result | (bits & 0x8000) << 16;
}

// The nearest halves, ties to even; NaN stays NaN.
ivec4 narrowed_to_halves(ivec4 bits) {
    ivec4 magnitude = bits & 0x7fffffff;
    ivec4 normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    normal = mix(normal, ivec4(0x7c00), greaterThanEqual(magnitude, ivec4(0x477ff000))); // from 65520 on it is infinite
    ivec4 subnormal = ivec4(roundEven(intBitsToFloat(min(magnitude, 0x38800000)) * 16777216.0));
    ivec4 result = mix(normal, subnormal, lessThan(magnitude, ivec4(0x38800000)));
    result = mix(result, (magnitude >> 13 & 0x3ff) | 0x7e00, greaterThan(magnitude, ivec4(0x7f800000)));
    return result | (bits >> 16 & 0x8000);
}

// The nearest bfloat16s as float32, ties to even.
ivec4 rounded_to_bfloats(ivec4 bits) {
    ivec4 magnitude = bits & 0x7fffffff;
    ivec4 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff;
    return mix(rounded, bits | 0x00400000, greaterThan(magnitude, ivec4(0x7f800000)));
}

// Halves as float32 by the device's own instructions, which may flush subnormal halves.
ivec4 converted_halves(ivec4 bits) {
    uvec4 words = uvec4(bits);
    return floatBitsToInt(vec4(unpackHalf2x16(words.x).x, unpackHalf2x16(words.y).x, unpackHalf2x16(words.z).x, unpackHalf2x16(words.w).x));
}

vec4 converted_halves(ivec2 words) { return vec4(unpackHalf2x16(uint(words.x)), unpackHalf2x16(uint(words.y))); }

// Four floats as two words, rounded as copies round that stand for float32. With ROUNDS_HALVES the shader is for devices with a type of
// halves, whose conversions are known to round to nearest, ties to even: one instruction of a pair for some sixteen. Which way others
// round is the device's affair, so normal numbers are rounded before.
#ifdef ROUNDS_HALVES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
uvec2 rounded_halves(vec4 value) { return uvec2(packFloat2x16(f16vec2(value.xy)), packFloat2x16(f16vec2(value.zw))); }
#else
uvec2 rounded_halves(vec4 value) {
    ivec4 bits = floatBitsToInt(value);
    ivec4 magnitude = min(bits & 0x7fffffff, ivec4(0x7fc00000)); // of NaN one without low bits, to which adding would carry
    magnitude = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
    value = intBitsToFloat(magnitude | (bits & 0x80000000));
    return uvec2(packHalf2x16(value.xy), packHalf2x16(value.zw));
}
#endif

// The same, one in the low bits of each lane.
ivec4 converted_to_halves(ivec4 bits) { return split(ivec2(rounded_halves(intBitsToFloat(bits)))) & 0xffff; }

// Elements as registers hold them.
ivec4 widened(int form, ivec4 bits) {
    switch (form) {
    case HALVES: return widened_halves(bits);
    case ROUNDED: return converted_halves(bits);
    case BFLOATS: return bits << 16;
    case SHORTS: return bits << 16 >> 16;
    case BYTES: return bits << 24 >> 24;
    case OCTETS: return bits & 0xff;
    }
    return bits;
}

// What is stored for registers: floats are rounded, integers wrap around. Only the low bits are set.
ivec4 narrowed(int form, ivec4 value) {
    switch (form) {
    case HALVES: return narrowed_to_halves(value);
    case ROUNDED: return converted_to_halves(value);
    case BFLOATS: return rounded_to_bfloats(value) >> 16 & 0xffff;
    case SHORTS: return value & 0xffff;
    case BYTES:
    case OCTETS: return value & 0xff;
    }
    return value;
}

// Elements `4 * quad` to `4 * quad + 3`, and element `index`, before they are widened.
#define RAW4(name, form, quad)                                                                                         \
    ((form) == WORDS ? QUAD(name, quad) : (form) <= SHORTS ? split(PAIR(name, quad)) : split(WORD(name, quad)))
#define RAW1(name, form, index) (WORD(name, (index) >> word_shift(form)) >> bit_of(form, index))
#define LOAD4(name, form, quad)                                                                                        \
    ((form) == ROUNDED ? floatBitsToInt(converted_halves(PAIR(name, quad))) : widened(form, RAW4(name, form, quad)))
#define LOAD1(name, form, index) widened(form, ivec4(RAW1(name, form, index))).x
#define LOAD_FLOATS4(name, form, quad) intBitsToFloat(LOAD4(name, form, quad))

// The same of a storage that the kernel writes too.
#define RELOAD_RAW4(name, form, quad)                                                                                  \
    ((form) == WORDS ? name##_quads[quad] : (form) <= SHORTS ? split(name##_pairs[quad]) : split(name##_words[quad]))
#define RELOAD4(name, form, quad) widened(form, RELOAD_RAW4(name, form, quad))
#define RELOAD_RAW1(name, form, index) (name##_words[(index) >> word_shift(form)] >> bit_of(form, index))

// Stores of what narrowed() gave. Four elements are whole words. A single one shares its word with others that other invocations may
// store at the same time, so it is put there by operations that leave the other bits alone.
#define PUT4(name, form, quad, bits)                                                                                   \
    if ((form) == WORDS) {                                                                                             \
        name##_quads[quad] = bits;                                                                                     \
    } else if ((form) <= SHORTS) {                                                                                     \
        name##_pairs[quad] = (bits).xz | (bits).yw << 16;                                                              \
    } else {                                                                                                           \
        name##_words[quad] = (bits).x | (bits).y << 8 | (bits).z << 16 | (bits).w << 24;                               \
    }
#define PUT1(name, form, index, bits)                                                                                  \
    if ((form) == WORDS) {                                                                                             \
        name##_words[index] = bits;                                                                                    \
    } else {                                                                                                           \
        atomicAnd(name##_shared[(index) >> word_shift(form)], ~((form) <= SHORTS ? 0xffff << bit_of(form, index) : 0xff << bit_of(form, index))); \
        atomicOr(name##_shared[(index) >> word_shift(form)], (bits) << bit_of(form, index));                           \
    }
// Stores of what registers hold.
#define STORE4(name, form, quad, bits)                                                                                 \
    if ((form) == ROUNDED) {                                                                                           \
        name##_pairs[quad] = ivec2(rounded_halves(intBitsToFloat(bits)));                                              \
    } else {                                                                                                           \
        ivec4 narrow = narrowed(form, bits);                                                                           \
        PUT4(name, form, quad, narrow)                                                                                 \
    }
#define STORE_FLOATS4(name, form, quad, value) STORE4(name, form, quad, floatBitsToInt(value))
#endif
