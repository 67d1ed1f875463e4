#version 450
// Branches of every kind that specialization constants choose, nested: see tests/vulkan/test_pruned_shaders.py.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int GROUP = 64;
layout(constant_id = 1) const int KIND = 0;
layout(constant_id = 2) const int TURNS = 0;
layout(constant_id = 3) const bool SKIPS = false;
layout(set = 0, binding = 0, std430) readonly buffer Source { int source[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Target { int target[]; };
layout(push_constant) uniform Push { int count; };

int turned(int x, int value, int k) {
    switch (KIND) {
    case 0:
        if (x > 5) break;
        value += 1;
        break;
    case 1:
        value *= 2; // and on
    case 2:
        value -= 3;
        if (value < -20) return -1;
        break;
    default:
        for (int j = 0; j < 4; ++j) {
            if (j * j > x) break;
            if (KIND % 3 == 1 && j == k) continue;
            value += j;
        }
    }
    return value;
}

void main() {
    int i = int(gl_GlobalInvocationID.x);
    if (i >= count) return;
    int x = source[i], value = 0;
    for (int k = 0; k < TURNS; ++k) {
        if (SKIPS) {
            if (x > 3 && k == 1) continue;
            if (x == 9) break;
        }
        value = turned(x, value, k);
    }
    target[i] = (TURNS > 1 || x > 7) && !SKIPS ? value + 100 : value;
}
