// Which block of which product a workgroup of a kernel with matrix units computes, and where its sums lie: those of a row of fragments of
// each subgroup in `pool`, SUM_PITCH runs from line to line.

// Four sums of a row of fragments, of all teams.
vec4 sum_at(int place) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (int t = 0; t < TEAMS; ++t) {
        int at = place + t * TEAM_SIZE * SUMS;
#ifdef NARROW
        sum += uintBitsToFloat(uvec4(pool[at], pool[at + 1]));
#else
        sum += uintBitsToFloat(pool[at]);
#endif
    }
    return sum;
}

// Which product, and which block of it.
int part = int(gl_WorkGroupID.z) % PARTS;
int product = int(gl_WorkGroupID.z) / PARTS;
int group = GROUPED != 0 ? product : 0;
int batch = GROUPED != 0 ? 0 : product;
int own_columns = GROUPED != 0 ? group_columns : columns;
int base_column = group * own_columns;
int block_column = int(gl_WorkGroupID.x) * BLOCK_COLUMNS;
int block_row = start_row + int(gl_WorkGroupID.y) * BLOCK_ROWS;

// Where a vec4 of the result is.
struct Spot {
    bool exists;
    int row, column;
    Pixel pixel;
};

// Of slot `slot` of row `fragments` of fragments.
Spot spot_of(int fragments, int slot) {
    int line = slot / COLUMNS;
    int owner = line / M;
    Spot spot;
    spot.row = block_row + owner / ACROSS * ROWS + fragments * M + line % M;
    int at = block_column + owner % ACROSS * COLUMNS + slot % COLUMNS;
    spot.exists = slot < SLOTS && spot.row < rows && at < own_columns;
    spot.column = base_column + at;
    spot.pixel = Pixel(0, 0, 0);
    if (SPATIAL != 0) spot.pixel = pixel_of(spot.row);
    return spot;
}
