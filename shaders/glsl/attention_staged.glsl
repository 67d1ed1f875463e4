// Keys and values of attention_matrix.comp by way of shared memory, where all invocations of a workgroup put a tile of them while they multiply the
// one before: its loads are under way meanwhile, each line is read once for all queries, and a float becomes two halves once. Queries come the same
// way at the beginning. Lines lie as in memory, and are filled with zeros up to whole fragments.
#ifdef SPLIT
#define LOAD vec4
#define FETCH(into, at, exists, name, form, place)                                                                               \
    into[at] = exists ? LOAD_FLOATS4(name, form, place) : vec4(0.0);                                                             \
    into[(at) + 1] = exists ? LOAD_FLOATS4(name, form, (place) + 1) : vec4(0.0);
#define SPLIT_RUN(from, at, operand)                                                                                             \
    MEET(operand, from[at])                                                                                                      \
    MEET(operand, from[(at) + 1])                                                                                                \
    Halves upper = halved(from[at] * SCALING(operand)), lower = halved(from[(at) + 1] * SCALING(operand));
#define PUT(from, at, place, low_place, operand)                                                                                 \
    {                                                                                                                            \
        SPLIT_RUN(from, at, operand)                                                                                             \
        pool[place] = RUN(upper.high, lower.high);                                                                               \
        pool[low_place] = RUN(upper.low, lower.low);                                                                             \
    }
// The high or the low halves of it.
#define PUT_PART(from, at, place, part, operand)                                                                                 \
    {                                                                                                                            \
        SPLIT_RUN(from, at, operand)                                                                                             \
        pool[place] = RUN(upper.part, lower.part);                                                                               \
    }
// Declares the fragments of high and of low halves, which lie `part` runs behind.
#define LOAD_OPERAND(Side, load, place, part, pitch) Side high = load(place, pitch), low = load((place) + (part), pitch);
#else
#define LOAD RUN
#define FETCH(into, at, exists, name, form, place) into[at] = exists ? RUN(QUAD(name, place)) : RUN(0u);
#define PUT(from, at, place, low_place, operand) pool[place] = from[at];
#define PUT_PART(from, at, place, part, operand) pool[place] = from[at];
#define LOAD_OPERAND(Side, load, place, part, pitch) Side high = load(place, pitch);
#endif

// Of `lines` of `runs` runs, of which memory has `known`, those that an invocation reads; some read the last one as others do.
#define SLOTS(lines, runs) (((lines) * (runs) + LOCAL_SIZE - 1) / LOCAL_SIZE)
#define EACH_SLOT(lines, runs, i, line, run)                                                                                     \
    [[unroll]] for (int i = 0, slot = min(me, (lines) * (runs) - 1), line = slot / (runs), run = slot % (runs); i < SLOTS(lines, runs);      \
                    ++i, slot = min(me + i * LOCAL_SIZE, (lines) * (runs) - 1), line = slot / (runs), run = slot % (runs))
#define FETCH_LINES(into, lines, runs, known, name, form, operand, start, first, last)                                           \
    EACH_SLOT(lines, runs, i, line, run) {                                                                                       \
        int place = in_loads(start) + min((first) + line, last) * in_loads(operand.row) + LOADS * run;                           \
        bool exists = (runs) == (known) || run < (known);                                                                        \
        FETCH(into, i * LOADS, exists, name, form, place)                                                                        \
    }
#define PUT_LINES(from, lines, runs, pitch, start, operand)                                                                      \
    EACH_SLOT(lines, runs, i, line, run) {                                                                                       \
        int at = (start) + line * (pitch) + run;                                                                                 \
        PUT(from, i * LOADS, at, at + (lines) * (pitch), operand)                                                                \
    }

const int HEAD_RUNS = 2 * INNER, WIDTH_RUNS = 2 * WIDE;
LOAD key_loads[LOADS * SLOTS(KEYS, HEAD_RUNS)];
LOAD value_loads[LOADS * SLOTS(KEYS, WIDTH_RUNS)];

void fetch_tile(int key_start, int value_start, int first, int last) {
    FETCH_LINES(key_loads, KEYS, HEAD_RUNS, KEY_RUNS, keys, KEY_FORM, key, key_start, first, last)
    FETCH_LINES(value_loads, KEYS, WIDTH_RUNS, VALUE_RUNS, values, VALUE_FORM, value, value_start, first, last)
}

void put_tile(int stage) {
    PUT_LINES(key_loads, KEYS, HEAD_RUNS, KEY_PITCH, stage * STAGE, KEY)
    PUT_LINES(value_loads, KEYS, WIDTH_RUNS, VALUE_PITCH, stage * STAGE + VALUES_AT, VALUE)
}

LOAD query_loads[LOADS * SLOTS(TILE_ROWS, HEAD_RUNS)];

// Of the queries, the high or the low halves.
#define TURN_QUERIES(into, part)                                                                                                 \
    barrier(); /* what was there is read */                                                                                      \
    EACH_SLOT(TILE_ROWS, HEAD_RUNS, n, line, run) PUT_PART(query_loads, n * LOADS, line * KEY_PITCH + run, part, QUERY)          \
    barrier();                                                                                                                   \
    [[unroll]] for (int i = 0; i < HIGH; ++i)                                                                                    \
        [[unroll]] for (int f = 0; f < INNER; ++f)                                                                               \
            into[i * INNER + f] = load_left((subgroup() * OWN_ROWS + i * M) * KEY_PITCH + 2 * f, KEY_PITCH);

void begin(int query_start, int key_start, int value_start, int first, int last) {
    int first_row = own_row - subgroup() * OWN_ROWS;
    FETCH_LINES(query_loads, TILE_ROWS, HEAD_RUNS, KEY_RUNS, queries, QUERY_FORM, query, query_start, first_row, query_count - 1)
    fetch_tile(key_start, value_start, first, last);
    TURN_QUERIES(own_queries, high)
#ifdef SPLIT
    TURN_QUERIES(low_queries, low)
#endif
    barrier();
    put_tile(0);
    barrier();
}

void before_keys(int key_start, int value_start, int first, int last) {
    fetch_tile(key_start, value_start, first + KEYS, last);
}

void after_keys(int key_start, int value_start, int first, int last) {}

void after_values(int value_start, int first, int last, int turn) {
    put_tile((turn + 1) & 1);
    barrier();
}

// Elements k of line n are in row k and column n of the right side; of values, elements of a line in one row.
#define KEYS_OPERAND(turn, j, f)                                                                                                 \
    int at = ((turn) & 1) * STAGE + (j) * N * KEY_PITCH + 2 * (f);                                                               \
    LOAD_OPERAND(Right, load_columns, at, KEYS * KEY_PITCH, KEY_PITCH)

void multiply_values(int turn) {
    int start = (turn & 1) * STAGE + VALUES_AT;
    [[unroll]] for (int c = 0; c < WIDE; ++c) {
        Sums own[HIGH];
        [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = SUMS_BEFORE(sums[i * WIDE + c]);
        [[unroll]] for (int k = 0; k < ACROSS; ++k) {
            LOAD_OPERAND(Right, load_right, start + k * K * VALUE_PITCH + 2 * c, KEYS * VALUE_PITCH, VALUE_PITCH)
            [[unroll]] for (int i = 0; i < HIGH; ++i) MULTIPLY(own[i], weights[i * ACROSS + k], low_weights[i * ACROSS + k])
        }
        [[unroll]] for (int i = 0; i < HIGH; ++i) sums[i * WIDE + c] = SUMS_AFTER(sums[i * WIDE + c], own[i]);
    }
}

// Of a row of fragments an invocation has of each of its two rows a vec4 of each fragment.
#define RESULT(i, n) four_columns(sums[(i) * WIDE + (n) / 2], (n) % 2)
int row_of_result(int i, int n) { return i * M + line_of_lane() + n % 2 * 8; }
int quad_of_result(int n) { return n / 2 * 4 + columns_of_lane(); }
#define IS_LOWER(n) ((n) % 2 != 0)
