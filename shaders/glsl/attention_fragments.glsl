// What an invocation of attention_matrix.comp reads: eight neighbours of a line at a time, which stay as they come until they are multiplied. Four of
// them are its part of a line of a fragment.
// Of a line that isn't there its last one is read, whose scores don't count.
#ifdef SPLIT
#define FOUR vec4
#define FETCH(into, at, exists, name, form, place)                                                                               \
    into[at] = into[(at) + 1] = vec4(0.0);                                                                                       \
    if (exists) {                                                                                                                \
        into[at] = LOAD_FLOATS4(name, form, place);                                                                              \
        into[(at) + 1] = LOAD_FLOATS4(name, form, (place) + 1);                                                                  \
    }

// Declares the fragments of high and of low halves of four neighbours in each of two lines.
#define OPERAND(Side, made_of, operand, upper, lower)                                                                            \
    MEET(operand, upper)                                                                                                         \
    MEET(operand, lower)                                                                                                         \
    Halves upper_halves = halved((upper) * SCALING(operand)), lower_halves = halved((lower) * SCALING(operand));                 \
    Side high = made_of(upper_halves.high, lower_halves.high), low = made_of(upper_halves.low, lower_halves.low);
#else
#define FOUR uvec2
#define FETCH(into, at, exists, name, form, place)                                                                               \
    into[at] = into[(at) + 1] = uvec2(0u);                                                                                       \
    if (exists) {                                                                                                                \
        RUN eight = RUN(QUAD(name, place));                                                                                      \
        into[at] = eight.xy;                                                                                                     \
        into[(at) + 1] = eight.zw;                                                                                               \
    }
#define OPERAND(Side, made_of, operand, upper, lower) Side high = made_of(upper, lower);
#endif

FOUR query_fours[2 * HIGH * INNER];
FOUR key_fours[2 * ACROSS * INNER];
FOUR value_fours[8 * ACROSS * GROUPS]; // of each fragment and group those of four keys

void fetch_queries(int start) {
    [[unroll]] for (int line = 0; line < 2 * HIGH; ++line) {
        int row = min(own_row + 8 * line + line_of_lane(), query_count - 1);
        int place = in_loads(start) + row * in_loads(query.row) + LOADS * run_of_lane();
        [[unroll]] for (int f = 0; f < INNER; f += 2) {
            bool exists = 2 * f + 4 <= KEY_RUNS || 2 * f + run_of_lane() < KEY_RUNS;
            FETCH(query_fours, line * INNER + f, exists, queries, QUERY_FORM, place + 2 * LOADS * f)
        }
    }
}

void fetch_keys(int start, int first, int last) {
    [[unroll]] for (int line = 0; line < 2 * ACROSS; ++line) {
        int k = min(first + 8 * line + line_of_lane(), last);
        int place = in_loads(start) + k * in_loads(key.row) + LOADS * run_of_lane();
        [[unroll]] for (int f = 0; f < INNER; f += 2) {
            bool exists = 2 * f + 4 <= KEY_RUNS || 2 * f + run_of_lane() < KEY_RUNS;
            FETCH(key_fours, line * INNER + f, exists, keys, KEY_FORM, place + 2 * LOADS * f)
        }
    }
}

// Values are the right side of a product, whose lines are elements of the result, and whose inner dimension is that of keys. Element
// 8 * (p % 8) + 2 * f + p / 8 of a group of 64 is line p of fragment f: so an invocation needs of each of its four keys eight neighbours, whose
// pairs are its elements of the four fragments.
void fetch_values(int start, int first, int last) {
    [[unroll]] for (int k = 0; k < ACROSS; ++k)
        [[unroll]] for (int e = 0; e < 4; ++e) {
            int line = min(first + k * K + place_of(e), last);
            int place = in_loads(start) + line * in_loads(value.row) + LOADS * line_of_lane();
            [[unroll]] for (int g = 0; g < GROUPS; ++g) {
                bool exists = 8 * g + 8 <= VALUE_RUNS || 8 * g + line_of_lane() < VALUE_RUNS;
                FETCH(value_fours, 8 * (k * GROUPS + g) + 2 * e, exists, values, VALUE_FORM, place + 8 * LOADS * g)
            }
        }
}

// Lines line_of_lane() and line_of_lane() + 8 of the first and the second of two fragments, from the fours of four keys.
#define OF_KEYS(at, c) (value_fours[at].c, value_fours[(at) + 2].c, value_fours[(at) + 4].c, value_fours[(at) + 6].c)
#ifdef SPLIT
#define FIRST_UPPER(at) vec4 OF_KEYS(at, x)
#define FIRST_LOWER(at) vec4 OF_KEYS(at, y)
#define SECOND_UPPER(at) vec4 OF_KEYS(at, z)
#define SECOND_LOWER(at) vec4 OF_KEYS(at, w)
#else
#if defined(EMULATED) || defined(BFLOAT)
uint lower_halves(uint first, uint second) { return first & 0xffffu | second << 16; }
uint upper_halves(uint first, uint second) { return first >> 16 | second & 0xffff0000u; }
#else
// One instruction, where NVIDIA's compiler makes two of the above.
uint lower_halves(uint first, uint second) { return packFloat2x16(f16vec2(unpackFloat2x16(first).x, unpackFloat2x16(second).x)); }
uint upper_halves(uint first, uint second) { return packFloat2x16(f16vec2(unpackFloat2x16(first).y, unpackFloat2x16(second).y)); }
#endif
uvec2 first_halves(uvec4 pairs) { return uvec2(lower_halves(pairs.x, pairs.y), lower_halves(pairs.z, pairs.w)); }
uvec2 second_halves(uvec4 pairs) { return uvec2(upper_halves(pairs.x, pairs.y), upper_halves(pairs.z, pairs.w)); }
#define FIRST_UPPER(at) first_halves(uvec4 OF_KEYS(at, x))
#define FIRST_LOWER(at) second_halves(uvec4 OF_KEYS(at, x))
#define SECOND_UPPER(at) first_halves(uvec4 OF_KEYS(at, y))
#define SECOND_LOWER(at) second_halves(uvec4 OF_KEYS(at, y))
#endif

void turn_queries() {
    [[unroll]] for (int i = 0; i < HIGH; ++i)
        [[unroll]] for (int f = 0; f < INNER; ++f) {
            OPERAND(Left, left_of, QUERY, query_fours[2 * i * INNER + f], query_fours[(2 * i + 1) * INNER + f])
            own_queries[i * INNER + f] = high;
#ifdef SPLIT
            low_queries[i * INNER + f] = low;
#endif
        }
}

#define KEYS_OPERAND(turn, j, f) OPERAND(Right, right_of, KEY, key_fours[2 * (j) * INNER + f], key_fours[(2 * (j) + 1) * INNER + f])

// By a fragment of values, the `fragment`-th of group `g`.
#define MULTIPLY_VALUES(fragment, four, upper, lower)                                                                            \
    {                                                                                                                            \
        Sums own[HIGH];                                                                                                          \
        [[unroll]] for (int i = 0; i < HIGH; ++i) own[i] = SUMS_BEFORE(sums[i * WIDE + 4 * g + fragment]);                       \
        [[unroll]] for (int k = 0; k < ACROSS; ++k) {                                                                            \
            OPERAND(Right, right_of, VALUE, upper(8 * (k * GROUPS + g) + four), lower(8 * (k * GROUPS + g) + four))              \
            [[unroll]] for (int i = 0; i < HIGH; ++i) MULTIPLY(own[i], weights[i * ACROSS + k], low_weights[i * ACROSS + k])     \
        }                                                                                                                        \
        [[unroll]] for (int i = 0; i < HIGH; ++i)                                                                                \
            sums[i * WIDE + 4 * g + fragment] = SUMS_AFTER(sums[i * WIDE + 4 * g + fragment], own[i]);                           \
    }

void multiply_values(int turn) {
    [[unroll]] for (int g = 0; g < GROUPS; ++g) {
        MULTIPLY_VALUES(0, 0, FIRST_UPPER, FIRST_LOWER)
        MULTIPLY_VALUES(1, 0, SECOND_UPPER, SECOND_LOWER)
        MULTIPLY_VALUES(2, 1, FIRST_UPPER, FIRST_LOWER)
        MULTIPLY_VALUES(3, 1, SECOND_UPPER, SECOND_LOWER)
    }
}

// What is read when; AHEAD says what is during the tile before.
void begin(int query_start, int key_start, int value_start, int first, int last) {
    fetch_queries(query_start);
    if ((AHEAD & 1) != 0) fetch_keys(key_start, first, last);
    if ((AHEAD & 2) != 0) fetch_values(value_start, first, last);
    turn_queries();
}

void before_keys(int key_start, int value_start, int first, int last) {
    if ((AHEAD & 1) == 0) fetch_keys(key_start, first, last);
}

void after_keys(int key_start, int value_start, int first, int last) {
    if ((AHEAD & 1) != 0) fetch_keys(key_start, first + TEAMS * KEYS, last);
    if ((AHEAD & 2) == 0) fetch_values(value_start, first, last);
}

void after_values(int value_start, int first, int last, int turn) {
    if ((AHEAD & 2) != 0) fetch_values(value_start, first, last);
}

// By the order of values above an invocation has of each of its rows 16 neighbours of each group of 64: four vec4s. Of a row of fragments, vec4s 0
// to 3 of a group are of row line_of_lane(), 4 to 7 of the one eight below.
#define RESULT_PAIR(i, c, e) ELEMENT(sums[(i) * WIDE + (c)], e), ELEMENT(sums[(i) * WIDE + (c)], (e) + 2)
#define RESULT(i, n)                                                                                                             \
    vec4(RESULT_PAIR(i, (n) / 8 * 4 + (n) % 2 * 2, (n) % 8 / 4 * 4 + (n) / 2 % 2), RESULT_PAIR(i, (n) / 8 * 4 + (n) % 2 * 2 + 1, (n) % 8 / 4 * 4 + (n) / 2 % 2))
int row_of_result(int i, int n) { return i * M + line_of_lane() + n % 8 / 4 * 8; }
int quad_of_result(int n) { return n / 8 * 16 + 4 * run_of_lane() + n % 4; }
#define IS_LOWER(n) ((n) % 8 >= 4)
