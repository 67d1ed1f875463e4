// Attention of a workgroup's queries by ordinary arithmetic, where halves can't tell: the same steps, a tile of keys after another. An invocation
// computes a vec4 of the result, and of each tile the score of its row and one key.
const int QUADS = WIDTH / 4; // of a row, and keys of a tile
const int PLAIN_ROWS = LOCAL_SIZE / QUADS;
shared float plain_scores[LOCAL_SIZE + QUADS];

float plain_score(int query_place, int key_place) {
    float sum = 0.0;
    for (int quad = 0; quad < HEAD / 4; ++quad)
        sum += dot(LOAD_FLOATS4(queries, QUERY_FORM, query_place + quad), LOAD_FLOATS4(keys, KEY_FORM, key_place + quad));
    return sum;
}

void attend_plainly(ivec3 batch, int first_row, int end) {
    int query_start = start_of(query, batch), key_start = start_of(key, batch), value_start = start_of(value, batch);
    int bias_start = start_of(bias, batch), place_start = start_of(place, batch);
    int quad = me % QUADS, end_row = min(first_row + TILE_ROWS, query_count);
    for (int base = first_row; base < end_row; base += PLAIN_ROWS) {
        int row = base + me / QUADS;
        int query_place = query_start + min(row, query_count - 1) * query.row;
        float top = LOWEST, whole = 0.0;
        vec4 own = vec4(0.0);
        for (int first = 0; first < end; first += QUADS) {
            barrier();
            float score = plain_score(query_place, key_start + min(first + quad, end - 1) * key.row);
            plain_scores[me] = masked(score, row, first + quad, end, bias_start);
            barrier();
            float most = top;
            for (int k = 0; k < QUADS; ++k) most = max(most, plain_scores[me - quad + k]);
            float scaling = exp2((top - most) * EXPONENT);
            top = most;
            whole *= scaling;
            own *= scaling;
            for (int k = 0; k < min(QUADS, end - first); ++k) {
                float weight = exp2((plain_scores[me - quad + k] - most) * EXPONENT);
                whole += weight;
                own += weight * LOAD_FLOATS4(values, VALUE_FORM, value_start + (first + k) * value.row + quad);
            }
        }
        if (me < PLAIN_ROWS * QUADS && row < end_row) {
            vec4 x = own * (whole == 0.0 ? 0.0 : 1.0 / whole); // where no key counts, torch gives zeros
            STORE_FLOATS4(result, RESULT_FORM, place_start + row * place.row + quad, x)
        }
    }
}
