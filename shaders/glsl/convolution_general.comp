#version 450
#extension GL_GOOGLE_include_directive : require
// Convolution in one to three dimensions, transposed or not, of any groups, strides and dilations, on tensors of any layout: an
// invocation computes one element. For what the fast kernels don't take. A long sum is divided among dispatches, each of which goes on
// with what the one before left in the result. The numbers come in a buffer, as there are
// more than push constants hold; see _general_numbers in runtimes/vulkan/kernels/convolution_kernels.py.
#define FORMS_ID 11 // of the rounding alone
#include "epilogue.glsl"

layout(constant_id = 8) const int TRANSPOSED = 0;
layout(constant_id = 9) const int CONTINUES = 0; // the sum starts with what is in the result
layout(constant_id = 10) const int FINISHES = 1; // else the sum is stored as it is
const int STRETCH = 64; // channels that are added up at a time
layout(local_size_x_id = 12, local_size_y = 1, local_size_z = 1) in;

layout(set = 0, binding = 0, std430) readonly buffer Activations { float activations[]; };
layout(set = 0, binding = 1, std430) readonly buffer Weights { float weights[]; };
layout(set = 0, binding = 2, std430) readonly buffer Biases { float biases[]; };
layout(set = 0, binding = 3, std430) readonly buffer Residuals { float residuals[]; };
layout(set = 0, binding = 4, std430) buffer Results { float results[]; };
layout(set = 0, binding = 5, std430) readonly buffer Numbers {
    int elements, channels, group_in, group_out; // channels: of the result; group_*: of one group
    int size[3], out_size[3], taps[3], stride[3], first[3], dilation[3];
    int begin[4], end[4]; // of the taps and the input channels of a group, what this dispatch sums up
    // Strides of batch, channel, and the three spatial dimensions (of the weights: outer, inner, taps), then the offset.
    int input_steps[6], weight_steps[6], bias_steps[2], residual_steps[6], out_steps[6];
};

int place(int steps[6], int batch, int channel, ivec3 at) {
    return steps[5] + batch * steps[0] + channel * steps[1] + at.x * steps[2] + at.y * steps[3] + at.z * steps[4];
}

// Where a tap reads along a dimension: at `quotient`, if `remainder` is 0 (which it always is unless TRANSPOSED). Kept from tap to
// tap by sums, as divisions are dear.
struct Reading { int quotient, remainder; };

Reading first_reading(int d, int at) {
    if (TRANSPOSED == 0) return Reading(at * stride[d] + first[d] + begin[d] * dilation[d], 0);
    int from = at - first[d] - begin[d] * dilation[d];
    int quotient = from >= 0 ? from / stride[d] : -((stride[d] - 1 - from) / stride[d]);
    return Reading(quotient, from - quotient * stride[d]);
}

// Of the next tap, whose place is `whole` times the stride and `part` farther.
Reading next_reading(Reading reading, int whole, int part, int period) {
    if (TRANSPOSED == 0) return Reading(reading.quotient + whole, 0);
    int remainder = reading.remainder - part;
    bool borrows = remainder < 0;
    return Reading(reading.quotient - whole - int(borrows), remainder + (borrows ? period : 0));
}

bool is_inside(Reading reading, int size) {
    return reading.remainder == 0 && reading.quotient >= 0 && reading.quotient < size;
}

void main() {
    int index = int((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (index >= elements) return;
    int channel = index % channels;
    int rest = index / channels;
    ivec3 at;
    at.z = rest % out_size[2];
    rest /= out_size[2];
    at.y = rest % out_size[1];
    rest /= out_size[1];
    at.x = rest % out_size[0];
    int batch = rest / out_size[0];
    int group = channel / group_out;

    int target = place(out_steps, batch, channel, at);
    float sum = HAS_BIAS != 0 ? biases[bias_steps[1] + channel * bias_steps[0]] : 0.0;
    if (CONTINUES != 0) sum = results[target];
    // Read once: a driver may not keep what lies in a buffer.
    ivec3 sizes = ivec3(size[0], size[1], size[2]), periods = ivec3(stride[0], stride[1], stride[2]);
    ivec3 wholes = ivec3(dilation[0], dilation[1], dilation[2]), parts = ivec3(0);
    if (TRANSPOSED != 0) {
        wholes = ivec3(dilation[0] / stride[0], dilation[1] / stride[1], dilation[2] / stride[2]);
        parts = ivec3(dilation[0], dilation[1], dilation[2]) - wholes * periods;
    }
    ivec3 input_along = ivec3(input_steps[2], input_steps[3], input_steps[4]);
    ivec3 weight_along = ivec3(weight_steps[2], weight_steps[3], weight_steps[4]);
    int outer = TRANSPOSED != 0 ? group * group_in : channel, inner = TRANSPOSED != 0 ? channel - group * group_out : 0;
    int input_first = place(input_steps, batch, group * group_in, ivec3(0));
    int weight_first = place(weight_steps, outer, inner, ivec3(begin[0], begin[1], begin[2]));
    int input_step = input_steps[1], weight_step = weight_steps[TRANSPOSED != 0 ? 0 : 1];
    ivec4 counts = ivec4(end[0], end[1], end[2], end[3]) - ivec4(begin[0], begin[1], begin[2], begin[3]);
    input_first += begin[3] * input_step;
    weight_first += begin[3] * weight_step;

    // What is near is added up first, which keeps rounding errors small.
    Reading read_a = first_reading(0, at.x), first_b = first_reading(1, at.y), first_c = first_reading(2, at.z);
    for (int a = 0; a < counts.x; ++a, read_a = next_reading(read_a, wholes.x, parts.x, periods.x)) {
        if (!is_inside(read_a, sizes.x)) continue;
        Reading read_b = first_b;
        for (int b = 0; b < counts.y; ++b, read_b = next_reading(read_b, wholes.y, parts.y, periods.y)) {
            if (!is_inside(read_b, sizes.y)) continue;
            int input_line = input_first + read_a.quotient * input_along.x + read_b.quotient * input_along.y;
            int weight_line = weight_first + a * weight_along.x + b * weight_along.y;
            float line = 0.0;
            Reading read_c = first_c;
            for (int c = 0; c < counts.z; ++c, read_c = next_reading(read_c, wholes.z, parts.z, periods.z)) {
                if (!is_inside(read_c, sizes.z)) continue;
                int from = input_line + read_c.quotient * input_along.z, by = weight_line + c * weight_along.z;
                float part = 0.0;
                for (int k = 0; k < counts.w; ++k, from += input_step, by += weight_step) {
                    part += activations[from] * weights[by];
                    if (k % STRETCH == STRETCH - 1) {
                        line += part;
                        part = 0.0;
                    }
                }
                line += part;
            }
            sum += line;
        }
    }

    if (FINISHES == 0) {
        results[target] = sum;
        return;
    }
    vec4 value = before_residual(vec4(sum));
    if (HAS_RESIDUAL != 0) value = with_residual(value, vec4(residuals[place(residual_steps, batch, channel, at)]));
    results[target] = after_residual(value).x;
}
