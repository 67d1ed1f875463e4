// How product_matrix.comp meets the rows of its block where their product is of normalised rows.
#include "product_rows_met.glsl"

bool is_inside, is_last; // whether what was fetched is of the inner dimension, and its end
vec2 both_met[VALUE_FETCHES]; // sums of what this invocation fetched of a row, and of the squares

void forget_rows() {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) both_met[i] = vec2(0.0);
}

#ifdef SPLIT
void meet(int i, Floats floats) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v) both_met[i] += both_of(floats.own[v]);
}

Floats from_base(Floats floats, float base) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v) floats.own[v] -= base;
    return floats;
}
#else
void meet(int i, RUN run) {
    [[unroll]] for (int w = 0; w < 2 * VECTORS; w += 2) both_met[i] += both_of(vec4(pair_of(run[w]), pair_of(run[w + 1])));
}

RUN from_base(RUN run, float base) {
    [[unroll]] for (int w = 0; w < 2 * VECTORS; ++w) run[w] = rounded_pair(pair_of(run[w]) - base);
    return run;
}
#endif

// Where values were fetched, at the time when they are kept: any earlier would be to wait for them.
void move_to_base(int i) {
    if (!is_inside || row_places[i].x == OUTSIDE) return;
    fetched_values[i] = from_base(fetched_values[i], base_of((me + i * INVOCATIONS) / INNER_RUNS));
#ifdef NARROW
    if (INNER_TAIL != 0 && is_last) fetched_values[i] = head_of(fetched_values[i], INNER_TAIL);
#endif
}

// After all that was fetched has been read from `pool`.
void find_statistics() {
    [[unroll]] for (int i = 0; i < VALUE_FETCHES; ++i) {
        int slot = me + i * INVOCATIONS;
        if (slot < VALUE_SLOTS) pool[slot % INNER_RUNS * BLOCK_ROWS + slot / INNER_RUNS].xy = floatBitsToUint(both_met[i]);
    }
    barrier();
    for (int row = me; row < BLOCK_ROWS; row += INVOCATIONS) {
        vec2 both = vec2(0.0);
        for (int run = 0; run < INNER_RUNS; ++run) both += uintBitsToFloat(pool[run * BLOCK_ROWS + row].xy);
        know_row(row, both);
    }
    barrier();
}
