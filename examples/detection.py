"""torchvision's SSDLite from the image to the boxes, scripted whole.

Resizing, backbone, anchors, decoding and suppression are one model. What depends on the elements (how many boxes pass)
is read by the host on the way; the rest runs on the GPU, and the report names what does not.

    pip install torchvision
    python examples/detection.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models import detection

from mobopt import optimize_for_mobile


def seeded() -> nn.Module:
    """A detector with seeded weights that finds some boxes; give ``weights="DEFAULT"`` for the published ones."""
    torch.manual_seed(0)
    model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=7)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=(1.6 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.2)
            module.running_var.uniform_(0.6, 1.4)
            nn.init.uniform_(module.weight, 0.6, 1.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    return model.eval()


def farthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """How far a box is from the next one of its label, in pixels; boxes of equal score may come in another order."""
    rows = [torch.cat([result["boxes"], result["labels"][:, None] * 1e4], 1) for result in (found, expected)]
    return float(torch.cdist(*rows, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max())


def main() -> None:
    """Detect things in a random image on the device and in eager PyTorch."""
    script = torch.jit.script(seeded())
    torch.manual_seed(1)
    image = torch.rand(3, 320, 336)
    device = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[[image]])
    _, [found] = device([image])  # as of every scripted detector: losses, and a dictionary for each image
    with torch.no_grad():
        _, [expected] = script([image])
    assert len(found["labels"]) == len(expected["labels"]) > 0
    distance, scores = farthest(found, expected), (found["scores"] - expected["scores"]).abs().max()
    assert distance < 0.05 and scores < 1e-4, f"boxes are {distance} pixels apart, scores {scores}"

    print(f"{len(found['labels'])} boxes, each where eager PyTorch has one of its label", end=", ")
    print(f"{distance:.1e} pixels apart at most; scores differ by {scores:.1e}")
    print(f"{device.runtime.device.info}: {device.plan_report([image])}")


if __name__ == "__main__":
    main()
