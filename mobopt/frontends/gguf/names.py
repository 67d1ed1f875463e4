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
_NORMS_AROUND = {
    "blk.{}.post_attention_norm": "layers.{}.post_attention_layernorm",
    "blk.{}.post_ffw_norm": "layers.{}.post_feedforward_layernorm",
}
_GEMMA_2 = _NAMES | _NORMS_AROUND | {"blk.{}.ffn_norm": "layers.{}.pre_feedforward_layernorm"}
_PHI_3 = {"blk.{}.attn_qkv": "layers.{}.self_attn.qkv_proj", "blk.{}.ffn_up": "layers.{}.mlp.gate_up_proj"}
_NAMES_OF = {
    "gemma": _NAMES,
    "gemma2": _GEMMA_2,
    "gemma3": _GEMMA_2,
    "granite": _NAMES,
    "llama": _NAMES,
    "olmo2": _NAMES | _NORMS_AROUND,
    "phi3": _NAMES | _PHI_3,
    "qwen2": _NAMES,
    "qwen3": _NAMES,
    "smollm3": _NAMES,
}
ARCHITECTURES = tuple(_NAMES_OF)
"""Those whose tensors' names are known."""
PAIRED = ("llama", "granite", "smollm3")
"""Those whose rows of queries and keys lie in the order in which llama.cpp rotates them: pairs of neighbours."""
RAISED_NORMS = ("gemma", "gemma2", "gemma3")
"""Those whose modules add one to the gains of norms, as files have them with it."""
NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
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
    if architecture_of(file) not in _NAMES_OF and not names:
        raise UnsupportedError(
            f"{file.name} is of the architecture {architecture_of(file)!r}; names of {', '.join(ARCHITECTURES)} are "
            "known: give names, a dictionary from names of tensors to names of parameters"
        )
    known = _NAMES_OF.get(architecture_of(file), {})
    found: dict[str, str] = {}
    for name in file.tensors:
        layers = _LAYER.findall(name)
        pattern = _LAYER.sub("{}", name)
        stem, _, kind = pattern.rpartition(".")
        guesses = [names.get(pattern), names.get(name), name]
        if stem in known:
            guesses += [f"{prefix}{known[stem]}.{kind}" for prefix in ("model.", "")]
        for guess in guesses:
            if guess is not None and guess.format(*layers) in parameters:
                found[name] = guess.format(*layers)
                break
    return found
