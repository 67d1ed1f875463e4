// This invocation's place in its workgroup, which lies along x. lavapipe of Mesa 25 divides for each lane to find gl_LocalInvocationID,
// while it counts subgroups; those of CPU drivers are filled in order.
#ifdef TEXELS
#extension GL_KHR_shader_subgroup_basic : require
int local_index() { return int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID); }
#else
int local_index() { return int(gl_LocalInvocationID.x); }
#endif
