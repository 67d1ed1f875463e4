// What stands before a kernel that waits for earlier dispatches by a counter: see chain_end.glsl, which stands after it.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
// Tensors are written and read by dispatches with no barrier between them, so accesses take part in the order that fences make.
#define EXCHANGED nonprivate
// Zero, a part of each index of what is read; see wait_for_operands.
int after_wait = 0;
#include "link_push.glsl"
#define main kernel
// What other dispatches write may be read after it. A variant that reads ahead calls it itself, all invocations together, once.
void wait_for_operands();
