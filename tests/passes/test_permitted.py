"""The allow-list of operators, and what never folds, against torch's own registry and tags."""

import pytest
import torch

from mobopt.ir.schemas import schemas_of
from mobopt.ops.permitted import is_quantized, refusal, refusal_of_language


def _names(namespace: str) -> list[str]:
    return sorted(
        {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{namespace}::")}  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(
    "name",
    [
        "from_file",
        "save",
        "manual_seed",
        "seed",
        "initial_seed",
        "wait",
        "set_data",
        "record_stream",
        "owner",
        "to_here",
    ],
)
def test_what_reaches_beyond_its_arguments(name: str) -> None:
    for schema in schemas_of(f"aten::{name}"):
        assert refusal(schema.qualified_name), schema


@pytest.mark.parametrize("name", ["rpc_sync", "rpc_async", "awaitable", "PythonOp", "TimePoint", "CreateObject"])
def test_what_is_no_part_of_the_language(name: str) -> None:
    assert refusal_of_language(f"prim::{name}")


@pytest.mark.parametrize("namespace", ["profiler", "c10d", "inductor", "quantized", "symm_mem"])
def test_libraries_are_not_known(namespace: str) -> None:
    names = _names(namespace)
    if not names:
        pytest.skip("this torch has none")
    unknown = [name for name in names if not is_quantized(name)]
    assert all("belongs to the library" in refusal(schema.qualified_name) for n in unknown for schema in schemas_of(n))


@pytest.mark.parametrize("name", ["conv2d", "linear", "einsum", "gelu", "pad", "stft", "lstm", "format", "append"])
def test_what_models_are_made_of(name: str) -> None:
    assert all(not refusal(schema.qualified_name) for schema in schemas_of(f"aten::{name}"))
