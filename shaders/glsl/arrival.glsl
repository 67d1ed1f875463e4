// How workgroups that share a block find which of them is the last to arrive, as in CUDA's sample threadFenceReduction. The shader that
// includes this says which binding ARRIVALS is, and which element of shared memory, LAST, may be overwritten then.

// How many of a block's workgroups have arrived; zero before and after each dispatch.
layout(set = 0, binding = ARRIVALS, std430) coherent buffer Arrivals { int arrivals[]; };

// Whether all `parts` workgroups of this block have arrived; what they wrote is visible then.
bool is_last(int block, int parts) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        memoryBarrierBuffer(); // also for what the others have written
        bool last = atomicAdd(arrivals[block], 1) == parts - 1;
        if (last) atomicExchange(arrivals[block], 0);
        memoryBarrierBuffer();
        LAST = last ? 1.0 : 0.0;
    }
    barrier();
    memoryBarrierBuffer();
    return LAST > 0.0;
}
