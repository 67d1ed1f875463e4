// How product_fragments.comp meets the rows of its block where their product is of normalised rows.
#include "product_rows_met.glsl"

shared vec2 met_of_teams[TEAMS * ROWS];

vec2 both_met[LINES]; // sums of what this invocation fetched of a row, and of the squares

void forget_rows() {
    [[unroll]] for (int i = 0; i < LINES; ++i) both_met[i] = vec2(0.0);
}

vec2 both_of_run(RUN run) {
    return both_of(vec4(pair_of(run.x), pair_of(run.y))) + both_of(vec4(pair_of(run.z), pair_of(run.w)));
}

RUN from_base(RUN run, float base) {
    [[unroll]] for (int w = 0; w < 4; ++w) run[w] = rounded_pair(pair_of(run[w]) - base);
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
        know_row(row, both);
    }
    barrier();
}
