// How kernels of attention that compute in float32 find their operands' rows, and what they make of a mask. Powers are of two, so the
// scale of scores has a factor of log2(e).
const float LOWEST = -3.40282347e38;
const float LOG2_E = 1.44269504;

vec4 without_tail(vec4 x, int quad, int count) {
    return mix(vec4(0.0), x, lessThan(ivec4(0, 1, 2, 3) + 4 * quad, ivec4(count)));
}

int start_of(Operand operand, ivec3 batch) {
    return operand.offset + batch.x * operand.outer + batch.y * operand.middle + batch.z * operand.inner;
}

// What is added to a score; finite numbers stay finite, as the largest negative one stands for keys that don't count in many models.
vec4 in_powers_of_two(vec4 x) {
    vec4 scaled = clamp(x * LOG2_E, vec4(LOWEST), vec4(-LOWEST));
    return mix(scaled, x, greaterThanEqual(floatBitsToInt(x) & MAGNITUDE, ivec4(INFINITY)));
}
