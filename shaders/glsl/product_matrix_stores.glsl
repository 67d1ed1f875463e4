// What becomes of the sums of a workgroup of a kernel with matrix units.
Sums sums[HIGH * WIDE];

// What the end needs of a column. A load that follows a store can't be moved before it, and would wait for the memory by itself, so it is
// read before anything is stored; early, if that takes few registers.
struct ColumnEnd {
    vec4 bias;
#ifdef NORMALIZED
    vec4 column_sum;
#endif
};

ColumnEnd column_end(bool exists, int column) {
    ColumnEnd end;
    end.bias = HAS_BIAS != 0 && exists ? BIAS(column) : vec4(0.0);
#ifdef NORMALIZED
    end.column_sum = exists ? column_sum_at(column) : vec4(0.0);
#endif
    return end;
}

vec4 biased_sum(vec4 sum, Spot spot, ColumnEnd end) {
#ifdef SPLIT
    sum = whole_sum(sum, spot);
#endif
#ifdef NORMALIZED
    sum = normalized_sum(sum, mean_of(spot.row - block_row), scale_of(spot.row - block_row), end.column_sum);
#endif
    return HAS_BIAS != 0 ? sum + end.bias : sum;
}

vec4 biased_sum(int slot, Spot spot, ColumnEnd end) {
    int line = slot / COLUMNS;
    return biased_sum(sum_at(line / M * SUMS + line % M * SUM_PITCH + slot % COLUMNS * FLOATS), spot, end);
}

int residual_place(Spot spot) { return residual_index(batch, spot.row, spot.pixel) + spot.column; }

// Of a sum that the bias is part of.
vec4 ended(vec4 sum, vec4 residual) { return PARTS > 1 ? sum : finished(sum, residual); }

void store_ended(Spot spot, vec4 value) {
    int place = PARTS > 1 ? ((batch * PARTS + part) * rows + spot.row) * columns : result_index(batch, spot.row, spot.pixel);
    store(place + spot.column, value);
}

// Slots of an invocation lie in the same columns of all rows of fragments.
const int HOLDS_COLUMNS = STORES <= 4 ? 1 : 0;
const int HOLDS_RESIDUALS = HIGH * STORES <= 4 ? 1 : 0;
ColumnEnd held_columns[STORES];
ivec4 held_residuals[HIGH * STORES];

ivec4 residual_of_slot(int fragments, int s) {
    Spot spot = spot_of(fragments, me + s * INVOCATIONS);
    return HAS_RESIDUAL != 0 && spot.exists ? residual_bits(residual_place(spot)) : ivec4(0);
}

void read_ends() {
    if (HOLDS_COLUMNS != 0) {
        [[unroll]] for (int s = 0; s < STORES; ++s) {
            Spot spot = spot_of(0, me + s * INVOCATIONS);
            held_columns[s] = column_end(spot.exists, spot.column);
        }
    }
    if (HOLDS_RESIDUALS != 0) {
        [[unroll]] for (int i = 0; i < HIGH; ++i)
            [[unroll]] for (int s = 0; s < STORES; ++s) held_residuals[i * STORES + s] = residual_of_slot(i, s);
    }
}

// Floats that are split leave no registers for it before all is multiplied.
#ifdef SPLIT
#define READ_ENDS_EARLY
#define READ_ENDS_LATE read_ends();
#else
#define READ_ENDS_EARLY read_ends();
#define READ_ENDS_LATE
#endif

// All invocations together, after all of them have read what is in `pool`.
void store_all() {
    // A row of fragments at a time, each subgroup's in a place of its own.
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        ivec4 residuals[STORES];
        [[unroll]] for (int s = 0; s < STORES; ++s)
            residuals[s] = HOLDS_RESIDUALS != 0 ? held_residuals[i * STORES + s] : residual_of_slot(i, s);
        if (i > 0) barrier();
        [[unroll]] for (int j = 0; j < WIDE; ++j)
            store_sums(sums[i * WIDE + j], subgroup() * SUMS + j * N * FLOATS / 4, SUM_PITCH);
        barrier();
        if (HAS_RESIDUAL != 0 || HOLDS_COLUMNS != 0) {
            vec4 finals[STORES];
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                int slot = me + s * INVOCATIONS;
                Spot spot = spot_of(i, slot);
                finals[s] = vec4(0.0);
                if (!spot.exists) continue;
                ColumnEnd end = held_columns[s];
                if (HOLDS_COLUMNS == 0) end = column_end(true, spot.column);
                finals[s] = ended(biased_sum(slot, spot, end), residual_of(residuals[s]));
            }
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                Spot spot = spot_of(i, me + s * INVOCATIONS);
                if (spot.exists) store_ended(spot, finals[s]);
            }
        } else {
            for (int slot = me; slot < SLOTS; slot += INVOCATIONS) {
                Spot spot = spot_of(i, slot);
                if (spot.exists) store_ended(spot, ended(biased_sum(slot, spot, column_end(true, spot.column)), vec4(0.0)));
            }
        }
    }
}
