// Attention of a workgroup's queries by ordinary arithmetic, where halves can't tell: the same steps, a tile of keys after another, each
// score by one invocation. Scores and weights lie in `pool`.
const int QUADS = WIDTH / 4;
const int OWN_QUADS = (TILE_ROWS * QUADS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const int PLAIN_KEYS = KEYS < LOOP_RUNS * 4 / TILE_ROWS ? KEYS : LOOP_RUNS * 4 / TILE_ROWS; // of a tile

float plain_score(int query_place, int key_place) {
    float sum = 0.0;
    for (int quad = 0; quad < HEAD / 4; ++quad)
        sum += dot(LOAD_FLOATS4(queries, QUERY_FORM, query_place + quad), LOAD_FLOATS4(keys, KEY_FORM, key_place + quad));
    return sum;
}

#define PLACE(row, k) pool[((row) * PLAIN_KEYS + (k)) / 4][((row) * PLAIN_KEYS + (k)) % 4]

// What becomes of the scores of a row: weights, and by what they scale what was summed before.
void weigh_plainly(int row) {
    float top = stats[row].x, sum = 0.0;
    for (int k = 0; k < PLAIN_KEYS; ++k) top = max(top, uintBitsToFloat(PLACE(row, k)));
    float scale = exp2((stats[row].x - top) * EXPONENT);
    for (int k = 0; k < PLAIN_KEYS; ++k) {
        float weight = exp2((uintBitsToFloat(PLACE(row, k)) - top) * EXPONENT);
        PLACE(row, k) = floatBitsToUint(weight);
        sum += weight;
    }
    stats[row] = vec2(top, scale);
    halves_of_rows[row].x = halves_of_rows[row].x * scale + sum;
}

void attend_plainly(ivec3 batch, int first_row, int end) {
    int query_start = start_of(query, batch), key_start = start_of(key, batch), value_start = start_of(value, batch);
    int bias_start = start_of(bias, batch), place_start = start_of(place, batch);
    vec4 own[OWN_QUADS];
    for (int i = 0; i < OWN_QUADS; ++i) own[i] = vec4(0.0);
    for (int row = me; row < TILE_ROWS; row += LOCAL_SIZE) {
        stats[row] = vec2(LOWEST, 1.0);
        halves_of_rows[row] = vec2(0.0);
    }
    for (int first = 0; first < end; first += PLAIN_KEYS) {
        barrier();
        for (int slot = me; slot < TILE_ROWS * PLAIN_KEYS; slot += LOCAL_SIZE) {
            int row = slot / PLAIN_KEYS, k = slot % PLAIN_KEYS;
            int query_place = query_start + min(first_row + row, query_count - 1) * query.row;
            float score = plain_score(query_place, key_start + min(first + k, end - 1) * key.row);
            PLACE(row, k) = floatBitsToUint(masked(score, first_row + row, first + k, end, bias_start));
        }
        barrier();
        for (int row = me; row < TILE_ROWS; row += LOCAL_SIZE) weigh_plainly(row);
        barrier();
        for (int i = 0; i < OWN_QUADS; ++i) {
            int slot = me + i * LOCAL_SIZE, row = slot / QUADS, quad = slot % QUADS;
            if (row >= TILE_ROWS) continue;
            own[i] *= stats[row].y;
            for (int k = 0; k < min(PLAIN_KEYS, end - first); ++k)
                own[i] += uintBitsToFloat(PLACE(row, k)) * LOAD_FLOATS4(values, VALUE_FORM, value_start + (first + k) * value.row + quad);
        }
    }
    for (int i = 0; i < OWN_QUADS; ++i) {
        int slot = me + i * LOCAL_SIZE, row = slot / QUADS, quad = slot % QUADS;
        if (row >= TILE_ROWS || first_row + row >= query_count) continue;
        float whole = halves_of_rows[row].x;
        vec4 x = own[i] * (whole == 0.0 ? 0.0 : 1.0 / whole); // where no key counts, torch gives zeros
        STORE_FLOATS4(result, RESULT_FORM, place_start + (first_row + row) * place.row + quad, x)
    }
}
