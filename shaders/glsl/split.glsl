// Floats as sums of two halves, so that matrix units for halves compute products of floats: high * high + high * low + low * high (H. Ootomo
// and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
// A half has 11 bits, so what is missing is 2^-22 of a product. It has few exponents, too: operands are scaled by powers of two, first by
// such as suit most networks. Which magnitudes were met is asked at the end: where scales didn't suit them, all is computed once more by
// scales that do; beyond EXTREME, and with infinities, by ordinary arithmetic. The shader that includes this says how many OPERANDS there are.
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "split_halves.glsl"

const uint LEAST = ONE - 2u; // of the largest magnitude, scaled: the low halves of smaller ones would lose bits
const uint MOST = ONE + 15u; // and larger ones would be infinite
const uint AIM = ONE + 13u;
const uint EXTREME = 40u;

// The bits of the largest magnitudes. Four words, as matrices in shared memory must lie on whole 16 bytes, wherever they are.
shared uint extremes[4];

float met[OPERANDS];   // those of this invocation; NaN, which may be lost, becomes NaN all the same
uint scales[OPERANDS]; // as exponents
bool is_plain = false;

// Macros, as indices that come through functions put arrays into local memory (NVIDIA).
#define SCALING(operand) power_of_two(scales[operand])
#define UNSCALING(operand) power_of_two(2u * ONE - scales[operand])
#define MEET(operand, x) met[operand] = max(met[operand], largest(abs(x)));

bool is_moderate(uint exponent) { return exponent > ONE - EXTREME && exponent < ONE + EXTREME; }

// Whether all is what it should be, or `is_plain` says that it can't be; else there are other scales for another attempt. All invocations
// together, which have passed a barrier since `extremes` were set to zero.
bool is_settled() {
    [[unroll]] for (int o = 0; o < OPERANDS; ++o) {
        uint most = subgroupMax(floatBitsToUint(met[o]));
        if (subgroupElect()) atomicMax(extremes[o], most);
    }
    barrier();
    bool settled = true;
    [[unroll]] for (int o = 0; o < OPERANDS; ++o) {
        uint exponent = extremes[o] >> 23;
        uint scaled = exponent + scales[o];
        if (extremes[o] != 0u && (scaled < LEAST + ONE || scaled >= MOST + ONE)) {
            if (!is_moderate(exponent)) is_plain = true;
            settled = false;
            scales[o] = AIM + ONE - exponent;
        }
    }
    return settled || is_plain;
}
