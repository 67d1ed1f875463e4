"""Arguments are bound by position; names that two inputs have are no way to tell them apart."""

import pytest
import torch

from mobopt.errors import InputError
from mobopt.ir import Program, parse_graph
from mobopt.ir.arguments import bind_arguments

GRAPH = """graph(%self : __torch__.M,
      %x.1 : Tensor,
      %x : Tensor,
      %n : int?):
  return (%x)
"""


def test_inputs_of_one_name() -> None:
    program = Program(methods={"forward": parse_graph(GRAPH)})
    assert bind_arguments(program, "forward", [1, 2], {}) == [1, 2, None]
    assert bind_arguments(program, "forward", [1, 2], {"n": 3}) == [1, 2, 3]
    with pytest.raises(InputError, match="2 inputs named 'x'; give them by position"):
        bind_arguments(program, "forward", [1], {"x": 2})
    with pytest.raises(InputError, match=r"takes 3 inputs .* x missing"):
        bind_arguments(program, "forward", [1], {})
    with pytest.raises(InputError, match="no method 'step'"):
        bind_arguments(program, "step", [1], {})


def test_a_tensor_is_no_list() -> None:
    program = Program(
        {"forward": parse_graph("graph(%self : __torch__.M,\n      %images : Tensor[]):\n  return (%images)\n")}
    )
    with pytest.raises(InputError, match=r"'images' is a list \(Tensor\[\]\), not a tensor: give \[x\]"):
        bind_arguments(program, "forward", [torch.rand(3)], {})
    assert len(bind_arguments(program, "forward", [[torch.rand(3)]], {})) == 1
