// Operands of matrix kernels: arrays of vec4, read from uniform texel buffers (TEXELS) or storage buffers.
#ifdef TEXELS
#define READS_VECTORS(slot, name) layout(set = 0, binding = slot) uniform textureBuffer name;
#define VECTOR(name, index) texelFetch(name, index)
#else
#define READS_VECTORS(slot, name) layout(set = 0, binding = slot, std430) readonly buffer name##_Buffer { vec4 name[]; };
#define VECTOR(name, index) name[index]
#endif
