// What an invocation of attention_matrix.comp reads: eight neighbours of a line at a time, which stay as they come until they are multiplied. Four of
// them are its part of a line of a fragment.
const int QUERY = 0, KEY = 1, VALUE = 2;
#ifdef SPLIT
#define FOUR vec4
#define FETCH(into, at, exists, name, form, quad)                                                                                \
    into[at] = into[(at) + 1] = vec4(0.0);                                                                                       \
    if (exists) {                                                                                                                \
        into[at] = LOAD_FLOATS4(name, form, quad);                                                                               \
        into[(at) + 1] = LOAD_FLOATS4(name, form, (quad) + 1);                                                                   \
    }

// Declares the fragments of high and of low halves of four neighbours in each of two lines.
#define OPERAND(Side, made_of, operand, upper, lower)                                                                            \
    MEET(operand, upper)                                                                                                         \
    MEET(operand, lower)                                                                                                         \
    Halves upper_halves = halved((upper) * SCALING(operand)), lower_halves = halved((lower) * SCALING(operand));                 \
    Side high = made_of(upper_halves.high, lower_halves.high), low = made_of(upper_halves.low, lower_halves.low);

// By what OPERAND has declared.
#define MULTIPLY(sum, left, low_left)                                                                                            \
    {                                                                                                                            \
        sum = multiplied(left, low, sum);                                                                                        \
        sum = multiplied(low_left, high, sum);                                                                                   \
        sum = multiplied(left, high, sum);                                                                                       \
    }
#else
#define FOUR uvec2
#define FETCH(into, at, exists, name, form, quad)                                                                                \
    into[at] = into[(at) + 1] = uvec2(0u);                                                                                       \
    if (exists) {                                                                                                                \
        RUN eight = RUN(QUAD(name, (quad) >> 1));                                                                                \
        into[at] = eight.xy;                                                                                                     \
        into[(at) + 1] = eight.zw;                                                                                               \
    }
#define OPERAND(Side, made_of, operand, upper, lower) Side high = made_of(upper, lower);
#define MULTIPLY(sum, left, low_left) sum = multiplied(left, high, sum);
#endif

FOUR query_fours[2 * HIGH * FOURS];
FOUR key_fours[2 * ACROSS * FOURS];
FOUR value_fours[8 * ACROSS * GROUPS]; // of each fragment and group those of four keys

void fetch_queries(int start) {
    [[unroll]] for (int line = 0; line < 2 * HIGH; ++line)
        [[unroll]] for (int f = 0; f < FOURS; f += 2) {
            int row = own_row + 8 * line + line_of_lane(), run = 2 * f + run_of_lane();
            bool exists = row < query_count && (HEAD % 32 == 0 || run < KEY_RUNS);
            FETCH(query_fours, line * FOURS + f, exists, queries, QUERY_FORM, start + row * query.row + 2 * run)
        }
}

void fetch_keys(int start, int first, int end) {
    [[unroll]] for (int line = 0; line < 2 * ACROSS; ++line)
        [[unroll]] for (int f = 0; f < FOURS; f += 2) {
            int k = first + 8 * line + line_of_lane(), run = 2 * f + run_of_lane();
            bool exists = k < end && (HEAD % 32 == 0 || run < KEY_RUNS);
            FETCH(key_fours, line * FOURS + f, exists, keys, KEY_FORM, start + k * key.row + 2 * run)
        }
}

// Values are the right side of a product, whose lines are elements of the result, and whose inner dimension is that of keys. Element
// 8 * (p % 8) + 2 * f + p / 8 of a group of 64 is line p of fragment f: so an invocation needs of each of its four keys eight neighbours, whose
// pairs are its elements of the four fragments.
void fetch_values(int start, int first, int end) {
    [[unroll]] for (int at = 0; at < ACROSS * GROUPS; ++at)
        [[unroll]] for (int e = 0; e < 4; ++e) {
            int k = first + at / GROUPS * K + place_of(e), run = 8 * (at % GROUPS) + line_of_lane();
            bool exists = k < end && (WIDTH % 64 == 0 || run < VALUE_RUNS);
            FETCH(value_fours, 8 * at + 2 * e, exists, values, VALUE_FORM, start + k * value.row + 2 * run)
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
uvec2 first_halves(uvec4 pairs) { return (pairs.xz & 0xffffu) | (pairs.yw << 16); }
uvec2 second_halves(uvec4 pairs) { return (pairs.xz >> 16) | (pairs.yw & 0xffff0000u); }
#define FIRST_UPPER(at) first_halves(uvec4 OF_KEYS(at, x))
#define FIRST_LOWER(at) second_halves(uvec4 OF_KEYS(at, x))
#define SECOND_UPPER(at) first_halves(uvec4 OF_KEYS(at, y))
#define SECOND_LOWER(at) second_halves(uvec4 OF_KEYS(at, y))
#endif
