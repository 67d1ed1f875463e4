"""``com.microsoft::GroupQueryAttention`` beside its formula, written out batch by batch, and beside onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onnx import helper

from mobopt.errors import UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

HEADS, SHARED, WIDTH, MOST = 6, 3, 16, 16


def rotated(x: torch.Tensor, places: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """``heads x steps x width``, halves turned against each other."""
    half = cosines.shape[1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = cosines[places], sines[places]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine, rest], -1)


def by_batch(given: dict[str, torch.Tensor], lengths: list[int], window: int) -> tuple[list[torch.Tensor], ...]:
    """Results, keys and values of each batch, as far as they mean something."""
    results, all_keys, all_values = [], [], []
    for batch, length in enumerate(lengths):
        steps = given["query"].shape[1]
        before = length - steps
        places = torch.arange(before, length)
        q, k, v = (given[name][batch].view(steps, -1, WIDTH).transpose(0, 1) for name in ("query", "key", "value"))
        q, k = (rotated(x, places, given["cos"], given["sin"]) for x in (q, k))
        k = torch.cat([given["past_key"][batch][:, :before], k], 1)
        v = torch.cat([given["past_value"][batch][:, :before], v], 1)
        scores = q @ k.repeat_interleave(HEADS // SHARED, 0).transpose(1, 2) / WIDTH**0.5
        distance = places[:, None] - torch.arange(length)
        hidden = (distance < 0) | ((distance >= window) if window > 0 else torch.zeros_like(distance, dtype=torch.bool))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        result = weights @ v.repeat_interleave(HEADS // SHARED, 0)
        results.append(result.transpose(0, 1).reshape(steps, -1))
        all_keys.append(k)
        all_values.append(v)
    return results, all_keys, all_values


def arguments(steps: int, past: int, batches: int, half: int = WIDTH // 2) -> dict[str, torch.Tensor]:
    return {
        "query": torch.randn(batches, steps, HEADS * WIDTH),
        "key": torch.randn(batches, steps, SHARED * WIDTH),
        "value": torch.randn(batches, steps, SHARED * WIDTH),
        "past_key": torch.randn(batches, SHARED, past, WIDTH),
        "past_value": torch.randn(batches, SHARED, past, WIDTH),
        "lengths": torch.full((batches,), past + steps - 1, dtype=torch.int32),
        "total": torch.tensor(past + steps, dtype=torch.int32),
        "cos": torch.randn(MOST, half),
        "sin": torch.randn(MOST, half),
    }


def model(given: dict[str, torch.Tensor], open_sizes: bool = False, **attributes: Any) -> Any:
    node = helper.make_node(
        "GroupQueryAttention",
        list(given),
        ["y", "keys", "values"],
        domain="com.microsoft",
        **{"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1, **attributes},
    )
    kinds = {torch.float32: 1, torch.int32: 6}
    inputs = [
        helper.make_tensor_value_info(
            name,
            kinds[item.dtype],
            [None] * (item.dim() - 1) + list(item.shape[-1:]) if open_sizes else list(item.shape),
        )
        for name, item in given.items()
    ]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ("y", "keys", "values")]
    graph = helper.make_graph([node], "grouped", inputs, outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def assert_right(found: Any, given: dict[str, torch.Tensor], lengths: list[int], window: int = -1) -> None:
    results, keys, values = by_batch(given, lengths, window)
    for batch, length in enumerate(lengths):
        torch.testing.assert_close(found[0][batch], results[batch], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1][batch][:, :length], keys[batch])
        torch.testing.assert_close(found[2][batch][:, :length], values[batch])


@pytest.mark.parametrize(("steps", "past", "window"), [(5, 0, -1), (1, 7, -1), (3, 4, -1), (3, 4, 3)])
@pytest.mark.parametrize("half", [8, 3])
def test_batches_of_one_length(steps: int, past: int, window: int, half: int) -> None:
    given = arguments(steps, past, 2, half)
    program = source_of(model(given, local_window_size=window)).program
    assert_right(Interpreter(program).run("forward", list(given.values())), given, [past + steps] * 2, window)


def test_batches_of_several_lengths(device: Device) -> None:
    """The new step of each comes behind what it has; sizes are open."""
    given = arguments(1, 7, 3)
    lengths = [8, 5, 3]
    given["lengths"] = torch.tensor(lengths, dtype=torch.int32) - 1
    program = source_of(model(given, open_sizes=True)).program
    assert_right(Interpreter(program).run("forward", list(given.values())), given, lengths)
    runtime = VulkanProgram(program, device)
    assert_right(runtime.run("forward", list(given.values())), given, lengths)
    assert not runtime.plan_report(list(given.values())).fallbacks
    runtime.close()


def test_queries_keys_and_values_in_one() -> None:
    given = arguments(3, 4, 2)
    program = source_of(model(given)).program
    expected = Interpreter(program).run("forward", list(given.values()))
    packed = {"query": torch.cat([given[name] for name in ("query", "key", "value")], 2)}
    packed.update((name, given[name]) for name in list(given)[3:])
    whole = model(packed)
    names = ["query", "", "", *list(given)[3:]]
    del whole.graph.node[0].input[:]
    whole.graph.node[0].input.extend(names)
    found = Interpreter(source_of(whole).program).run("forward", list(packed.values()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_not_translated_is_named() -> None:
    with pytest.raises(UnsupportedError, match="softcap"):
        source_of(model(arguments(1, 3, 1), softcap=30.0))


@pytest.mark.parametrize(("steps", "past", "window"), [(5, 0, -1), (1, 7, -1), (3, 4, 3)])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_it_is_as_in_onnxruntime(steps: int, past: int, window: int, interleaved: int) -> None:
    runtime = pytest.importorskip("onnxruntime")
    given = arguments(steps, past, 2 if steps == 1 or not past else 1, WIDTH // 2)
    proto = model(given, local_window_size=window, rotary_interleaved=interleaved)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {name: item.numpy() for name, item in given.items()})
    found = Interpreter(source_of(proto).program).run("forward", list(given.values()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-4, atol=1e-5)
