// What a workgroup of a kernel with matrix units knows of the rows of its block, where its product is of normalised rows
// (product_normalized.glsl).
shared vec4 rows_met[BLOCK_ROWS]; // base, mean from there on, scale
shared uint is_some_row_far;      // zero before

bool has_bases = false;

float base_of(int row) { return rows_met[row].x; }
float mean_of(int row) { return rows_met[row].y; }
float scale_of(int row) { return rows_met[row].z; }

// By the sums of a row from its base on, and of their squares.
void know_row(int row, vec2 both) {
    RowStatistics found = statistics_of(both);
    rows_met[row].yz = vec2(found.mean, found.scale);
    if (found.is_far) is_some_row_far = 1u;
}

bool are_bases_missing() { return is_some_row_far != 0u && !has_bases; }

// All invocations together.
void begin_from_bases() {
    barrier();
    for (int row = me; row < BLOCK_ROWS; row += INVOCATIONS) rows_met[row].x = rows_met[row].y;
    has_bases = true;
#ifdef SPLIT
    met[VALUE] = 0.0;
    if (me == 0) extremes[VALUE] = 0u;
#endif
    barrier();
}
