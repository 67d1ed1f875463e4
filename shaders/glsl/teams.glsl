// How the teams of a workgroup add up what they have summed: ROWS * SUMS_OF_A_ROW vec4s of each invocation, and with NORMALIZED the sums of
// each row and of its squares. An invocation adds up those of TEAMS_AT_ONCE teams between two barriers, by loads that don't wait for each
// other, which a loop that halves the teams makes them do: 1,590 cycles on an H100 for 128 teams, and 835 now. More at once takes so many
// registers that the driver's loop over the weights gets slower, by 15 %.

const int TEAMS_AT_ONCE = 4;
const int SECOND = TEAMS > TEAMS_AT_ONCE ? TEAMS / TEAMS_AT_ONCE : 1; // teams that are left after a stage
const int THIRD = SECOND > TEAMS_AT_ONCE ? SECOND / TEAMS_AT_ONCE : 1;
const int FOURTH = THIRD > TEAMS_AT_ONCE ? THIRD / TEAMS_AT_ONCE : 1; // at most TEAMS_AT_ONCE, as there are 256 teams at most

shared vec4 pool[ROWS * SUMS_OF_A_ROW * INVOCATIONS];
#ifdef NORMALIZED
shared vec2 both_pool[ROWS * INVOCATIONS];
#define WITH_BOTH(statement) statement
#else
#define WITH_BOTH(statement)
#endif

// The first `next` of `left` teams add up the sums of all of them. What is written isn't what was read before, so one barrier is enough.
#define ADD_UP(left, next)                                                                                                       \
    if (next < left) {                                                                                                           \
        if (team >= next && team < left) {                                                                                       \
            [[unroll]] for (int i = 0; i < ROWS * SUMS_OF_A_ROW; ++i) pool[i * INVOCATIONS + me] = sums[i];                      \
            WITH_BOTH([[unroll]] for (int i = 0; i < ROWS; ++i) both_pool[i * INVOCATIONS + me] = both[i];)                      \
        }                                                                                                                        \
        barrier();                                                                                                               \
        if (team < next)                                                                                                         \
            [[unroll]] for (int t = 1; t < left / next; ++t) {                                                                   \
                int other = me + t * next * COLUMNS;                                                                             \
                [[unroll]] for (int i = 0; i < ROWS * SUMS_OF_A_ROW; ++i) sums[i] += pool[i * INVOCATIONS + other];              \
                WITH_BOTH([[unroll]] for (int i = 0; i < ROWS; ++i) both[i] += both_pool[i * INVOCATIONS + other];)              \
            }                                                                                                                    \
    }

#define ADD_UP_TEAMS ADD_UP(TEAMS, SECOND) ADD_UP(SECOND, THIRD) ADD_UP(THIRD, FOURTH) ADD_UP(FOURTH, 1)
