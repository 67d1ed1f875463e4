// A product of rows that are normalised: (x - mean) / sqrt(variance + EPSILON), with factors and shifts in weights and bias; see
// Normalization in runtimes/vulkan/kernels/product_normalizing.py. Sums needn't wait for a row's statistics, which the walk along it
// gives as well: sum((x - mean) * w) = sum((x - base) * w) - (mean - base) * sum(w). Bases are zero at first. Where means are so far from it
// that the difference would lose digits, all is computed once more with the means that were found as bases.
#ifdef QUANTIZED
#define ROWS_ID FORMS_ID + 4
#define SUMS_BINDING 6
READS(7, gains) // weights of few bits can't have them in them
layout(constant_id = ROWS_ID + 2) const int HAS_GAINS = 0;
#else
#define ROWS_ID FORMS_ID + 1
#define SUMS_BINDING 5
#endif
layout(constant_id = ROWS_ID) const int IS_CENTERED = 1; // else nothing is subtracted, and squares stand for the variance
layout(constant_id = ROWS_ID + 1) const float EPSILON = 1e-5;

READS(SUMS_BINDING, column_sums)

const float FAR = 8.0; // squares of means, over variances

struct RowStatistics {
    float mean, scale; // from the base on
    bool is_far;
};

// Of the sums of a row, from its base on, and of their squares.
RowStatistics statistics_of(vec2 both) {
    float share = 1.0 / float(INNER_TAIL != 0 ? 4 * inner - 4 + INNER_TAIL : 4 * inner);
    float mean = IS_CENTERED != 0 ? both.x * share : 0.0;
    float variance = both.y * share - mean * mean;
    if (variance < 0.0) variance = 0.0; // what rounding left; NaN stays
    return RowStatistics(mean, 1.0 / sqrt(variance + EPSILON), mean * mean > FAR * variance);
}

vec4 column_sum_at(int column) { return IS_CENTERED != 0 ? LOAD_FLOATS4(column_sums, WORDS, column) : vec4(0.0); }

vec4 normalized_sum(vec4 sum, float mean, float scale, vec4 column_sum) {
    if (IS_CENTERED != 0) sum -= mean * column_sum;
    return sum * scale;
}

vec2 both_of(vec4 x) { return vec2((x.x + x.y) + (x.z + x.w), dot(x, x)); }
