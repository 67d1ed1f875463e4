"""Attention of com.microsoft whose queries, keys and values are packed, which onnxruntime has on GPUs alone."""

from __future__ import annotations

import pytest
import torch
from onnx import helper

from mobopt.errors import UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.ir import Program
from mobopt.runtimes.cpu import Interpreter


def packed_heads(*sizes: tuple[int, ...] | None) -> Program:
    """An attention of inputs of these sizes; None for one that is left out."""
    given = {f"i{number}": item for number, item in enumerate(sizes) if item is not None}
    names = [f"i{number}" if item is not None else "" for number, item in enumerate(sizes)]
    node = helper.make_node("MultiHeadAttention", names, ["y"], domain="com.microsoft", num_heads=2)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, 1, item) for name, item in given.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program


@pytest.mark.parametrize("count", [2, 3])
def test_packed_attention(count: int) -> None:
    q, k, v = (torch.randn(2, steps, 2, 5) for steps in ((7, 7, 7) if count == 3 else (3, 7, 7)))
    given = [torch.stack([q, k, v], 3)] if count == 3 else [q.flatten(2), torch.stack([k, v], 3)]
    program = packed_heads(*(tuple(item.shape) for item in given))
    heads = (item.transpose(1, 2) for item in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(Interpreter(program).run("forward", given), expected)


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="neither keys and values nor"):
        packed_heads((2, 3, 10))
    with pytest.raises(UnsupportedError, match="a bias for"):
        packed_heads((2, 3, 2, 3, 5), None, None, (30,))
