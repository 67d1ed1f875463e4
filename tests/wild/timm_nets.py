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
    "cs3darknet_s", "densenetblur121d", "dpn48b", "efficientvit_b0", "efficientvit_l1", "fasternet_t0",
    "fastvit_t8", "fastvit_sa12", "fastvit_mci0", "sam2_hiera_tiny", "inception_next_atto", "mambaout_femto",
    "mobilenetv5_300m_enc", "nextvit_small", "rdnet_tiny", "regnety_004", "res2next50", "ecaresnet26t",
    "resnetv2_50x1_bit", "resnetv2_50d_evos", "selecsls42b", "legacy_seresnext26_32x4d", "shvit_s1",
    "skresnext50_32x4d", "tresnet_m", "legacy_xception", "xception41p", "efficientnet_b0_g8_gn",
    "convnext_zepto_rms", "regnetv_040", "nf_ecaresnet26",
)  # fmt: skip
_TOLD_THE_SIZE = (
    "efficientformerv2_s0", "levit_128s", "vit_tiny_patch16_224", "vit_small_patch32_224", "deit_tiny_patch16_224",
    "deit3_small_patch16_224", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "coat_lite_tiny", "coat_tiny",
    "cait_xxs24_224", "convit_tiny", "visformer_tiny",
    "beit_base_patch16_224", "botnet26t_256", "lambda_resnet26t", "efficientvit_m0", "eva02_tiny_patch14_224",
    "gcvit_xxtiny", "hgnetv2_b0", "hiera_tiny_224", "coatnet_pico_rw_224", "coatnet_rmlp_nano_rw_224",
    "maxvit_pico_rw_256", "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "mvitv2_tiny", "nest_tiny",
    "pit_ti_224", "regnetz_b16", "sequencer2d_s", "swiftformer_xs", "swinv2_tiny_window8_256", "tnt_s_patch16_224",
    "vit_tiny_r_s16_p8_224", "vit_relpos_small_patch16_224", "vit_srelpos_small_patch16_224",
    "samvit_base_patch16_224", "vitamin_small_224", "volo_d1_224", "eca_vovnet39b", "xcit_nano_12_p16_224",
    "gernet_s", "repvgg_a0", "naflexvit_base_patch16_gap", "vit_base_patch16_rope_224",
    "vit_small_patch16_rope_mixed_224", "vit_small_patch16_dinov3", "swin_s3_tiny_224",
)  # fmt: skip
_OF_ONE_SIZE = {"efficientformer_l1": 224, "halonet26t": 256, "bat_resnext26ts": 256, "haloregnetz_b": 224}
_SMALL = 64


def _make(name: str, size: int = _SMALL, **options: int) -> Made:
    create = importlib.import_module("timm").create_model
    return create(name, pretrained=False, num_classes=10, **options), [picture(size)]


NETS = (
    *(Net("timm", name, partial(_make, name)) for name in _ANY_SIZE),
    *(Net("timm", name, partial(_make, name, img_size=_SMALL)) for name in _TOLD_THE_SIZE),
    *(Net("timm", name, partial(_make, name, size)) for name, size in _OF_ONE_SIZE.items()),
)
