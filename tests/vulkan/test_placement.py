"""Views, copies, concatenation, creation and indexing: operators that move elements and compute nothing."""

from __future__ import annotations

import pytest
import torch
from harness import check_op, make_call, tensors_in
from hypothesis import given
from hypothesis import strategies as st
from sampling import sampled

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, channels_last_strides
from mobopt.runtimes.vulkan.kernels.geometry import merged, view_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower

load_lowerings()

X = torch.randn(2, 5, 13, 11)
FEATURES = torch.randn(1, 16, 6, 6)

CALLS = [
    ("cat", ([X, X * 2, X[:, :1]], 1)),
    ("cat", ([FEATURES, FEATURES[:, :8]], 1)),
    ("cat", ([X, X], -1)),
    ("cat", ([torch.arange(3), torch.arange(4)], 0)),
    ("cat", ([torch.randn(0), torch.randn(2, 3)], 0)),
    ("cat", ([torch.arange(3), torch.randn(2)], 0)),
    ("cat", ([X], 1)),
    ("stack", ([X, X], 2)),
    ("stack", ([torch.tensor(1.0), torch.tensor(2.0)], 0)),
    ("hstack", ([torch.randn(3), torch.randn(2)],)),
    ("vstack", ([torch.randn(3), torch.randn(3)],)),
    ("flip", (X, [1, 3])),
    ("roll", (X, [3, -1], [1, 2])),
    ("roll", (X, [7], [])),
    ("repeat", (X, [2, 1, 2, 1])),
    ("repeat", (torch.randn(2, 3), [2, 1, 2, 1])),
    ("tile", (X, [2, 3])),
    ("repeat_interleave.self_int", (X, 2, 1)),
    ("repeat_interleave.self_int", (X, 2)),
    ("pixel_shuffle", (FEATURES, 2)),
    ("pixel_shuffle", (torch.randn(2, 27, 3, 5), 3)),
    ("pixel_unshuffle", (FEATURES, 2)),
    ("channel_shuffle", (FEATURES, 4)),
    ("index_select", (X, 1, torch.tensor([0, 3, 3, 0]))),
    ("gather", (X, 2, torch.randint(0, 13, (1, 3, 4, 5)))),
    ("index.Tensor", (X, [None, torch.tensor([0, -1, 2])])),
    ("index.Tensor", (X, [torch.tensor([0, 0]), None, torch.tensor([0, -1])])),
    ("index.Tensor", (X, [None, torch.tensor([0, -1, 2]), torch.tensor([[0], [1]])])),
    ("embedding", (torch.randn(11, 24), torch.randint(0, 11, (2, 5)))),
    ("embedding", (torch.randn(11, 7), torch.randint(0, 11, (5,)))),
    ("prelu", (X, torch.rand(5))),
    ("prelu", (X, torch.rand(1))),
    ("glu", (FEATURES, 1)),
    ("tril", (torch.randn(2, 5, 7), 1)),
    ("triu", (torch.randn(5, 5),)),
    ("zeros", ([2, 3],)),
    ("ones", ([2, 3, 4, 5],)),
    ("full", ([3], 2.5)),
    ("full_like", (X, 3.0)),
    ("new_zeros", (X, [3, 3])),
    ("arange", (7,)),
    ("arange.start_step", (1, 9, 2)),
    ("linspace", (0, 1, 5)),
    ("eye", (3,)),
    ("clone", (X,)),
    ("contiguous", (X.transpose(1, 2),)),
    ("to.dtype", (X, torch.int64)),
    ("to.dtype", (torch.arange(300), torch.uint8)),
    ("to.dtype", (X, torch.bool)),
    ("reshape", (X.transpose(1, 2), [13, 2, 55])),
]

VIEWS = [
    ("split.Tensor", (X, 3, 2)),
    ("split_with_sizes", (X, [1, 4], 1)),
    ("chunk", (X, 2, 1)),
    ("unbind.int", (X, 1)),
    ("permute", (X, [3, 1, 0, 2])),
    ("transpose.int", (X, 1, -1)),
    ("t", (torch.randn(3, 4),)),
    ("movedim.int", (X, 0, 2)),
    ("unsqueeze", (X, -1)),
    ("unsqueeze", (X, 0)),
    ("squeeze", (torch.randn(1, 3, 1),)),
    ("squeeze.dim", (torch.randn(1, 3, 1), -1)),
    ("squeeze.dims", (torch.randn(1, 3, 1), [0, 1])),
    ("expand", (torch.randn(3, 1), [2, 3, 4])),
    ("expand_as", (torch.randn(3, 1), torch.randn(2, 3, 4))),
    ("select.int", (X, -1, -2)),
    ("slice.Tensor", (X, 1, 1, -1, 2)),
    ("slice.Tensor", (X, 2, -5)),
    ("narrow", (X, 1, 1, 2)),
    ("diagonal", (X, 1, 2, 3)),
    ("unfold", (X, 2, 3, 2)),
    ("dropout", (X, 0.5, False)),
    ("detach", (X,)),
    ("view", (X.flatten(), [10, 143])),
    ("flatten.using_ints", (torch.randn(2, 7, 1, 1), 1)),
]


NUMBERED = {f"{op}-{n}": (op, args) for n, (op, args) in enumerate(CALLS + VIEWS)}


@pytest.mark.parametrize("name", sampled(NUMBERED, one_in=2))
def test_operators(any_device, name):
    op, args = NUMBERED[name]
    check_op(any_device, f"aten::{op}", *args)


@pytest.mark.parametrize("op, args", VIEWS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(VIEWS)])
def test_views_dispatch_nothing(device, op, args):
    from harness import torch_operator

    plan = Plan(device.info)
    refs: dict[int, Value] = {}
    call = make_call(f"aten::{op}", args, {}, refs, torch_operator(f"aten::{op}")(*args))
    for tensor in tensors_in(args):
        plan.place(refs[id(tensor)], plan.empty(tensor.shape))
    lower(plan, call)
    assert plan.stream.operations == []


def test_flatten_of_a_padded_pixel_is_free(device):
    plan = Plan(device.info)
    x, y = Value.of_tensor(torch.float32, (3, 5, 1, 1)), Value.of_tensor(torch.float32, (3, 5))
    plan.place(x, plan.empty((3, 5, 1, 1)))
    result = lower(plan, make_flatten(x, y))
    assert isinstance(result, DeviceTensor)
    assert (result.strides, plan.stream.operations) == ((8, 1), [])


def make_flatten(x: Value, y: Value):
    from mobopt.ir import Node

    return Node.call("aten::flatten.using_ints", (x, 1, -1), (y,))


def test_shuffle_by_views_is_one_copy(device):
    """ShuffleNet's view, transpose, contiguous, view, once the copy in the middle is elided."""
    from mobopt.ir import Node

    plan = Plan(device.info)
    a, b, c, d = (
        Value.of_tensor(torch.float32, sizes)
        for sizes in ((1, 16, 6, 6), (1, 2, 8, 6, 6), (1, 8, 2, 6, 6), (1, 16, 6, 6))
    )
    plan.place(a, DeviceTensor(Storage(16 * 36 * 4), torch.float32, a.sizes, channels_last_strides(a.sizes)))
    for call in (
        Node.call("aten::view", (a, list(b.sizes)), (b,)),
        Node.call("aten::transpose.int", (b, 1, 2), (c,)),
        Node.call("aten::reshape", (c, list(d.sizes)), (d,)),
    ):
        result = lower(plan, call)
        assert isinstance(result, DeviceTensor)
        plan.place(call.output, result)
    assert len(plan.stream.operations) == 1
    assert plan.tensor(d).channel_pitch == 16


@given(st.data())
def test_view_strides_agree_with_torch(data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    x = torch.arange(torch.Size(sizes).numel()).reshape(sizes).permute(order)
    if data.draw(st.booleans()):
        x = x[..., ::2]
    new = data.draw(
        st.sampled_from([x.flatten().shape, (*x.shape, 1), (1, *x.shape), (x.shape[0], -1), (-1, x.shape[-1])])
    )
    wanted = x.reshape(new)
    strides = view_strides(x.shape, x.stride(), wanted.shape)
    try:
        x.view(wanted.shape)
    except RuntimeError:
        assert strides is None
    else:
        assert strides is not None
        assert torch.equal(torch.as_strided(x, wanted.shape, strides), wanted)


@given(st.data())
def test_merged_nests_visit_the_same_places(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    base = torch.empty([2 * size for size in sizes])
    order = data.draw(st.permutations(range(len(sizes))))
    tensors = [
        torch.empty(sizes).stride(),
        base.permute(order)[tuple(slice(0, 2 * size, 2) for size in sizes)].stride() if sizes else (),
    ]
    nest = merged(sizes, tensors)
    assert nest.rank <= max(len(sizes), 1)

    def places(shape, strides):
        found = torch.zeros((), dtype=torch.int64)
        for size, stride in zip(shape, strides, strict=True):
            found = found[..., None] + torch.arange(size) * stride
        return found.flatten()

    before = sorted(zip(*(places(sizes, each).tolist() for each in tensors), strict=True))
    after = sorted(zip(*(places(nest.sizes, each).tolist() for each in nest.strides), strict=True))
    assert before == after
