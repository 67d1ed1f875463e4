// What becomes of the sums of attention_matrix.comp. By the order of values in fragments (attention_fragments.glsl) an invocation has of each of
// its rows 16 neighbours of each group of 64: four vec4s. Of a row of fragments, vec4s 0 to 3 of a group are of row line_of_lane(), 4 to 7 of the
// one eight below.
#define RESULT_PAIR(i, c, e) ELEMENT(sums[(i) * WIDE + (c)], e), ELEMENT(sums[(i) * WIDE + (c)], (e) + 2)
#define RESULT(i, g, n)                                                                                                          \
    vec4(RESULT_PAIR(i, 4 * (g) + (n) % 2 * 2, (n) / 4 * 4 + (n) / 2 % 2), RESULT_PAIR(i, 4 * (g) + (n) % 2 * 2 + 1, (n) / 4 * 4 + (n) / 2 % 2))

int row_of_result(int i, int n) { return i * M + line_of_lane() + n / 4 * 8; }

void store_result(int start, int i, int g, int n, vec4 x) {
    int row = own_row + row_of_result(i, n), quad = 16 * g + 4 * run_of_lane() + n % 4;
    if (row < query_count && (WIDTH % 64 == 0 || quad < WIDTH / 4)) STORE_FLOATS4(result, RESULT_FORM, start + row * place.row + quad, x)
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
        [[unroll]] for (int g = 0; g < GROUPS; ++g)
            [[unroll]] for (int n = 0; n < 8; ++n) store_result(start, i, g, n, RESULT(i, g, n) * (n < 4 ? upper : lower));
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
        [[unroll]] for (int g = 0; g < GROUPS; ++g)
            [[unroll]] for (int part = 0; part < 8; part += SHARED) {
                if (i + g + part > 0) barrier(); // what came before was read
                [[unroll]] for (int n = 0; n < SHARED; ++n)
                    pool[(subgroup() * SHARED + n) * LANES_USED + lane()] = floatBitsToUint(RESULT(i, g, n + part));
                barrier();
                for (int n = team; n < SHARED; n += TEAMS) store_result(start, i, g, n + part, joined(row_of_result(i, n + part), n));
            }
}
