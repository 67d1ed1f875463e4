"""What tensors of a GGUF file are called in modules: those of transformers, with and without ``model.`` before them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from mobopt.errors import UnsupportedError
from mobopt.frontends.gguf.file import GgufFile

_ARCHITECTURE = "general.architecture"
_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "layers.{}.input_layernorm",
    "blk.{}.attn_q": "layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "layers.{}.self_attn.o_proj",
    "blk.{}.attn_q_norm": "layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "layers.{}.self_attn.k_norm",
    "blk.{}.ffn_norm": "layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "layers.{}.mlp.down_proj",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Those whose tensors have these names; the rows of llama's queries and keys lie in another order."""
NOT_WEIGHTS = ("rope_freqs.weight",)
"""Tensors that modules compute themselves."""
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def architecture_of(file: GgufFile) -> str:
    """What model the weights are of."""
    return str(file.metadata.get(_ARCHITECTURE, ""))


def places_of(file: GgufFile, parameters: Collection[str], names: Mapping[str, str]) -> dict[str, str]:
    """The parameter of each tensor, by the tensor's name; tensors without one are left out.

    Args:
        file: with the tensors.
        parameters: of the module.
        names: of parameters, by names of tensors, where they are others; ``{}`` stands for the number of a layer.

    Raises:
        UnsupportedError: neither the architecture nor ``names`` tells.
    """
    if architecture_of(file) not in ARCHITECTURES and not names:
        raise UnsupportedError(
            f"{file.name} is of the architecture {architecture_of(file)!r}; names of {', '.join(ARCHITECTURES)} are "
            "known: give names, a dictionary from names of tensors to names of parameters"
        )
    found: dict[str, str] = {}
    for name in file.tensors:
        layers = _LAYER.findall(name)
        pattern = _LAYER.sub("{}", name)
        stem, _, kind = pattern.rpartition(".")
        guesses = [names.get(pattern), names.get(name), name]
        if architecture_of(file) in ARCHITECTURES and stem in _NAMES:
            guesses += [f"{prefix}{_NAMES[stem]}.{kind}" for prefix in ("model.", "")]
        for guess in guesses:
            if guess is not None and guess.format(*layers) in parameters:
                found[name] = guess.format(*layers)
                break
    return found
