// The numbers that matrix units multiply, two in a word: halves, or, with BFLOAT, such of bfloat16. The host calls both halves.
#ifndef UNIT_HALVES_GLSL
#define UNIT_HALVES_GLSL
#ifdef BFLOAT
vec2 pair_of(uint word) { return uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u)); }
vec4 four_of(uvec2 words) { return vec4(pair_of(words.x), pair_of(words.y)); }

// Four floats as two words, rounded as copies round that stand for float32.
uvec2 rounded_four(vec4 value) {
    uvec4 bits = uvec4(rounded_to_bfloats(floatBitsToInt(value)));
    return bits.xz >> 16 | bits.yw & 0xffff0000u;
}

uint rounded_pair(vec2 value) { return rounded_four(value.xyxy).x; }
#else
vec2 pair_of(uint word) { return unpackHalf2x16(word); }
vec4 four_of(uvec2 words) { return converted_halves(ivec2(words)); }
uvec2 rounded_four(vec4 value) { return rounded_halves(value); }
uint rounded_pair(vec2 value) { return packHalf2x16(value); } // which way is the device's affair
#endif

#ifdef EMULATED
#define UNIT_HALF(x) (x)
#define UNIT_PAIR(word) pair_of(word)
#elif defined(BFLOAT)
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#define UNIT_HALF bfloat16_t
#define UNIT_PAIR(word) uintBitsToBFloat16EXT(unpack16(word))
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define UNIT_HALF float16_t
#define UNIT_PAIR(word) unpackFloat2x16(word)
#endif
#endif
