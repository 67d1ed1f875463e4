// The tensors of a convolution or matrix product, all of them read and written by four elements that lie side by side.
#include "epilogue.glsl"

const int ACTIVATION_FORM = FORMS & 7;
const int WEIGHT_FORM = FORMS >> 3 & 7;
const int RESIDUAL_FORM = FORMS >> 6 & 7;

READS(0, activations)
READS(1, weights)
READS(2, biases)
READS(3, residuals)
WRITES(4, results)

#define ACTIVATION(index) LOAD_FLOATS4(activations, ACTIVATION_FORM, index)
#define WEIGHT(index) LOAD_FLOATS4(weights, WEIGHT_FORM, index)
#define BIAS(index) LOAD_FLOATS4(biases, WORDS, index)
#define RESIDUAL(index) LOAD_FLOATS4(residuals, RESIDUAL_FORM, index)

void store(int index, vec4 value) { STORE_FLOATS4(results, RESULT_FORM, index, value) }
