// A kernel that needs no barrier between it and the dispatches before it: it starts when as many workgroups have arrived as there are in
// those, and then arrives itself. Only where workgroups start in the order of dispatches: otherwise those that wait could keep the
// others from starting. They give up in the end: the host computes anew, with barriers, if anything was overdue.
#undef main

layout(set = 1, binding = 0, std430) buffer Progress { uint arrived; }; // zero before and after each run
layout(set = 1, binding = 1, std430) buffer Lateness { uint overdue; };

const uint MOST_POLLS = 1u << 20;
const uint GIVEN_UP = 1u << 31; // more than anybody waits for

// Of a loop between two polls, for each workgroup that may poll: hundreds at once keep those that arrive from the counter.
const float TURNS = 0.1;

uint arrived_first = 0u; // when the kernel began; of the first invocation

// Whether the workgroup has waited in vain; four words, as matrices in shared memory must lie on whole 16 bytes. _CHAIN_SHARED_BYTES in
// runtimes/vulkan/engine/device_info.py.
shared uint given_up[4];

uint arrived_now() { return atomicLoad(arrived, gl_ScopeDevice, 0, gl_SemanticsRelaxed); }

// What the workgroup has written is available to its first invocation, and the other way round.
void meet() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
}

// How often others have arrived, once that is `wanted` or more, or there were too many polls. `count` is what is known of it.
uint arrivals_from(uint wanted, uint count) {
    uint turns = uint(TURNS * float(gl_NumWorkGroups.x * gl_NumWorkGroups.y * gl_NumWorkGroups.z));
    uint idle = arrivals_in_all;
    for (uint polls = 0u; count < wanted && polls < MOST_POLLS; ++polls) {
        [[dont_unroll]] for (uint i = 0u; i < turns; ++i) idle = idle * 1664525u + 1013904223u;
        if (idle == 0u) ++polls; // or the turns would be left out
        count = arrived_now();
    }
    return count;
}

// The fence empties the cache of this core, which takes as long as a load, so it isn't the last thing: what was read into that cache after
// the fence, while the last arrivals were waited for, is nothing that the kernel reads (Link, plan_chain in engine/chains.py), and what it
// reads was in memory before those arrivals were. Such order is more than the memory model promises, and what these devices do.
// Not under a condition that a constant decides, though few wait for nothing: then NVIDIA's compiler keeps arrays of some kernels in local
// memory, and a dispatch that needs any starts late (6 us, an H100).
//
// The barrier in the end doesn't keep loads behind it: of what is `readonly`, NVIDIA's compiler (580.159) moved some before it, in products
// with weights of 8 bits, so that all but the first subgroup read what was there before. No compiler knows that what comes from shared
// memory is zero, so an index that has it as a part isn't known before. Without `readonly`, ResNet50 took twice as long; with a sum for
// each index of long loops, a ViT took a tenth longer, so there the bases of the indices have it.
void wait_for_operands() {
    if (gl_LocalInvocationIndex == 0) {
        uint count = arrivals_from(arrivals_settled, arrived_first);
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
        count = arrivals_from(arrivals_before, count);
        given_up[0] = uint(count < arrivals_before);
        if (count < arrivals_before) {
            overdue = 1u;
            atomicOr(arrived, GIVEN_UP, gl_ScopeDevice, 0, gl_SemanticsRelaxed);
        }
    }
    meet();
    after_wait = int(given_up[0] >> 1);
}

void arrive() {
    meet();
    if (arrivals_in_all != 0u && gl_LocalInvocationIndex == 0) {
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease | gl_SemanticsMakeAvailable);
        if (atomicAdd(arrived, 1u, gl_ScopeDevice, 0, gl_SemanticsRelaxed) + 1u == arrivals_in_all)
            atomicStore(arrived, 0u, gl_ScopeDevice, 0, gl_SemanticsRelaxed);
    }
}

void main() {
    if (gl_LocalInvocationIndex == 0) arrived_first = arrived_now();
#ifndef READS_AHEAD
    wait_for_operands();
#endif
    kernel();
    arrive();
}
