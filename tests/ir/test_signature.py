"""Symbols are found in the sizes of inputs, and sizes that don't fit are told from those that are out of bounds."""

import pytest
import torch

from mobopt.errors import GraphError, InputError
from mobopt.ir.guards import Guards
from mobopt.ir.signature import InputSizes
from mobopt.ir.types import TensorType


def example() -> tuple[Guards, list[TensorType]]:
    guards = Guards()
    sizes = (224, 160, 224)
    names = ("dimension 2 of input 0", "dimension 3 of input 0", "dimension 0 of input 1")
    height, width, rows = (
        guards.symbol("", 1, 512, example=size, origin=name) for size, name in zip(sizes, names, strict=True)
    )
    return guards, [TensorType(torch.float32, (1, 3, height, width)), TensorType(torch.bool, (rows,))]


def test_sizes_with_bounds_become_symbols() -> None:
    guards, types = example()
    assert [str(kind) for kind in types] == ["Float(1, 3, s0, s1)", "Bool(s2)"]
    assert guards.examples == {"s0": 224, "s1": 160, "s2": 224}
    assert types[0].sizes[2] == types[1].sizes[0] and types[0].sizes[3] > 100
    inputs = InputSizes(types, guards)
    assert inputs.symbol_values([(1, 3, 64, 101), (64,)]) == (64, 101, 64)
    for others in ([(1, 3, 64, 101), (65,)], [(1, 4, 64, 101), (64,)], [(3, 64, 101), (64,)], [(1, 3, 64, 100), (64,)]):
        assert inputs.symbol_values(others) is None, "another specialisation is needed"
    with pytest.raises(InputError, match="dimension 3 of input 0 is 513, and its upper bound is 512"):
        inputs.symbol_values([(1, 3, 64, 513), (64,)])


def test_sizes_that_follow_from_others_are_compared() -> None:
    guards = Guards()
    size = guards.symbol(lower=1, upper=64)
    inputs = InputSizes([TensorType(torch.float32, (size,)), TensorType(torch.float32, (size, size * 2 + 1))], guards)
    assert inputs.symbol_values([(3,), (3, 7)]) == (3,)
    assert inputs.symbol_values([(3,), (3, 8)]) is None
    assert inputs.symbol_values([(3,), (4, 7)]) is None


def test_symbols_that_no_input_tells_are_refused() -> None:
    guards = Guards()
    size = guards.symbol(lower=1, upper=64)
    with pytest.raises(GraphError, match="no input has s0"):
        InputSizes([TensorType(torch.float32, (size + 1,))], guards)


def test_an_example_out_of_its_bounds_is_refused() -> None:
    with pytest.raises(InputError, match="dimension 1 of input 0 is 3, and its upper bound is 2"):
        Guards().symbol("", 1, 2, example=3, origin="dimension 1 of input 0")
