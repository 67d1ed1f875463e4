#!/bin/sh
# Build the Vulkan kernels of PyTorch 1.13.1 as a library that Debian 12's python3-torch 1.13.1 loads: build_1_13.sh FOLDER.
# Run inside Debian 12, with: python3-torch libtorch-dev python3-yaml g++ make glslc libvulkan-dev xz-utils
# FOLDER holds pytorch_1.13.1+dfsg.orig.tar.xz ("apt-get source --download-only --tar-only pytorch", with deb-src lines) and
# vk_mem_alloc.h of Vulkan Memory Allocator 3 (Debian 13's libvulkan-memory-allocator-dev).
set -eu
cd "$1"
mkdir -p source build/ATen/native/utils build/ATen/vulkan build/include
tar -xJf pytorch_1.13.1+dfsg.orig.tar.xz -C source --strip-components=1
aten=source/aten/src/ATen
cp -r $aten/native/vulkan build/ATen/native/
cp $aten/native/utils/ParamUtils.h build/ATen/native/utils/
cp $aten/vulkan/Context.* build/ATen/vulkan/
cp vk_mem_alloc.h build/include/
(cd source && PYTHONPATH=. python3 tools/gen_vulkan_spv.py --glsl-path aten/src/ATen/native/vulkan/glsl \
    --output-path ../build/ATen/native/vulkan --glslc-path="$(command -v glslc)" --tmp-dir-path=../spirv --env format=rgba32f)
# The stock library routes copies to kernels that it was built with; a kernel for the dispatch key takes precedence.
cat > build/ATen/native/vulkan/CopyKernel.cpp <<'CPP'
#include <ATen/native/vulkan/ops/Copy.h>
#include <torch/library.h>
static at::Tensor& copy_kernel(at::Tensor& self, const at::Tensor& source, bool) {
  return at::native::vulkan::ops::copy_(self, source);
}
TORCH_LIBRARY_IMPL(aten, Vulkan, m) { m.impl("copy_", TORCH_FN(copy_kernel)); }
CPP
cat > Makefile <<'MAKE'
SOURCES := $(shell find build -name '*.cpp')
libvulkan_kernels.so: $(SOURCES:.cpp=.o)
	g++ -shared -o $@ $^ -lvulkan -ltorch_cpu -lc10 -ltorch
%.o: %.cpp
	g++ -std=c++17 -O1 -fPIC -w -DUSE_VULKAN_API -Ibuild -Ibuild/include -I/usr/include/torch/csrc/api/include -c $< -o $@
MAKE
make -j"$(nproc)"
