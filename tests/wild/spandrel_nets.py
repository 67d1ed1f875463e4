"""Networks that enlarge or mend images, as spandrel has them, in small configurations."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from wild.net import Made, Net, picture

_SIZE = 32
_LARGER = 64
_WINDOWS = {"img_size": _SIZE, "embed_dim": 24, "num_heads": (2,), "window_size": 8, "upscale": 2}
_CLASSES: dict[str, tuple[str, dict[str, Any], int]] = {
    "CRAFT": ("CRAFT.__arch.CRAFT.CRAFT", {}, _SIZE),
    "Compact": ("Compact.__arch.SRVGG.SRVGGNetCompact", {}, _SIZE),
    "DAT": (
        "DAT.__arch.DAT.DAT",
        {"img_size": _SIZE, "embed_dim": 24, "depth": [2], "num_heads": [2], "split_size": [8, 16], "upscale": 2},
        _SIZE,
    ),
    "DCTLSA": ("DCTLSA.__arch.dctlsa.DCTLSA", {}, _SIZE),
    "DITN": ("DITN.__arch.DITN_Real.DITN_Real", {}, _SIZE),
    "DRCT": ("DRCT.__arch.drct_arch.DRCT", {**_WINDOWS, "embed_dim": 36, "depths": (2,), "gc": 12}, _SIZE),
    "ESRGAN": ("ESRGAN.__arch.RRDB.RRDBNet", {"num_filters": 16, "num_blocks": 2}, _SIZE),
    "FDAT": ("FDAT.__arch.fdat.FDAT", {}, _SIZE),
    "FFTformer": ("FFTformer.__arch.fftformer_arch.FFTformer", {"dim": 12, "num_blocks": [1, 1, 2]}, _LARGER),
    "GRL": (
        "GRL.__arch.grl.GRL",
        {
            "img_size": _SIZE,
            "embed_dim": 24,
            "depths": [2],
            "num_heads_window": [2],
            "num_heads_stripe": [2],
            "window_size": 8,
            "upscale": 2,
        },
        _SIZE,
    ),
    "CIDNet": ("HVICIDNet.__arch.cidnet.CIDNet", {}, _LARGER),
    "KBNet_s": (
        "KBNet.__arch.kbnet_s.KBNet_s",
        {"width": 8, "enc_blk_nums": [1, 1], "middle_blk_num": 1, "dec_blk_nums": [1, 1]},
        _LARGER,
    ),
    "MixDehazeNet": (
        "MixDehazeNet.__arch.MixDehazeNet.MixDehazeNet",
        {"embed_dims": [8, 16, 24, 16, 8], "depths": [1, 1, 1, 1, 1]},
        _LARGER,
    ),
    "MoESR": ("MoESR.__arch.MoESR.MoESR", {}, _SIZE),
    "MoSR": ("MoSR.__arch.mosr_arch.MoSR", {}, _SIZE),
    "NAFNet": (
        "NAFNet.__arch.NAFNet_arch.NAFNet",
        {"width": 8, "enc_blk_nums": [1, 1], "middle_blk_num": 1, "dec_blk_nums": [1, 1]},
        _LARGER,
    ),
    "OmniSR": ("OmniSR.__arch.OmniSR.OmniSR", {"num_feat": 16, "res_num": 1, "block_num": 1}, _SIZE),
    "PLKSR": ("PLKSR.__arch.PLKSR.PLKSR", {"dim": 16, "n_blocks": 2}, _SIZE),
    "RealPLKSR": ("PLKSR.__arch.RealPLKSR.RealPLKSR", {"dim": 16, "n_blocks": 2}, _SIZE),
    "RCAN": ("RCAN.__arch.rcan_arch.RCAN", {"n_resgroups": 1, "n_resblocks": 2, "n_feats": 16}, _SIZE),
    "UpCunet2x": ("RealCUGAN.__arch.upcunet_v3.UpCunet2x", {}, _LARGER),
    "RetinexFormer": (
        "RetinexFormer.__arch.retinexformer_arch.RetinexFormer",
        {"n_feat": 16, "stage": 1, "num_blocks": [1, 1, 1]},
        _LARGER,
    ),
    "SAFMN": ("SAFMN.__arch.safmn.SAFMN", {"dim": 16, "n_blocks": 2}, _SIZE),
    "SwiftSRGAN": ("SwiftSRGAN.__arch.SwiftSRGAN.Generator", {"num_channels": 16, "num_blocks": 2}, _SIZE),
    "Swin2SR": ("Swin2SR.__arch.Swin2SR.Swin2SR", {**_WINDOWS, "depths": (2,), "upsampler": "pixelshuffle"}, _SIZE),
    "SwinIR": ("SwinIR.__arch.SwinIR.SwinIR", {**_WINDOWS, "depths": (2,), "upsampler": "pixelshuffle"}, _SIZE),
}


def _make(path: str, options: dict[str, Any], size: int) -> Made:
    module, _, name = path.rpartition(".")
    create = getattr(importlib.import_module(f"spandrel.architectures.{module}"), name)
    return create(**options), [picture(size)]


NETS = tuple(Net("spandrel", name, partial(_make, *found)) for name, found in _CLASSES.items())
