"""Plans for devices that are not here: kernels are chosen by what is known of a device, and obey its limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from device_infos import DEVICES, device_info, known_device, lavapipe
from model_zoo import ZOO
from sampling import sampled
from spirv_resources import resources

from mobopt import shaders
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import OWN_RUNTIME, Settings
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.limits import check_limits
from mobopt.runtimes.vulkan.engine.pipelines import pipeline_key
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs, profiles
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel, depthwise_division
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.shaders.pruning import pruned

NETS = ("mobilenet_v2", "unet_bilinear", "attention")

# Rows, inner vec4s and columns of a product; then the block's rows and vec4s of columns, those of an invocation, the
# inner block, teams and parts that are chosen for an H200.
H200_PRODUCTS = [
    ((12544, 27, 32), (96, 16, 6, 1, 4, 1, 1)),
    ((12544, 32, 16), (96, 16, 6, 1, 4, 1, 1)),
    ((3136, 144, 24), (32, 8, 4, 1, 16, 8, 1)),
    ((784, 32, 192), (96, 16, 6, 1, 4, 1, 1)),
    ((196, 576, 96), (64, 8, 4, 1, 4, 1, 8)),
    ((49, 960, 320), (64, 8, 4, 1, 4, 1, 8)),
    ((49, 320, 1280), (64, 8, 4, 1, 4, 1, 4)),
    ((1, 1280, 1000), (1, 4, 1, 1, 32, 32, 1)),
    ((1, 512, 1000), (1, 4, 1, 1, 32, 32, 1)),
    ((3136, 576, 64), (96, 32, 6, 2, 4, 1, 4)),
    ((784, 1152, 128), (80, 32, 5, 2, 4, 1, 6)),
    ((196, 2304, 256), (128, 32, 8, 2, 4, 1, 8)),
    ((49, 4608, 512), (64, 16, 8, 1, 8, 2, 8)),
    ((4096, 4096, 4096), (128, 32, 8, 2, 4, 1, 4)),
    ((128, 768, 3072), (128, 32, 8, 2, 4, 1, 4)),
    ((1024, 64, 1024), (128, 32, 8, 2, 4, 1, 1)),
    ((1, 25088, 4096), (1, 4, 1, 1, 32, 32, 8)),
    ((7, 70000, 12), (1, 4, 1, 1, 32, 32, 8)),
]
# Rows of pixels, columns, vec4s of channels and sides of the filter; then the pixels of an invocation, and teams.
H200_DEPTHWISE = [
    ((448, 56, 24, 3), (2, 2, 1)),
    ((112, 14, 168, 5), (2, 2, 1)),
    ((448, 56, 24, 7), (2, 2, 1)),
    ((112, 14, 96, 3), (1, 4, 2)),
    ((56, 7, 288, 5), (1, 4, 3)),
    ((56, 56, 24, 7), (1, 4, 4)),
    ((112, 14, 96, 7), (1, 4, 4)),
    ((14, 14, 96, 3), (1, 4, 3)),
    ((28, 28, 30, 5), (1, 4, 5)),
    ((28, 28, 48, 7), (1, 4, 7)),
    ((448, 56, 24, 11), (1, 4, 6)),
]


@pytest.mark.parametrize(("sizes", "chosen"), H200_PRODUCTS)
def test_products_of_the_device_that_the_costs_were_fitted_to(sizes, chosen):
    rows, inner, columns = sizes
    found = choose_gpu_kernel(known_device("nvidia_h200"), ProductShape(rows, inner, columns, columns))
    block = (found.block_rows, found.block_columns, found.rows, found.columns)
    assert (*block, found.inner_block, found.teams, found.parts) == chosen


@pytest.mark.parametrize(("sizes", "chosen"), H200_DEPTHWISE)
def test_depthwise_convolutions_of_the_device_that_the_costs_were_fitted_to(sizes, chosen):
    rows, columns, vectors, side = sizes
    assert depthwise_division(known_device("nvidia_h200"), rows, columns, vectors, (side, side)) == chosen


@pytest.mark.parametrize("name", DEVICES)
def test_products_fit_every_device(name):
    device = known_device(name)
    for (rows, inner, columns), _ in H200_PRODUCTS:
        shape = ProductShape(rows, inner, columns, columns)
        kernel = choose_gpu_kernel(device, shape)
        assert kernel.fits(device)
        assert kernel.rows * kernel.columns <= device_costs(device).most_sums
        counts = zip(kernel.groups(shape), device.limits.max_compute_work_group_count, strict=True)
        assert all(count <= limit for count, limit in counts)


@pytest.mark.parametrize(
    ("device", "profile", "cores"),
    [
        (known_device("nvidia_h200"), "nvidia", 132),
        (known_device("amd_rx_6800_radv"), "discrete", 60),
        (known_device("intel_iris_xe_anv"), "integrated", 8),
        (known_device("apple_m1_moltenvk"), "integrated", 8),
        (known_device("qualcomm_adreno_650"), "integrated", 8),
        (known_device("arm_mali_g78"), "integrated", 20),
        (known_device("least_vulkan_1_1"), "other", 32),
        (device_info("virtual"), "other", 32),
    ],
)
def test_profiles(device, profile, cores):
    assert (device_costs(device).name, core_count(device)) == (profile, cores)


def test_each_profile_is_some_device_s_and_the_last_everyone_s():
    assert {device_costs(known_device(name)).name for name in DEVICES} == {costs.name for costs in profiles()}
    assert (profiles()[-1].vendors, profiles()[-1].kinds) == ((), ())


def test_the_dearer_a_dispatch_the_fewer_are_made():
    integrated, h200 = known_device("apple_m1_moltenvk"), known_device("nvidia_h200")
    shape = ProductShape(784, 32, 192, 192)
    assert choose_gpu_kernel(integrated, shape).parts == 1
    divided = [sizes for sizes, chosen in H200_PRODUCTS if chosen[-1] > 1]
    assert sum(choose_gpu_kernel(integrated, ProductShape(*sizes, sizes[-1])).parts for sizes in divided) < sum(
        choose_gpu_kernel(h200, ProductShape(*sizes, sizes[-1])).parts for sizes in divided
    )


class _Attention(torch.nn.Module):
    """Normalization, attention and a softmax along columns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.projections = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            projection(self.norm(x)).reshape(1, -1, 4, 8).transpose(1, 2) for projection in self.projections[:3]
        )
        mixed = (queries @ keys.transpose(2, 3) * 8**-0.5).softmax(3) @ values
        return self.projections[3](mixed.transpose(1, 2).reshape(x.shape)).softmax(1).sum(1)


@cache
def segment_of(name: str, size: int = 64) -> Segment:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        if name == "attention":
            model, example = _Attention().eval(), torch.randn(1, 300, 32)
        else:
            model, example = ZOO[name].build(), ZOO[name].example(height=size, width=size)
        traced = torch.jit.trace(model, (example,), check_trace=False)
    program = program_from_script_module(traced)
    run_passes(program, pipeline_for(Settings("vulkan", OWN_RUNTIME)))
    return specialize(program, "forward", [example])


CONSTANTS = {name: ConstantStore() for name in NETS}


@pytest.mark.parametrize(("net", "name"), sampled(product(NETS, DEVICES), one_in=3))
def test_plans_of_networks_obey_the_limits(net, name):
    device = known_device(name)
    device = replace(device, features=device.features | {"device_memory_model"})  # so dispatches may wait by counters
    built = build_stream(segment_of(net), device, CONSTANTS[net])
    assert not built.fallbacks
    check_limits(device, built.stream)
    dispatches = [operation for operation in built.stream.operations if isinstance(operation, Dispatch)]
    assert dispatches
    for dispatch in dispatches:
        limits = device.limits
        needed = resources(shaders.load(dispatch.shader), dispatch.specialization)
        across, down, deep = needed.size
        assert across * down * deep <= limits.max_compute_work_group_invocations, dispatch
        assert all(size <= limit for size, limit in zip(needed.size, limits.max_compute_work_group_size, strict=True))
        assert needed.shared_bytes <= limits.max_compute_shared_memory_size, dispatch
        chained = f"{dispatch.shader}{shaders.CHAINED}"
        if chained in shaders.variants():
            needed = resources(shaders.load(chained), dispatch.specialization)
            assert needed.shared_bytes <= limits.max_compute_shared_memory_size, dispatch
        assert set(shaders.variants()[dispatch.shader].requires) <= device.features


@pytest.mark.parametrize("release", ["22.3.6", "25.0.7"])
def test_a_cold_start_on_lavapipe_compiles_few_pipelines_of_little_code(release: str) -> None:
    """Each takes the driver a quarter of a second; MobileNetV2 had 16, one of them from 350 kB."""
    built = build_stream(segment_of("mobilenet_v2", 224), lavapipe(release), ConstantStore())
    dispatches = [operation for operation in built.stream.operations if isinstance(operation, Dispatch)]
    keys = {pipeline_key(dispatch, ()) for dispatch in dispatches}
    assert len(keys) <= 13
    assert max(len(pruned(shaders.load(key.shader), key.specialization)) for key in keys) <= 25_000
