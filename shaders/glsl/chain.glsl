// What stands before a kernel that waits for earlier dispatches by a counter: see chain_end.glsl, which stands after it.
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
// Tensors are written and read by dispatches with no barrier between them, so accesses take part in the order that fences make.
#define EXCHANGED nonprivate
// After the push constants of the kernel: see Link in runtimes/vulkan/engine/chains.py.
#define CHAIN_FIELDS layout(offset = 128) uint arrivals_before; layout(offset = 132) uint arrivals_in_all;
#define main kernel
