#version 450
// result = f(operands...) at every place of up to six strided operands, where f is a list of instructions given as specialization
// constants, so that the driver compiles it to straight code. An invocation computes four neighbours along the innermost dimension,
// at ROWS places of the next one.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int RANK = 1;
layout(constant_id = 2) const int OPERANDS = 1;
layout(constant_id = 3) const int IMMEDIATES = 0;
layout(constant_id = 4) const int STEPS = 0;
layout(constant_id = 5) const int STORE_MODE = 1;
layout(constant_id = 6) const int MODE_0 = 0;
layout(constant_id = 7) const int MODE_1 = 0;
layout(constant_id = 8) const int MODE_2 = 0;
layout(constant_id = 9) const int MODE_3 = 0;
layout(constant_id = 10) const int MODE_4 = 0;
layout(constant_id = 11) const int MODE_5 = 0;

layout(constant_id = 12) const int ROWS = 1;
layout(constant_id = 13) const int STEADY = 0; // a bit for each operand that is the same in all rows

// Each instruction: an opcode and the registers it reads.
#define INSTRUCTION(step)                                                                                              \
    layout(constant_id = 14 + 4 * step) const int OPCODE_##step = 0;                                                   \
    layout(constant_id = 15 + 4 * step) const int A_##step = 0;                                                        \
    layout(constant_id = 16 + 4 * step) const int B_##step = 0;                                                        \
    layout(constant_id = 17 + 4 * step) const int C_##step = 0;
INSTRUCTION(0)
INSTRUCTION(1)
#if MAX_STEPS > 2
INSTRUCTION(2)
INSTRUCTION(3)
#endif
#if MAX_STEPS > 4
INSTRUCTION(4)
INSTRUCTION(5)
INSTRUCTION(6)
INSTRUCTION(7)
INSTRUCTION(8)
INSTRUCTION(9)
#endif
#if MAX_STEPS > 10
INSTRUCTION(10)
INSTRUCTION(11)
INSTRUCTION(12)
INSTRUCTION(13)
INSTRUCTION(14)
INSTRUCTION(15)
INSTRUCTION(16)
INSTRUCTION(17)
INSTRUCTION(18)
INSTRUCTION(19)
INSTRUCTION(20)
INSTRUCTION(21)
INSTRUCTION(22)
INSTRUCTION(23)
#endif

WRITES(0, result)
READS(1, operand_0)
READS(2, operand_1)
READS(3, operand_2)
READS(4, operand_3)
READS(5, operand_4)
READS(6, operand_5)
#ifdef CHECKED
RAISES(7)
#endif

#include "pointwise_push.glsl"
#ifdef LONG_INTEGERS // immediates have two words each
#include "pointwise_long.glsl"
#define IMMEDIATE(n) Long(ivec4(words[IMMEDIATES_WORD + 2 * n]), ivec4(words[IMMEDIATES_WORD + 2 * n + 1]))
#else
#include "pointwise_apply.glsl"
#define IMMEDIATE(n) ivec4(words[IMMEDIATES_WORD + n])
#endif

// Registers: operands from 0, immediates from 6, results of instructions from 16.
const int FIRST_IMMEDIATE = 6;
const int FIRST_STEP = 16;

int inner_stride(int tensor) { return words[tensor_word(tensor) + RANK]; }

// The register of an operand; in later rows only if it changes.
#define LOAD_OPERAND(n, name, mode)                                                                                    \
    if (OPERANDS > n && (row == 0 || (STEADY >> n & 1) == 0))                                                          \
        registers[n] = LOAD_LANES4(name, mode, offsets[n + 1], inner_stride(n + 1), last);

// With CHECKED defined, an operand that its instruction refuses raises the flag.
#ifdef CHECKED
#define CHECK(n) if (refuses(OPCODE_##n, registers[A_##n], registers[B_##n], last)) RAISE_FLAG
#else
#define CHECK(n)
#endif

#define STEP(n)                                                                                                        \
    if (STEPS > n) {                                                                                                   \
        CHECK(n)                                                                                                       \
        registers[FIRST_STEP + n] = apply(OPCODE_##n, registers[A_##n], registers[B_##n], registers[C_##n]);           \
    }

void main() {
    int inner = words[RANK - 1];
    int runs = (inner + 3) >> 2;
    int lines = RANK > 1 ? words[RANK - 2] : 1;
    int strips = ROWS > 1 ? (lines + ROWS - 1) / ROWS : lines;
    int items = runs * strips;
    for (int d = 0; d < RANK - 2; ++d) items *= words[d];
    int item = invocation_index();
    if (item >= items) return;

    int offsets[7];
    for (int t = 0; t <= OPERANDS; ++t) offsets[t] = words[tensor_word(t)];
    int lane = item;
    int line = 0;
    if (RANK > 1) {
        int rest = divide(item, runs);
        lane = item - rest * runs;
        for (int d = RANK - 2; d >= 0; --d) {
            int size = d == RANK - 2 ? strips : words[d];
            int quotient = d > 0 ? divide(rest, size) : 0;
            int place = rest - quotient * size;
            if (d == RANK - 2) {
                place *= ROWS;
                line = place;
            }
            for (int t = 0; t <= OPERANDS; ++t) offsets[t] += place * words[tensor_word(t) + 1 + d];
            rest = quotient;
        }
    }
    lane *= 4;
    int last = min(inner - lane - 1, 3);
    for (int t = 0; t <= OPERANDS; ++t) offsets[t] += lane * inner_stride(t);

    Lanes registers[FIRST_STEP + MAX_STEPS];
    for (int n = 0; n < IMMEDIATES; ++n) registers[FIRST_IMMEDIATE + n] = IMMEDIATE(n);
    int end = min(lines - line, ROWS);
    for (int row = 0; row < end; ++row) {
        LOAD_OPERAND(0, operand_0, MODE_0)
        LOAD_OPERAND(1, operand_1, MODE_1)
        LOAD_OPERAND(2, operand_2, MODE_2)
        LOAD_OPERAND(3, operand_3, MODE_3)
        LOAD_OPERAND(4, operand_4, MODE_4)
        LOAD_OPERAND(5, operand_5, MODE_5)
        STEP(0)
        STEP(1)
#if MAX_STEPS > 2
        STEP(2)
        STEP(3)
#endif
#if MAX_STEPS > 4
        STEP(4)
        STEP(5)
        STEP(6)
        STEP(7)
        STEP(8)
        STEP(9)
#endif
#if MAX_STEPS > 10
        STEP(10)
        STEP(11)
        STEP(12)
        STEP(13)
        STEP(14)
        STEP(15)
        STEP(16)
        STEP(17)
        STEP(18)
        STEP(19)
        STEP(20)
        STEP(21)
        STEP(22)
        STEP(23)
#endif
        Lanes value = registers[STEPS > 0 ? FIRST_STEP + STEPS - 1 : OPERANDS > 0 ? 0 : FIRST_IMMEDIATE];
        STORE_LANES4(result, STORE_MODE, offsets[0], inner_stride(0), last, value)
        if (ROWS > 1) {
            for (int t = 0; t <= OPERANDS; ++t) offsets[t] += words[tensor_word(t) + RANK - 1];
        }
    }
}
