"""Arguments are bound by position; names that two inputs have are no way to tell them apart."""

import pytest

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
