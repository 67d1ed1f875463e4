"""``mobopt.load_gguf``: the weights of a GGUF file in an nn.Module, those of few bits as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import nn
from torch.nn.utils import parametrize

from mobopt.errors import InputError
from mobopt.frontends.gguf.blocks import Blocks, elements_of
from mobopt.frontends.gguf.file import GgufFile
from mobopt.frontends.gguf.names import NOT_WEIGHTS, PAIRED, RAISED_NORMS, architecture_of, places_of

Rotation = Literal["halves", "pairs"]
_ROTATIONS = ("halves", "pairs")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_HEAD_COUNTS = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


def load_gguf(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    names: Mapping[str, str] | None = None,
    rotation: Rotation = "halves",
) -> nn.Module:
    """Give a module the weights of a GGUF file.

    Matrices of integers keep them, with a scale for each group of 16, 32 or 256 of a row, which ``torch.export`` keeps
    and mobopt's own runtime multiplies as they are: those of Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, TQ1_0 and TQ2_0 in half a
    byte each, others in a byte. The module makes floats of them (``torch.nn.utils.parametrize``). Other tensors become
    floats of the parameters' dtypes. The module may be on the meta device.

    Args:
        path: the file; it holds F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4,
            TQ1_0 and TQ2_0.
        model: a module whose parameters are called as those of transformers are (architectures ``gemma``, ``gemma2``,
            ``gemma3``, ``granite``, ``llama``, ``olmo2``, ``phi3``, ``qwen2``, ``qwen3`` and ``smollm3``). It is
            changed.
        names: parameters by tensors, where they are called otherwise; ``{}`` stands for a layer's number:
            ``{"blk.{}.attn_q.weight": "blocks.{}.q.weight"}``.
        rotation: what the module rotates by positions: the halves of a head, as transformers does, or pairs of
            neighbours, as llama.cpp does, whose order the rows of queries and keys have in files of llama, granite and
            smollm3.

    Returns:
        The module, for inference. A head that the file lacks has the weights of the embedding.

    Raises:
        BundleError: it is no GGUF file, or damaged.
        InputError: a parameter is missing in the file, a tensor has none in the module or another size, or there is no
            such rotation.
        UnsupportedError: a tensor is of another kind, or neither the architecture nor ``names`` tells what they are.
    """
    if rotation not in _ROTATIONS:
        raise InputError(f"there is no rotation {rotation!r}; give {' or '.join(_ROTATIONS)}")
    file = GgufFile(path)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    places = places_of(file, parameters, names or {})
    _check(file, places, parameters)
    loaded: dict[str, torch.Tensor | Blocks] = {}
    for name, place in places.items():
        weight = _in_order(file, name, elements_of(file.tensors[name]), rotation)
        loaded[place] = _less_one(file, name, weight)
    for place in _tied(file, places, parameters):
        loaded[place] = loaded[places[_EMBEDDING]]
    for place, weight in loaded.items():
        _put(model, place, weight)
    return model.eval().requires_grad_(False)


def _check(file: GgufFile, places: Mapping[str, str], parameters: Mapping[str, torch.Tensor]) -> None:
    strangers = [name for name in file.tensors if name not in places and name not in NOT_WEIGHTS]
    if strangers:
        raise InputError(
            f"{file.name} has tensors for which the module has no parameter: {_some(strangers)}; give names, or "
            "another module"
        )
    missing = set(parameters) - set(places.values()) - set(_tied(file, places, parameters))
    if missing:
        raise InputError(f"{file.name} has no tensor for {_some(sorted(missing))}; give names, or another module")
    for name, place in places.items():
        sizes, wanted = file.tensors[name].sizes, tuple(parameters[place].shape)
        if sizes != wanted:
            raise InputError(f"{name} of {file.name} has the sizes {sizes}, and {place} of the module has {wanted}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _tied(file: GgufFile, places: Mapping[str, str], parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Parameters that have the embedding's weights: those that are the same tensor, and a head that the file lacks."""
    if _EMBEDDING not in places:
        return []
    own = set(places.values())
    embedding = parameters[places[_EMBEDDING]]
    return [
        name
        for name, parameter in parameters.items()
        if name not in own and (parameter is embedding or (_HEAD not in places and name.endswith("lm_head.weight")))
    ]


def _in_order(file: GgufFile, name: str, weight: torch.Tensor | Blocks, rotation: Rotation) -> torch.Tensor | Blocks:
    """A tensor with its rows as the module has them."""
    what, architecture = name.rpartition(".")[0].rpartition(".")[2], architecture_of(file)
    if architecture not in PAIRED or what not in _HEAD_COUNTS or rotation == "pairs":
        return weight
    queries = file.metadata.get(f"{architecture}.attention.head_count")
    heads = file.metadata.get(f"{architecture}.{_HEAD_COUNTS[what]}", queries)
    rows = file.tensors[name].sizes[0]
    if not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
        raise InputError(f"{file.name} says {heads!r} heads of {rows} rows of {name}; the file is damaged")
    order = torch.arange(rows).reshape(heads, -1, 2).transpose(1, 2).reshape(-1)
    return weight.rows(order) if isinstance(weight, Blocks) else weight[order]


def _less_one(file: GgufFile, name: str, weight: torch.Tensor | Blocks) -> torch.Tensor | Blocks:
    """A norm's gains without the one that the module adds; any other weight as it is."""
    if architecture_of(file) not in RAISED_NORMS or not name.endswith("norm.weight"):
        return weight
    return (weight.floats() if isinstance(weight, Blocks) else weight) - 1


class _Floats(nn.Module):
    """Makes floats of a matrix of integers."""

    def __init__(self, blocks: Blocks, dtype: torch.dtype) -> None:
        super().__init__()
        self._bounds, self._group, self._dtype = blocks.bounds, blocks.group, dtype
        given = (blocks.integers, blocks.scales, blocks.zero_points)
        self._given = tuple(part for part in given if part is not None)

    def forward(
        self, integers: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The floats (rows, columns)."""
        found: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_channel_group(
            integers, scales, zero_points, *self._bounds, torch.int8, self._group, self._dtype
        )
        return found

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the weight is made of from now on."""
        given, self._given = self._given, ()
        return given


def _put(model: nn.Module, place: str, weight: torch.Tensor | Blocks) -> None:
    path, _, name = place.rpartition(".")
    owner = model.get_submodule(path)
    before = getattr(owner, name)
    if isinstance(weight, Blocks) and weight.integers.dim() == 2:
        setattr(owner, name, nn.Parameter(before.detach(), requires_grad=False))
        parametrize.register_parametrization(owner, name, _Floats(weight, before.dtype), unsafe=True)
        return
    floats = weight.floats() if isinstance(weight, Blocks) else weight
    setattr(owner, name, nn.Parameter(floats.to(before.dtype), requires_grad=False))
