"""timm's networks: published widths and depths, small images."""

from __future__ import annotations

import importlib
from functools import partial

from wild.net import Made, Net, picture

_ANY_SIZE = (
    "mobilenetv3_small_100", "mobilenetv4_conv_small", "mobilenetv4_conv_medium", "mobilenetv4_hybrid_medium",
    "mobileone_s0", "mobileone_s3", "repvit_m0_9", "repghostnet_050", "ghostnet_100", "ghostnetv2_100",
    "ghostnetv3_100", "mixnet_s", "hardcorenas_a", "rexnet_100", "lcnet_050", "fbnetc_100", "fbnetv3_b", "tinynet_a",
    "spnasnet_100", "semnasnet_100", "mnasnet_small", "tf_efficientnet_lite0", "tf_efficientnetv2_b0",
    "efficientnetv2_rw_t", "edgenext_xx_small", "mobilevit_xxs", "mobilevitv2_050", "tiny_vit_5m_224",
    "convnext_atto", "convnext_nano", "convnextv2_atto", "crossvit_tiny_240", "davit_tiny", "focalnet_tiny_srf",
    "pvt_v2_b0", "poolformer_s12", "poolformerv2_s12", "twins_pcpvt_small", "twins_svt_small", "caformer_s18",
    "convformer_s18", "hrnet_w18_small", "dla34", "dla46x_c", "resnest14d", "nf_resnet26", "nf_regnet_b0",
    "eca_nfnet_l0", "dm_nfnet_f0", "starnet_s1",
)  # fmt: skip
_TOLD_THE_SIZE = (
    "efficientformerv2_s0", "levit_128s", "vit_tiny_patch16_224", "vit_small_patch32_224", "deit_tiny_patch16_224",
    "deit3_small_patch16_224", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "coat_lite_tiny", "coat_tiny",
    "cait_xxs24_224", "convit_tiny", "visformer_tiny",
)  # fmt: skip
_SMALL, _USUAL = 64, 224


def _make(name: str, size: int = _SMALL, **options: int) -> Made:
    create = importlib.import_module("timm").create_model
    return create(name, pretrained=False, num_classes=10, **options), [picture(size)]


NETS = (
    *(Net("timm", name, partial(_make, name)) for name in _ANY_SIZE),
    *(Net("timm", name, partial(_make, name, img_size=_SMALL)) for name in _TOLD_THE_SIZE),
    Net("timm", "efficientformer_l1", partial(_make, "efficientformer_l1", _USUAL)),
)
