// y = x * scale + shift, one element per invocation. The smallest complete shader; the engine's tests run it.
#version 450

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 0) const uint GROUP_SIZE = 64;
layout(constant_id = 1) const float SHIFT = 0.0;

#ifdef TEXEL_INPUT
layout(set = 0, binding = 0, rgba32i) readonly uniform iimageBuffer source;
#else
layout(set = 0, binding = 0) readonly buffer Source { float source[]; };
#endif
layout(set = 0, binding = 1) writeonly buffer Target { float target[]; };

layout(push_constant) uniform Arguments {
    uint count;
    float scale;
};

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= count) return;
#ifdef TEXEL_INPUT
    target[i] = intBitsToFloat(imageLoad(source, int(i / 4))[i % 4]) * scale + SHIFT;
#else
    target[i] = source[i] * scale + SHIFT;
#endif
}
