// What a gate and what passes it become, where vec4s of their columns take turns: before(gate) * passing, in half as many columns; see
// Epilogue.is_gated in runtimes/vulkan/kernels/epilogue.py. An invocation that has one vec4 of a row has its neighbour's from `pool`, where
// the first team has left nothing.

vec4 let_pass(vec4 gate, vec4 passing) { return between(before_residual(gate)) * between(passing); }

// All invocations come here; of two neighbours the first one stores.
#define STORE_GATED                                                                                                      \
    if (SUMS_OF_A_ROW == 1) {                                                                                            \
        if (team == 0)                                                                                                   \
            [[unroll]] for (int i = 0; i < ROWS; ++i) pool[i * INVOCATIONS + me] = sums[i];                              \
        barrier();                                                                                                       \
    }                                                                                                                    \
    if (team == 0 && column < columns && (column & 1) == 0)                                                              \
        [[unroll]] for (int i = 0; i < ROWS; ++i) {                                                                      \
            int row = first_row + i;                                                                                     \
            vec4 passing = SUMS_OF_A_ROW == 1 ? pool[i * INVOCATIONS + me + 1] : sums[(i + 1) * SUMS_OF_A_ROW - 1];      \
            vec4 value = let_pass(sums[i * SUMS_OF_A_ROW], passing);                                                     \
            if (row < rows) store(result_index(batch, row, Pixel(0, 0, 0)) + column / 2, value);                         \
        }
