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

// Where tap `tap` reads for output `at` along dimension d, or -1.
int source(int d, int at, int tap) {
    int from = at * stride[d] + first[d] + tap * dilation[d];
    if (TRANSPOSED != 0) {
        from = at - first[d] - tap * dilation[d];
        if (from < 0 || from % stride[d] != 0) return -1;
        from /= stride[d];
    }
    return from < size[d] ? from : -1;
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
    // What is near is added up first, which keeps rounding errors small.
    for (int a = begin[0]; a < end[0]; ++a)
        for (int b = begin[1]; b < end[1]; ++b) {
            float line = 0.0;
            for (int c = begin[2]; c < end[2]; ++c) {
                ivec3 from = ivec3(source(0, at.x, a), source(1, at.y, b), source(2, at.z, c));
                if (any(lessThan(from, ivec3(0)))) continue;
                for (int stretch = begin[3]; stretch < end[3]; stretch += STRETCH) {
                    float part = 0.0;
                    for (int k = stretch; k < min(stretch + STRETCH, end[3]); ++k) {
                        int outer = TRANSPOSED != 0 ? group * group_in + k : channel;
                        int inner = TRANSPOSED != 0 ? channel - group * group_out : k;
                        part += activations[place(input_steps, batch, group * group_in + k, from)] *
                                weights[place(weight_steps, outer, inner, ivec3(a, b, c))];
                    }
                    line += part;
                }
            }
            sum += line;
        }

    if (FINISHES == 0) {
        results[target] = sum;
        return;
    }
    vec4 value = before_residual(vec4(sum));
    if (HAS_RESIDUAL != 0) value = with_residual(value, vec4(residuals[place(residual_steps, batch, channel, at)]));
    results[target] = after_residual(value).x;
}
