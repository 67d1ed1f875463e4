#version 450
#extension GL_GOOGLE_include_directive : require
// Waits until the host rings, which it does when it has written the inputs of a call. See runtimes/vulkan/engine/doorbell.py.
#include "elements.glsl"
layout(local_size_x = 32) in;

layout(set = 0, binding = 0, std430) readonly volatile buffer Bell { uint rung; };
layout(set = 0, binding = 1, std430) writeonly buffer Late { uint gave_up; }; // the host computes anew then
#include "doorbell_push.glsl"

void main() {
    if (gl_LocalInvocationIndex != 0) return;
    uint polled = 0u;
    for (; polled < most_polls; ++polled) {
        if (rung != 0u) break;
    }
    if (polled == most_polls) gave_up = 1u;
}
