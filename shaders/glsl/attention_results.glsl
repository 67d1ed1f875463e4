// What becomes of the sums of attention_matrix.comp: vec4s, RESULTS of each row of fragments in an invocation.
void store_result(int start, int i, int n, vec4 x) {
    int row = own_row + row_of_result(i, n), quad = quad_of_result(n);
    if (row < query_count && (4 * quad < WIDTH)) STORE_FLOATS4(result, RESULT_FORM, start + row * place.row + quad, x)
}

float scale_of(float whole) {
    float scale = whole == 0.0 ? 0.0 : 1.0 / whole; // where no key counts, torch gives zeros
#ifdef SPLIT
    scale *= UNSCALING(VALUE);
#endif
    return scale;
}

void store_own(int start) {
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec2 whole = sum_of_lines(total[i]);
        float upper = scale_of(whole.x), lower = scale_of(whole.y);
        [[unroll]] for (int n = 0; n < RESULTS; ++n) store_result(start, i, n, RESULT(i, n) * (IS_LOWER(n) ? lower : upper));
    }
}

// Of all teams together; `slot` says where in `pool`.
vec4 joined(int row, int slot) {
    int members = subgroup() / TEAMS * TEAMS;
    float most = LOWEST;
    [[unroll]] for (int t = 0; t < TEAMS; ++t) most = max(most, stats[(members + t) * OWN_ROWS + row].x);
    float whole = 0.0;
    vec4 sum = vec4(0.0);
    [[unroll]] for (int t = 0; t < TEAMS; ++t) {
        vec2 stat = stats[(members + t) * OWN_ROWS + row];
        float scaling = exp2((stat.x - most) * EXPONENT);
        whole += stat.y * scaling;
        sum += uintBitsToFloat(pool[((members + t) * SHARED + slot) * LANES_USED + lane()]) * scaling;
    }
    return sum * scale_of(whole);
}

void store_together(int start) {
    [[unroll]] for (int i = 0; i < HIGH; ++i) {
        vec2 whole = sum_of_lines(total[i]);
        int at = subgroup() * OWN_ROWS + i * M + line_of_lane();
        if (run_of_lane() == 0) {
            stats[at] = vec2(top[i].x, whole.x);
            stats[at + 8] = vec2(top[i].y, whole.y);
        }
    }
    [[unroll]] for (int i = 0; i < HIGH; ++i)
        [[unroll]] for (int part = 0; part < RESULTS; part += SHARED) {
            int count = min(SHARED, RESULTS - part);
            if (i + part > 0) barrier(); // what came before was read
            [[unroll]] for (int n = 0; n < count; ++n)
                pool[(subgroup() * SHARED + n) * LANES_USED + lane()] = floatBitsToUint(RESULT(i, n + part));
            barrier();
            for (int n = team; n < count; n += TEAMS) store_result(start, i, n + part, joined(row_of_result(i, n + part), n));
        }
}
