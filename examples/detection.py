"""torchvision's detectors from the image to the boxes, scripted whole: SSDLite, RetinaNet and Faster R-CNN.

Resizing, backbone, anchors, decoding and suppression are one model. What depends on the elements (how many boxes pass)
is read by the host on the way, which also suppresses boxes; the rest runs on the GPU.

    pip install torchvision
    python examples/detection.py --net retinanet
"""

from __future__ import annotations

import argparse
import re

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from mobopt import optimize_for_mobile

CLASSES = 7
"""Nothing is the first of them."""
SPREAD = 1.0
"""How far the scores of a class lie apart, before softmax or sigmoid."""
FEW, SCORED = 10, 2
"""How often a class is likely in so many of the images, for each map of features."""
OFFSET = 0.5
"""Of batch norms: rectified units that are mostly off enlarge rounding, too."""
IMAGES = {"ssdlite": 8, "retinanet": 2, "faster_rcnn": 2}
"""Of which statistics are taken; the last maps of SSDLite have few pixels."""


def ssdlite(small: bool) -> nn.Module:
    """SSDLite with MobileNetV3; for the published weights give ``weights="DEFAULT"``, here and below."""
    model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
    model.score_thresh = 0.5
    if small:
        model.transform = GeneralizedRCNNTransform(64, 64, [0.5] * 3, [0.5] * 3, size_divisible=1, fixed_size=(64, 64))
    return model


def retinanet(small: bool) -> nn.Module:
    """RetinaNet with ResNet and a pyramid."""
    if not small:
        return detection.retinanet_resnet50_fpn_v2(
            weights=None, weights_backbone=None, num_classes=CLASSES, score_thresh=0.5
        )
    backbone, anchors = small_pyramid(count=3)
    return detection.RetinaNet(backbone, CLASSES, min_size=64, max_size=96, anchor_generator=anchors, score_thresh=0.5)


def faster_rcnn(small: bool) -> nn.Module:
    """Faster R-CNN with ResNet and a pyramid: proposals, a part of the features for each, boxes."""
    if not small:
        return detection.fasterrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=CLASSES, box_score_thresh=0.5
        )
    backbone, anchors = small_pyramid(count=3)
    limits = {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20, "box_detections_per_img": 20}
    return detection.FasterRCNN(backbone, CLASSES, 64, 96, rpn_anchor_generator=anchors, **limits)


def small_pyramid(count: int) -> tuple[nn.Module, AnchorGenerator]:
    """Of ResNet-18's last maps, and one pooled further, with one size of boxes each."""
    levels = list(range(5 - count, 5))
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5, returned_layers=levels
    )
    sizes = tuple((2 ** (level + 2),) for level in (*levels, 5))
    return backbone, AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))


NETS = {"ssdlite": ssdlite, "retinanet": retinanet, "faster_rcnn": faster_rcnn}
HEADS = re.compile(r"classification_head\.module_list\.\d\.1$|cls_logits$|cls_score$")


def calibrated(model: nn.Module, images: list[Tensor]) -> nn.Module:
    """The model with statistics of images, and with scores there that lie apart: those of random heads are ties,
    whose order, and so the boxes that are kept, is a matter of rounding."""
    model.eval()
    with torch.no_grad():
        for name, norm in model.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.train().momentum = None  # the mean of all that it sees
                norm.weight *= 0.2 if name.endswith("bn3") else 1.0  # else 50 random layers multiply what rounding does
                norm.bias += OFFSET
        model(images)
        model.eval()
        images = images[:SCORED]
        for head in [module for name, module in model.named_modules() if HEADS.search(name)]:
            seen: list[Tensor] = []
            hook = head.register_forward_hook(lambda _head, _given, made, seen=seen: seen.append(made))
            model(images)
            hook.remove()
            scores = torch.cat([made.transpose(0, 1).flatten(1) for made in seen], 1)
            kinds = CLASSES if len(scores) % CLASSES == 0 else len(scores)  # else how likely anything is there
            scores = scores.view(-1, kinds, scores.shape[1]).transpose(0, 1).flatten(1)
            spread = scores.std(1) / SPREAD
            usual = scores.topk(FEW + 1, 1).values[:, -2:].mean(1)  # between two, for it is the threshold
            if kinds == CLASSES and not isinstance(model, detection.RetinaNet):
                usual[0] = scores[0].mean()  # nothing, as one of the classes
            spread, usual = (item.repeat(len(head.bias) // kinds) for item in (spread, usual))
            head.weight /= spread.view(-1, *[1] * (head.weight.dim() - 1))
            head.bias[:] = (head.bias - usual) / spread
    return model


def farthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """How far a box is from the next one of its label, in pixels; boxes of equal score may come in another order."""
    rows = [torch.cat([result["boxes"], result["labels"][:, None] * 1e4], 1) for result in (found, expected)]
    return float(torch.cdist(*rows, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max())


def main(net: str = "ssdlite", small: bool = False) -> None:
    """Detect things in a random image on the device and in eager PyTorch."""
    torch.manual_seed(0)
    size = (64, 80) if small else (320, 336)
    images = list(F.interpolate(torch.randn(IMAGES[net], 3, 16, 16), size, mode="bicubic"))
    script = torch.jit.script(calibrated(NETS[net](small), images))
    image = images[0]
    device = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[[image]])
    _, [found] = device([image])  # as of every scripted detector: losses, and a dictionary for each image
    with torch.no_grad():
        _, [expected] = script([image])
    assert len(found["labels"]) == len(expected["labels"]) > 0
    distance, scores = farthest(found, expected), (found["scores"] - expected["scores"]).abs().max()
    assert distance < 0.05 and scores < 1e-4, f"boxes are {distance} pixels apart, scores {scores}"

    labels = found["labels"].unique().tolist()
    print(
        f"{len(found['labels'])} boxes of {len(labels)} classes, each where eager PyTorch has one of its label",
        end=", ",
    )
    print(f"{distance:.1e} pixels apart at most; scores differ by {scores:.1e}")
    print(f"{device.runtime.device.info}: {device.plan_report([image])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, default="ssdlite")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    options = parser.parse_args()
    main(options.net, options.small)
