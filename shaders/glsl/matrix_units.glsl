// Products of fragments, M x K by K x N elements, that a subgroup holds: by the matrix units of the device, or, with EMULATED, by ordinary
// arithmetic, so that the kernels can be tried where there are none. Places and pitches count elements of `pool`, which are runs of
// 4 * VECTORS halves.
#include "unit_halves.glsl"
#ifdef EMULATED
const int LANES = 32;
const int OWN = 8; // sums of an invocation, side by side: M and N are 16

struct Left {
    int place, pitch;
};
struct Right {
    int place, pitch;
};
struct Sums {
    float own[OWN];
};
#define ELEMENT(sums, i) sums.own[i]

int subgroup() { return me / LANES; }
int lane() { return me % LANES; }

Sums no_sums() {
    Sums sums;
    for (int i = 0; i < OWN; ++i) sums.own[i] = 0.0;
    return sums;
}

Left load_left(int place, int pitch) { return Left(place, pitch); }
Right load_right(int place, int pitch) { return Right(place, pitch); }

float half_at(int line, int column) {
    RUN run = pool[line + column / (4 * VECTORS)];
    return pair_of(run[column / 2 % (2 * VECTORS)])[column % 2];
}

Sums multiplied(Left left, Right right, Sums sums) {
    // Sums lie where the compiler knows: with a loop over them, software Vulkan took two to three times as long for whole tests.
    [[unroll]] for (int i = 0; i < OWN; ++i) {
        int slot = lane() * OWN + i;
        [[dont_unroll]] for (int k = 0; k < K; ++k)
            sums.own[i] += half_at(left.place + slot / N * left.pitch, k) * half_at(right.place + k * right.pitch, slot % N);
    }
    return sums;
}

Sums added(Sums sums, Sums others) {
    for (int i = 0; i < OWN; ++i) sums.own[i] += others.own[i];
    return sums;
}

void store_sums(Sums sums, int place, int pitch) {
    for (int i = 0; i < OWN; ++i) {
        int slot = lane() * OWN + i;
        pool[place + slot / N * pitch + slot % N / (2 * VECTORS)][slot % N % (2 * VECTORS)] = floatBitsToUint(sums.own[i]);
    }
}
#else
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_cooperative_matrix : require

#define Left coopmat<UNIT_HALF, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define Right coopmat<UNIT_HALF, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define Sums coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define ELEMENT(sums, i) sums[i]

int subgroup() { return int(gl_SubgroupID); }
int lane() { return int(gl_SubgroupInvocationID); }

Sums no_sums() { return Sums(0.0); }

Left load_left(int place, int pitch) {
    Left left;
    coopMatLoad(left, pool, place, pitch, gl_CooperativeMatrixLayoutRowMajor);
    return left;
}

Right load_right(int place, int pitch) {
    Right right;
    coopMatLoad(right, pool, place, pitch, gl_CooperativeMatrixLayoutRowMajor);
    return right;
}

// Whose columns are lines of the pool.
Right load_columns(int place, int pitch) {
    Right right;
    coopMatLoad(right, pool, place, pitch, gl_CooperativeMatrixLayoutColumnMajor);
    return right;
}

Sums multiplied(Left left, Right right, Sums sums) { return coopMatMulAdd(left, right, sums); }

Sums added(Sums sums, Sums others) { return sums + others; }

void store_sums(Sums sums, int place, int pitch) { coopMatStore(sums, pool, place, pitch, gl_CooperativeMatrixLayoutRowMajor); }
#endif
