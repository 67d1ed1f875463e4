"""Attention beside torch's: on the products and softmax of CPU drivers, and on the kernel of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device
from harness import check_op
from test_loop_bounds import lowered

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage
from mobopt.runtimes.vulkan.kernels import attention_kernel, attention_row_kernel
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionBlock, AttentionOperands
from mobopt.runtimes.vulkan.kernels.attention_row_kernel import AttentionRow, row_of
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR
from mobopt.runtimes.vulkan.lowerings import attention as lowering
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()
OP = "aten::scaled_dot_product_attention"


@pytest.fixture(params=["cpu", "discrete"])
def either(request: pytest.FixtureRequest, device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device as what it is, and taken for a GPU."""
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind=request.param))
    return device


def operands(lead: tuple[int, ...], queries: int, keys: int, head: int, width: int | None = None) -> list[torch.Tensor]:
    return [torch.randn(*lead, length, size) for length, size in ((queries, head), (keys, head), (keys, width or head))]


def _cases() -> Iterator[tuple[list[torch.Tensor], dict[str, Any]]]:
    r = torch.randn
    yield operands((2, 3), 17, 13, 8), {}
    yield operands((3,), 11, 37, 5, 7), {"scale": 0.3}
    yield operands((), 13, 11, 7), {"is_causal": True}
    yield operands((1, 2), 67, 67, 64), {"is_causal": True}
    yield operands((1, 2), 13, 67, 12), {"is_causal": True}
    yield operands((2, 1, 3), 19, 23, 130, 67), {"attn_mask": r(2, 1, 1, 19, 23)}
    yield operands((2, 3), 19, 41, 16), {"attn_mask": r(2, 1, 1, 41) > 0}
    yield operands((2, 3), 19, 41, 16), {"attn_mask": r(3, 19, 41) > 0.5}
    yield operands((2, 3), 19, 40, 16), {"attn_mask": r(19, 1)}
    yield operands((2, 3), 19, 40, 16), {"attn_mask": r(3, 19, 41)[..., 1:].tril()}
    yield operands((5, 3), 19, 19, 300), {}
    mask = torch.ones(19, 23, dtype=torch.bool)
    mask[3] = False  # torch gives zeros where no key counts
    yield operands((1, 2), 19, 23, 16), {"attn_mask": mask}
    packed = r(2, 19, 3, 5, 8)  # as models split one linear layer
    yield [packed[:, :, index].transpose(1, 2) for index in range(3)], {}
    yield [r(2, 6, 19, 8), r(2, 2, 13, 8), r(2, 2, 13, 8)], {"enable_gqa": True, "attn_mask": r(2, 6, 19, 13)}
    yield [r(6, 9, 8), r(3, 13, 8), r(3, 13, 8)], {"enable_gqa": True, "attn_mask": r(9, 13)}
    yield [r(2, 3, 19, 8), r(2, 1, 13, 8), r(1, 3, 13, 8)], {}
    yield [r(2, 3, 9, 8), r(2, 3, 0, 8), r(2, 3, 0, 8)], {}
    spread = [r(19, 5, 7, 3, 2, 8).permute(4, 1, 3, 2, 0, 5) for _ in range(3)]
    yield spread, {"attn_mask": r(2, 5, 1, 7, 1, 19)}
    yield operands((2, 3), 3, 71, 8), {"is_causal": False}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.sweep)])
def test_attention(either: Any, every: int) -> None:
    for tensors, options in list(_cases())[5::every] if every > 1 else _cases():
        check_op(either, OP, *tensors, **options, relative=2e-5, device_layout=None if every == 1 else False)


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_halves(either: Any, few: bool) -> None:
    for dtype, relative in ((torch.float16, 3e-3), (torch.bfloat16, 2e-2)):
        tensors = [tensor.to(dtype) for tensor in operands((2, 3), 19, 23, 9)]
        for mask in (None, torch.randn(19, 23).to(dtype), torch.randn(19, 23) > 0):
            if not few or (mask is not None and mask.dtype == torch.float16):
                check_op(either, OP, *tensors, attn_mask=mask, relative=relative, device_layout=False)


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.sweep)])
def test_some_queries_and_keys_at_a_time(either: Any, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(lowering, "_MOST_SCORES", 64)
    monkeypatch.setattr(lowering, "_SCORES", 64)
    monkeypatch.setattr(lowering, "_LEAST_QUERIES", 8)
    monkeypatch.setattr(attention_kernel, "_MOST_ITERATIONS", 64)
    for tensors, options in list(_cases())[3::every] if every > 1 else _cases():
        check_op(either, OP, *tensors, **options, relative=2e-5, device_layout=False)


@pytest.mark.parametrize("queries, keys", [(67, 67), (71, 13)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_wide_heads_are_products_where_matrix_units_take_those(
    device: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, queries: int, keys: int
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    monkeypatch.setattr(lowering, "splits", lambda info: True)
    monkeypatch.setattr(lowering, "multiplies", lambda info, elements: elements == torch.float16)
    monkeypatch.setattr(lowering, "attend", None)
    for lead, options in (((2, 3), {}), ((1, 2), {"is_causal": True}), ((2,), {"attn_mask": torch.randn(keys) > 0})):
        tensors = [tensor.to(dtype) for tensor in operands(lead, queries, keys, 160, 136)]
        relative = 2e-5 if dtype == torch.float32 else 3e-3
        check_op(device, OP, *tensors, **options, relative=relative, device_layout=False)


def test_which_attention_an_h200_computes_by_products() -> None:
    for sizes, products in (
        ((8, 256, 160), True),
        ((1, 4096, 512), True),
        ((8, 4096, 128), False),
        ((8, 1, 256), False),
    ):
        tensors = [torch.empty(1, *sizes, device="meta") for _ in range(3)]
        shaders = [each.shader for each in lowered(known_device("nvidia_h200"), OP.removeprefix("aten::"), (*tensors,))]
        assert ("softmax" in shaders) == products, (sizes, shaders)


BLOCKS = [
    AttentionBlock(128, 8, 1, 16, 2),
    AttentionBlock(128, 4, 2, 16, 2),
    AttentionBlock(128, 2, 1, 16, 2, parts=2),
    AttentionBlock(64, 8, 2, 8, 1),
    AttentionBlock(64, 4, 1, 16, 4),
    AttentionBlock(64, 2, 2, 16, 1, parts=3),
    AttentionBlock(32, 1, 2, 8, 8),
]


@pytest.mark.sweep
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks(device: Any, monkeypatch: pytest.MonkeyPatch, block: AttentionBlock) -> None:
    """Tiles of every kind, of odd sizes, with results wider than a workgroup computes and keys divided."""
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    if not block.shared_bytes <= device.info.limits.max_compute_shared_memory_size:
        pytest.skip("the block needs more shared memory")
    monkeypatch.setattr(attention_kernel, "choose_block", lambda *_: block)
    check_op(device, OP, *operands((3,), 137, 131, 67, 71), relative=2e-5, device_layout=False)
    check_op(device, OP, *operands((2,), 131, 71, 36), is_causal=True, relative=2e-5, device_layout=False)
    mask = torch.randn(2, 1, 67) > 0
    check_op(device, OP, *operands((2,), 71, 67, 8), attn_mask=mask, relative=2e-5, device_layout=False)


def test_rows_whose_keys_all_have_large_negative_masks(either: Any) -> None:
    """They are means of all values, as for torch: the masks are finite."""
    mask = torch.zeros(7, 11)
    mask[1], mask[2], mask[3, 4:] = torch.finfo(torch.float32).min, -1e9, torch.finfo(torch.float32).min
    check_op(either, OP, *operands((2,), 7, 11, 8), attn_mask=mask, relative=2e-5, device_layout=False)


def test_a_cache_is_divided_among_workgroups(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single queries whose heads share keys are the queries of one workgroup, of which several divide the keys."""
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=64))
    chosen: list[AttentionBlock] = []

    def choose(*args: Any) -> AttentionBlock:
        chosen.append(choose_block(*args))
        return chosen[-1]

    choose_block = attention_kernel.choose_block
    monkeypatch.setattr(attention_kernel, "choose_block", choose)
    r = torch.randn
    check_op(device, OP, r(2, 20, 1, 16), r(2, 2, 523, 16), r(2, 2, 523, 16), attn_mask=r(2, 1, 1, 523),
             enable_gqa=True, relative=2e-5, device_layout=False)  # fmt: skip
    assert chosen[0].parts == 8 and chosen[0].queries >= 8


def _few_queries() -> Iterator[tuple[list[torch.Tensor], dict[str, Any]]]:
    r = torch.randn
    yield operands((2, 3), 1, 523, 64), {}
    yield operands((3,), 1, 67, 5, 7), {"scale": -0.3}
    yield operands((), 1, 1, 3), {}
    yield operands((1, 2), 3, 131, 128, 37), {"attn_mask": r(3, 131)}
    yield operands((2, 2), 4, 64, 12), {"attn_mask": r(2, 1, 4, 64) > 0}
    yield operands((2, 3), 1, 401, 96), {"attn_mask": torch.arange(401)[None] < 5}
    yield operands((1, 2), 1, 65, 16), {"attn_mask": torch.zeros(1, 65, dtype=torch.bool)}
    yield [r(2, 6, 1, 16), r(2, 2, 523, 16), r(2, 2, 523, 16)], {"enable_gqa": True, "attn_mask": r(2, 1, 1, 523)}
    packed = r(1, 70, 3, 5, 8)
    yield [packed[:, :2, 0].transpose(1, 2), packed[:, :, 1].transpose(1, 2), packed[:, :, 2].transpose(1, 2)], {}


@pytest.mark.parametrize("cores", [1, 64])
def test_few_queries(device: Any, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Of decoders: keys and values go to registers, those of one query to several workgroups where cores are many."""
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=cores))
    monkeypatch.setattr(lowering, "attend", None)
    for tensors, options in _few_queries():
        check_op(device, OP, *tensors, **options, relative=2e-5, device_layout=False)


def test_few_queries_on_small_devices(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Vulkan promises at least, 128 invocations and 16 KiB of shared memory, is enough, with fewer queries to a
    workgroup."""
    torch.manual_seed(0)
    limits = replace(
        device.info.limits, max_compute_work_group_invocations=128, max_compute_shared_memory_size=16 * 1024
    )
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=64, limits=limits))
    monkeypatch.setattr(lowering, "attend", None)
    r = torch.randn
    for tensors, options in (
        (operands((2,), 7, 131, 128), {"attn_mask": r(7, 131)}),
        (operands((2, 3), 8, 71, 64, 97), {"attn_mask": r(8, 71) > 0}),
        ([r(2, 10, 1, 20), r(2, 2, 67, 20), r(2, 2, 67, 20)], {"enable_gqa": True}),
    ):
        check_op(device, OP, *tensors, **options, relative=2e-5, device_layout=False)


@pytest.mark.parametrize(("invocations", "shared"), [(128, 16 * 1024), (192, 32 * 1024), (1000, 48 * 1024)])
def test_what_a_workgroup_has_fits(invocations: int, shared: int) -> None:
    """All keys, and no more shared memory, invocations or parts to read at once than there may be."""
    info = known_device("nvidia_h200")
    limits = replace(info.limits, max_compute_work_group_invocations=invocations, max_compute_shared_memory_size=shared)
    info, storage = replace(info, limits=limits), Storage(4)
    lengths = (64, 64), (128, 37), (5, 128), (3, 1)
    for batches, queries, keys, (head, width) in itertools.product((1, 4, 32), (1, 3, 8), (1, 67, 512, 9001), lengths):
        query, key, value, result = (
            DeviceTensor(storage, torch.float32, (1, 1, batches, rows, row), (0,) * 5)
            for rows, row in ((queries, head), (keys, head), (keys, width), (queries, width))
        )
        row = row_of(info, AttentionOperands(query, key, value, None, result))
        assert row.shared_bytes(head, width) <= shared and row.invocations <= invocations
        assert row.invocations == row.slices * row.rows * row.lanes == row.sharers * row.keys
        assert row.slices >= 1 and row.sharers <= row.lanes and row.lanes * VECTOR >= width
        assert row.keys * row.turns * row.parts >= keys > row.keys * row.turns * (row.parts - 1)
        assert row.parts <= 8 * row.slices


def test_large_workgroups_divide_long_caches(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=8))
    monkeypatch.setattr(lowering, "attend", None)
    chosen: list[AttentionRow] = []

    def choose(*args: Any) -> AttentionRow:
        chosen.append(row_of(*args))
        return chosen[-1]

    monkeypatch.setattr(attention_row_kernel, "row_of", choose)
    usual, large = device.info.workgroup(256), device.info.workgroup(1024)
    for heads, keys, size, invocations in (
        (3, 523, 12, usual),
        (3, 1031, 12, large),
        (4, 2311, 64, large),
        (3, 1031, 68, usual),
    ):
        check_op(device, OP, *operands((heads,), 1, keys, size), relative=2e-5, device_layout=False)
        assert chosen[-1].invocations == invocations


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_queries_of_halves(device: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=64))
    monkeypatch.setattr(lowering, "attend", None)
    tensors = [tensor.to(dtype) for tensor in operands((3,), 1, 131, 40)]
    relative = 3e-3 if dtype == torch.float16 else 2e-2
    check_op(device, OP, *tensors, attn_mask=torch.randn(1, 131).to(dtype), relative=relative, device_layout=False)


def test_few_queries_with_infinities_and_nan(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=64))
    query, key, value = operands((4,), 1, 137, 8)
    mask = torch.zeros(4, 1, 137)
    mask[0, 0, 35], mask[1, 0, 1] = torch.inf, torch.nan
    mask[2, 0, :136], mask[3] = -torch.inf, torch.finfo(torch.float32).min
    check_op(device, OP, query, key, value, attn_mask=mask, relative=2e-5, device_layout=False)


@pytest.mark.sweep
def test_infinities_and_nan(either: Any) -> None:
    query, key, value = operands((2,), 13, 37, 8)
    mask = torch.zeros(13, 37)
    mask[2, 35] = torch.inf
    mask[3, 1] = torch.nan
    mask[4, :36] = -torch.inf
    query[:, 6] *= 1e4
    check_op(either, OP, query, key, value, attn_mask=mask, device_layout=False)


def test_long_sequences_keep_no_matrix_of_scores(device: Any) -> None:
    for kind in ("cpu", "discrete"):
        for queries, keys in ((1024, 1024), (16, 20_000)):
            assert largest_storage(kind, (1, 8, queries, 16), (1, 8, keys, 16)) < 2**25


def largest_storage(kind: str, queries: tuple[int, ...], keys: tuple[int, ...]) -> int:
    """Bytes of the largest storage of a call."""
    from test_loop_bounds import lowered

    meta = [torch.empty(sizes, device="meta") for sizes in (queries, keys, keys)]
    dispatches = lowered(kind, "scaled_dot_product_attention", (*meta, None, 0.0, False))
    return max(binding.storage.nbytes for dispatch in dispatches for binding in dispatch.bindings)


def test_dropout_is_not_computed() -> None:
    x = Value.of_tensor(torch.float32, (1, 2, 3, 4))
    call = Node.call(OP, (x, x, x, None, 0.1, False, None, False), (Value.of_tensor(torch.float32, (1, 2, 3, 4)),))
    assert "dropout" in str(why_unsupported(call))
