// What product_fragments.comp knows of the rows of its block where their product is of normalised rows (product_normalized.glsl).
shared vec4 rows_met[ROWS]; // base, mean from there on, scale
shared vec2 met_of_teams[TEAMS * ROWS];
shared uint is_some_row_far;

bool has_bases = false;
vec2 both_met[LINES]; // sums of what this invocation fetched of a row, and of the squares

float base_of(int row) { return rows_met[row].x; }
float mean_of(int row) { return rows_met[row].y; }
float scale_of(int row) { return rows_met[row].z; }

void forget_rows() {
    [[unroll]] for (int i = 0; i < LINES; ++i) both_met[i] = vec2(0.0);
}

vec2 both_of_run(RUN run) {
    return both_of(vec4(unpackHalf2x16(run.x), unpackHalf2x16(run.y))) + both_of(vec4(unpackHalf2x16(run.z), unpackHalf2x16(run.w)));
}

RUN from_base(RUN run, float base) {
    [[unroll]] for (int w = 0; w < 4; ++w) run[w] = packHalf2x16(unpackHalf2x16(run[w]) - base);
    return run;
}

// Subgroups side by side have met the same rows.
void find_statistics() {
    [[unroll]] for (int i = 0; i < LINES; ++i) {
        vec2 both = sum_of_lines(both_met[i]);
        if (run_of_lane() == 0 && subgroup() % TEAM_SIZE == 0)
            met_of_teams[subgroup() / TEAM_SIZE * ROWS + i * 8 + line_of_lane()] = both;
    }
    barrier();
    for (int row = me; row < ROWS; row += INVOCATIONS) {
        vec2 both = vec2(0.0);
        for (int team = 0; team < TEAMS; ++team) both += met_of_teams[team * ROWS + row];
        RowStatistics found = statistics_of(both);
        rows_met[row].yz = vec2(found.mean, found.scale);
        if (found.is_far) is_some_row_far = 1u;
    }
    barrier();
}

bool are_bases_missing() { return is_some_row_far != 0u && !has_bases; }

// All invocations together.
void begin_from_bases() {
    barrier();
    for (int row = me; row < ROWS; row += INVOCATIONS) rows_met[row].x = rows_met[row].y;
    has_bases = true;
    barrier();
}
