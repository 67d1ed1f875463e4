// Floats as sums of two halves, so that matrix units for halves compute products of floats: high * high + high * low + low * high (H. Ootomo
// and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
// A half has 11 bits, so what is missing is 2^-22 of a product. It has few exponents, too: operands are scaled by powers of two, first by
// such as suit most networks. Which magnitudes were met is asked at the end: where scales didn't suit them, all is summed up once more by
// scales that do; beyond EXTREME, and with infinities and NaN, by ordinary arithmetic.
#extension GL_KHR_shader_subgroup_arithmetic : require

struct Floats {
    vec4 own[VECTORS];
};
#define FETCHED Floats
#ifdef NARROW
#define LINE_OF(name, form, index) Floats(vec4[1](LOAD_FLOATS4(name, form, index)))
#define NOTHING Floats(vec4[1](vec4(0.0)))
#else
#define LINE_OF(name, form, index) Floats(vec4[2](LOAD_FLOATS4(name, form, index), LOAD_FLOATS4(name, form, (index) + 1)))
#define NOTHING Floats(vec4[2](vec4(0.0), vec4(0.0)))
#endif

const uint USUAL_VALUE_SCALE = 127u + 4u; // as exponents with the bias of floats
const uint USUAL_FACTOR_SCALE = 127u + 8u;
const uint LEAST = 127u - 2u; // of the largest magnitude, scaled: the low halves of smaller ones would lose bits
const uint MOST = 127u + 15u; // and larger ones would be infinite
const uint AIM = 127u + 13u;
const uint EXTREME = 40u;
const uint INFINITE = 255u;

// The bits of the largest magnitudes of values and factors. Four words, as matrices in `pool` must lie on whole 16 bytes, wherever it is.
shared uint extremes[4];

float met_values = 0.0; // those magnitudes themselves, of this invocation; NaN, which may be lost, becomes NaN all the same
float met_factors = IS_WEIGHT_SPLIT != 0 ? 1.0 : 0.0; // the scale suits weights that the host has split
uint value_scale = USUAL_VALUE_SCALE;
uint factor_scale = USUAL_FACTOR_SCALE;
bool is_plain = false;
bool is_tail = false; // whether this invocation fetches the last columns

// Before the first barrier.
void begin_split() {
    if (me < 2) extremes[me] = 0u;
}

float power_of_two(uint exponent) { return uintBitsToFloat(exponent << 23); }
float unscaling() { return power_of_two(254u - value_scale) * power_of_two(254u - factor_scale); }

// The integers keep the driver from taking a number and its half for the same.
void keep_floats(int place, Floats floats, float scale) {
    RUN high, low;
    [[unroll]] for (int v = 0; v < VECTORS; ++v) {
        vec4 value = floats.own[v] * scale;
        vec4 rounded = uintBitsToFloat((floatBitsToUint(value) + 0x1000u) & ~0x1fffu);
        vec4 rest = value - rounded;
        high[2 * v] = packHalf2x16(rounded.xy);
        high[2 * v + 1] = packHalf2x16(rounded.zw);
        low[2 * v] = packHalf2x16(rest.xy);
        low[2 * v + 1] = packHalf2x16(rest.zw);
    }
    pool[place] = high;
    pool[place + TILE_PAIR] = low;
}

// Four weights.
vec4 factor_at(int index) {
    if (IS_WEIGHT_SPLIT == 0) return WEIGHT(index);
    uvec4 halves = uvec4(QUAD(weights, index));
    vec4 high = vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
    return (high + vec4(unpackHalf2x16(halves.z), unpackHalf2x16(halves.w))) * power_of_two(254u - USUAL_FACTOR_SCALE);
}

float largest(float met, Floats floats) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v)
        [[unroll]] for (int c = 0; c < 4; ++c) met = max(met, abs(floats.own[v][c]));
    return met;
}

void keep_value(int place, Floats floats) {
    met_values = largest(met_values, floats);
    keep_floats(place, floats, power_of_two(value_scale));
}

void keep_factor(int place, Floats floats) {
    if (IS_WEIGHT_SPLIT != 0) {
        RUN high, low;
        [[unroll]] for (int v = 0; v < VECTORS; ++v) {
            uvec4 halves = floatBitsToUint(floats.own[v]);
            high[2 * v] = halves.x;
            high[2 * v + 1] = halves.y;
            low[2 * v] = halves.z;
            low[2 * v + 1] = halves.w;
        }
        pool[place] = high;
        pool[place + TILE_PAIR] = low;
        return;
    }
    met_factors = largest(met_factors, floats);
    keep_floats(place, floats, power_of_two(factor_scale));
}

// Without what lies beside the last `count` numbers, which may be anything, and would be met.
Floats head_of(Floats floats, int count) {
    floats.own[VECTORS - 1] = head(floats.own[VECTORS - 1], count);
    return floats;
}

#ifdef SCALED
Floats scaled_run(Floats floats, int index) {
    [[unroll]] for (int v = 0; v < VECTORS; ++v) floats.own[v] = scaled(floats.own[v], index + v);
    return floats;
}
#endif

bool is_suited(uint exponent, uint scale) { return exponent + scale >= LEAST + 127u && exponent + scale < MOST + 127u; }
bool is_moderate(uint exponent) { return exponent > 127u - EXTREME && exponent < 127u + EXTREME; }

// Whether the sums are what they should be, or `is_plain` says that they can't be; else there are other scales for another attempt. All
// invocations together.
bool is_settled() {
    uint values = subgroupMax(floatBitsToUint(met_values));
    uint factors = subgroupMax(floatBitsToUint(met_factors));
    if (subgroupElect()) {
        atomicMax(extremes[0], values);
        atomicMax(extremes[1], factors);
    }
    barrier();
    values = extremes[0];
    factors = extremes[1];
    uint value = values >> 23;
    uint factor = factors >> 23;
    bool is_finite = value + value_scale < MOST + 127u && factor + factor_scale < MOST + 127u;
    if (is_finite && (values == 0u || factors == 0u)) return true;
    if (is_suited(value, value_scale) && is_suited(factor, factor_scale)) return true;
    is_plain = !is_moderate(value) || !is_moderate(factor);
    if (is_plain) return true;
    value_scale = AIM + 127u - value;
    if (IS_WEIGHT_SPLIT == 0) factor_scale = AIM + 127u - factor;
    return false;
}
