// What becomes of the sums of a workgroup of a kernel with matrix units.
Sums sums[HIGH * WIDE];

vec4 biased_sum(vec4 sum, Spot spot) {
#ifdef SPLIT
    sum = whole_sum(sum, spot);
#endif
#ifdef NORMALIZED
    sum = normalized_sum(sum, mean_of(spot.row - block_row), scale_of(spot.row - block_row), spot.column);
#endif
    return HAS_BIAS != 0 ? sum + BIAS(spot.column) : sum;
}

vec4 biased_sum(int slot, Spot spot) {
    int line = slot / COLUMNS;
    return biased_sum(sum_at(line / M * SUMS + line % M * SUM_PITCH + slot % COLUMNS * FLOATS), spot);
}

// Of a sum that the bias is part of.
void store_sum(Spot spot, vec4 sum, vec4 residual) {
    if (PARTS > 1)
        store(((batch * PARTS + part) * rows + spot.row) * columns + spot.column, sum);
    else
        store(result_index(batch, spot.row, spot.pixel) + spot.column, finished(sum, residual));
}

// All invocations together, after all of them have read what is in `pool`.
void store_all() {
    // A row of fragments at a time, each subgroup's in a place of its own. Residuals are loaded before the subgroups wait for each other, and
    // before anything is stored: a load that follows a store can't be moved before it, and would wait for the memory by itself.
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec4 finals[STORES];
        [[unroll]] for (int s = 0; s < STORES; ++s) {
            finals[s] = vec4(0.0);
            Spot spot = spot_of(i, me + s * INVOCATIONS);
            if (HAS_RESIDUAL != 0 && spot.exists) finals[s] = residual_at(residual_index(batch, spot.row, spot.pixel) + spot.column);
        }
        if (i > 0) barrier();
        [[unroll]] for (int j = 0; j < WIDE; ++j)
            store_sums(sums[i * WIDE + j], subgroup() * SUMS + j * N * FLOATS / 4, SUM_PITCH);
        barrier();
        if (HAS_RESIDUAL != 0) {
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                Spot spot = spot_of(i, me + s * INVOCATIONS);
                if (spot.exists) finals[s] = finished(biased_sum(me + s * INVOCATIONS, spot), finals[s]);
            }
            [[unroll]] for (int s = 0; s < STORES; ++s) {
                Spot spot = spot_of(i, me + s * INVOCATIONS);
                if (spot.exists) store(result_index(batch, spot.row, spot.pixel) + spot.column, finals[s]);
            }
        } else {
            for (int slot = me; slot < SLOTS; slot += INVOCATIONS) {
                Spot spot = spot_of(i, slot);
                if (spot.exists) store_sum(spot, biased_sum(slot, spot), vec4(0.0));
            }
        }
    }
}
