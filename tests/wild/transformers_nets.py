"""The classes of transformers in small configurations."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wild.net import Made, Net, picture

_VOCABULARY = 99
_KEPT = 3
_TEXT = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 37, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
_PATCHES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 32,
    "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_TWO_SIDES = {
    "vocab_size": _VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "use_cache": False,
}  # fmt: skip
_BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}


class _Named(nn.Module):
    """A model called with tensors in order; its first results as a tuple."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.model(**dict(zip(self.names, inputs, strict=True)))
        results = found.to_tuple() if hasattr(found, "to_tuple") else found
        return tuple(item for item in results if isinstance(item, Tensor))[:_KEPT]


def _words(count: int = 11) -> Tensor:
    return torch.randint(5, 90, (1, count))


def _package() -> Any:
    return importlib.import_module("transformers")


def _made(model: str, configuration: Any, **inputs: Tensor) -> Made:
    if isinstance(configuration, dict):
        configuration = getattr(_package(), model.partition("Model")[0] + "Config")(**configuration)
    return _Named(getattr(_package(), model)(configuration), list(inputs)), list(inputs.values())


def _text(model: str, **options: Any) -> Made:
    values = {name: value for name, value in {**_TEXT, **options}.items() if value is not None}
    return _made(f"{model}Model", values, input_ids=_words())


def _image(model: str, size: int = 32, **options: Any) -> Made:
    kind = model.partition("For")[0].removesuffix("Model")
    configuration = getattr(_package(), f"{kind}Config")(**options)
    return _made(model, configuration, pixel_values=picture(size))


def _patches(model: str, size: int = 32, **options: Any) -> Made:
    return _image(model, size, **{**_PATCHES, **options})


def _seq2seq(model: str, **options: Any) -> Made:
    return _made(model, {**_TWO_SIDES, **options}, input_ids=_words(), decoder_input_ids=_words(7))


def _t5() -> Made:
    options = {"d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    sizes = {"vocab_size": _VOCABULARY, "d_model": 32, "use_cache": False}
    return _made("T5Model", {**sizes, **options}, input_ids=_words(), decoder_input_ids=_words(7))


def _whisper() -> Made:
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    sizes = {"max_source_positions": 30, "max_target_positions": 40, "num_mel_bins": 16}
    sound = torch.randn(1, 16, 60)
    return _made("WhisperModel", {**_TWO_SIDES, **sizes, **marks}, input_features=sound, decoder_input_ids=_words(7))


class _WithPast(nn.Module):
    """A decoder's next word: keys and values of the words before it come in, and go out longer."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, words: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = _package().DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        found = self.model(input_ids=words, past_key_values=cache, use_cache=True)
        later = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return (found.last_hidden_state, *later)


def _with_past(model: str, **options: Any) -> Made:
    configuration = getattr(_package(), f"{model}Config")(**{**_TEXT, **options})
    decoder = getattr(_package(), f"{model}Model")(configuration)
    return _WithPast(decoder, 2), [_words(1), *(torch.randn(1, 4, 7, 8) for _ in range(4))]


def _detr() -> Made:
    ours = _package()
    backbone = ours.ResNetConfig(**_BACKBONE, out_features=["stage4"])
    sizes = {**_TWO_SIDES, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 5}
    configuration = ours.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone, **sizes
    )
    return _made("DetrForObjectDetection", configuration, pixel_values=picture(64))


def _rt_detr() -> Made:
    ours = _package()
    backbone = ours.RTDetrResNetConfig(
        **{**_BACKBONE, "layer_type": "basic"}, out_features=["stage2", "stage3", "stage4"]
    )
    configuration = ours.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[8, 16, 16], encoder_ffn_dim=37,
        encoder_attention_heads=4, d_model=32, num_queries=5, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=37,
        decoder_layers=2, decoder_attention_heads=4, num_labels=5, hidden_expansion=0.5, num_denoising=0,
        initializer_range=0.2,
    )  # fmt: skip
    return _made("RTDetrForObjectDetection", configuration, pixel_values=picture(96))


def _upernet() -> Made:
    ours = _package()
    backbone = ours.ConvNextConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    configuration = ours.UperNetConfig(
        backbone_config=backbone, hidden_size=16, auxiliary_channels=16, auxiliary_in_channels=16, num_labels=5
    )
    return _made("UperNetForSemanticSegmentation", configuration, pixel_values=picture(64))


def _mask2former() -> Made:
    ours = _package()
    backbone = ours.SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    configuration = ours.Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=37,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, dim_feedforward=37, num_queries=5, num_labels=5,
    )  # fmt: skip
    return _made("Mask2FormerForUniversalSegmentation", configuration, pixel_values=picture(64))


def _depth_anything() -> Made:
    ours = _package()
    backbone = ours.Dinov2Config(
        **{**_PATCHES, "num_hidden_layers": 4, "mlp_ratio": 2}, out_features=["stage1", "stage2", "stage3", "stage4"],
        reshape_hidden_states=False,
    )  # fmt: skip
    configuration = ours.DepthAnythingConfig(
        backbone_config=backbone, patch_size=8, reassemble_hidden_size=32, neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip
    return _made("DepthAnythingForDepthEstimation", configuration, pixel_values=picture(32))


def _vits() -> Made:
    configuration = _package().VitsConfig(
        vocab_size=38, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, flow_size=16,
        spectrogram_bins=9, posterior_encoder_num_wavenet_layers=2,
    )  # fmt: skip
    encoder = _package().VitsModel(configuration).text_encoder
    words, mask = _words() % 38, torch.ones(1, 11, 1)
    return _Named(encoder, ["input_ids", "padding_mask"]), [words, mask]


class _Codec(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def _encodec() -> Made:
    configuration = _package().EncodecConfig(
        hidden_size=16, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=16, num_lstm_layers=1
    )
    return _Codec(_package().EncodecModel(configuration)), [torch.randn(1, 1, 160)]


def _clip() -> Made:
    text = {**_TEXT, "eos_token_id": 98}
    configuration = _package().CLIPConfig(text_config=text, vision_config=_PATCHES, projection_dim=16)
    return _made("CLIPModel", configuration, input_ids=_words(), pixel_values=picture(32))


def _vilt() -> Made:
    configuration = _package().ViltConfig(**{**_TEXT, "image_size": 32, "patch_size": 8})
    return _made("ViltModel", configuration, input_ids=_words(), pixel_values=picture(32))


def _layoutlm() -> Made:
    boxes = torch.randint(0, 9, (1, 11, 4)).sort(-1).values
    return _made("LayoutLMModel", dict(_TEXT), input_ids=_words(), bbox=boxes)


def _sam() -> Made:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8, "mlp_dim": 37}
    configuration = _package().SamVisionConfig(
        **sizes, image_size=64, output_channels=16, num_pos_feats=8, global_attn_indexes=[1], window_size=3
    )
    return _made("SamVisionModel", configuration, pixel_values=picture(64))


def _video() -> Made:
    options = {**_PATCHES, "image_size": 16, "num_frames": 4}
    return _made("VideoMAEModel", options, pixel_values=torch.randn(1, 4, 3, 16, 16))


def _patchtst() -> Made:
    configuration = _package().PatchTSTConfig(
        num_input_channels=3, context_length=32, patch_length=4, patch_stride=4, d_model=16, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=24, prediction_length=8,
    )  # fmt: skip
    return _made("PatchTSTForPrediction", configuration, past_values=torch.randn(1, 32, 3))


_ALBERT = {"embedding_size": 32}
_OWN_SIZES = dict.fromkeys(
    ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
     "use_cache")
)  # fmt: skip
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_LEVELS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_GROUPED = {"num_key_value_heads": 2}
_BUILDERS = {
    "bert": partial(_text, "Bert"),
    "distilbert": partial(_text, "DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=37),
    "albert": partial(_text, "Albert", **_ALBERT),
    "mobilebert": partial(_text, "MobileBert", embedding_size=32, intra_bottleneck_size=32),
    "squeezebert": partial(_text, "SqueezeBert", embedding_size=32, intermediate_size=64),
    "electra": partial(_text, "Electra", **_ALBERT),
    "roberta": partial(_text, "Roberta"),
    "mpnet": partial(_text, "MPNet"),
    "deberta_v2": partial(
        _text, "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    ),
    "modernbert": partial(_text, "ModernBert", **_MARKS),
    "roformer": partial(_text, "RoFormer", **_ALBERT),
    "funnel": partial(
        _text, "Funnel", **{**_OWN_SIZES, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 37}
    ),
    "xlnet": partial(_text, "XLNet", **{**_OWN_SIZES, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37}),
    "fnet": partial(_text, "FNet"),
    "gpt2": partial(_text, "GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt2_with_past": partial(_with_past, "GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "opt": partial(_text, "OPT", ffn_dim=37, word_embed_proj_dim=32),
    "bloom": partial(_text, "Bloom", n_layer=2, n_head=4),
    "gpt_neox": partial(_text, "GPTNeoX"),
    "phi": partial(_text, "Phi"),
    "qwen2": partial(_text, "Qwen2", **_GROUPED),
    "qwen3": partial(_text, "Qwen3", **_GROUPED, head_dim=8),
    "gemma2": partial(_text, "Gemma2", **_GROUPED, head_dim=8),
    "llama": partial(_text, "Llama"),
    "llama_with_past": partial(_with_past, "Llama"),
    "mixtral": partial(
        _text, "Mixtral", **_GROUPED, intermediate_size=64, num_local_experts=4, experts_implementation="batched_mm"
    ),
    "mamba": partial(_text, "Mamba", state_size=8),
    "rwkv": partial(_text, "Rwkv", attention_hidden_size=32),
    "t5": _t5,
    "bart": partial(_seq2seq, "BartModel", max_position_embeddings=64),
    "whisper": _whisper,
    "wav2vec2": lambda: _made("Wav2Vec2Model", dict(_SOUND), input_values=torch.randn(1, 400)),
    "hubert": lambda: _made("HubertModel", dict(_SOUND), input_values=torch.randn(1, 400)),
    "ast": lambda: _made(
        "ASTModel",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
         "max_length": 40, "num_mel_bins": 24},
        input_values=torch.randn(1, 40, 24),
    ),
    "vit": partial(_patches, "ViTModel"),
    "dinov2": partial(_patches, "Dinov2Model", 48, mlp_ratio=2),
    "siglip": partial(_patches, "SiglipVisionModel"),
    "clip_vision": partial(_patches, "CLIPVisionModel"),
    "clip": _clip,
    "swin": partial(
        _image, "SwinModel", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "swin2sr": partial(
        _image, "Swin2SRForImageSuperResolution", image_size=32, patch_size=1, embed_dim=16, depths=[2], num_heads=[2],
        window_size=4, upscale=2,
    ),
    "levit": partial(
        _image, "LevitModel", 64, image_size=64, hidden_sizes=[16, 32, 48], num_attention_heads=[1, 2, 3],
        depths=[1, 1, 1], key_dim=[8, 8, 8],
    ),
    "mobilenet_v1": partial(_image, "MobileNetV1Model", image_size=32, depth_multiplier=0.25),
    "mobilevit": partial(
        _image, "MobileViTModel", 64, image_size=64, hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64],
    ),
    "mobilevitv2": partial(_image, "MobileViTV2Model", 64, image_size=64, width_multiplier=0.25),
    "segformer": partial(
        _image, "SegformerForSemanticSegmentation", 64, **_LEVELS, num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
    ),
    "glpn": partial(
        _image, "GLPNForDepthEstimation", 64, **_LEVELS, num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16
    ),
    "upernet": _upernet,
    "mask2former": _mask2former,
    "detr": _detr,
    "rt_detr": _rt_detr,
    "yolos": partial(_patches, "YolosModel", image_size=[32, 32], num_detection_tokens=5),
    "dpt": partial(
        _patches, "DPTForDepthEstimation", num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8,
    ),
    "depth_anything": _depth_anything,
    "sam_vision": _sam,
    "vilt": _vilt,
    "layoutlm": _layoutlm,
    "videomae": _video,
    "superpoint": partial(
        _image, "SuperPointForKeypointDetection", 48, encoder_hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=16
    ),
    "encodec": _encodec,
    "vits": _vits,
    "patchtst": _patchtst,
}  # fmt: skip
_SEEDS = {"dpt": 1, "depth_anything": 1}
"""Their last relu gives zeros only with the usual seed."""
NETS = tuple(Net("transformers", name, make, _SEEDS.get(name, 0)) for name, make in _BUILDERS.items())
