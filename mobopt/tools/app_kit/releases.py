"""What PyTorch published for phones: AARs on Maven Central and pods on CocoaPods, by release.

Sources: the coordinates that public apps build with, and https://github.com/pytorch/pytorch/tree/main/ios for the
podspecs. Published binaries have neither Vulkan nor, on iOS, Metal that one could count on; such libraries are built by
``scripts/build_pytorch_android.sh`` (https://pytorch.org/tutorials/prototype/vulkan_workflow.html) and
``scripts/build_ios.sh`` (https://pytorch.org/tutorials/prototype/ios_gpu_workflow.html).
"""

from __future__ import annotations

from collections.abc import Mapping

from mobopt.ops.targets.table import release_key
from mobopt.tools.requirements import Needs

AARS = {"1.9": "1.9.0", "1.10": "1.10.0", "1.11": "1.11", "1.12": "1.12.2", "1.13": "1.13.1", "2.1": "2.1.0"}
"""Versions of org.pytorch:pytorch_android_lite (and :pytorch_android, for files of TorchScript alone)."""
PODS = {"1.9": "1.9.0", "1.10": "1.10.0", "1.12": "1.12.0", "1.13": "1.13.0.1"}
"""Versions of LibTorch-Lite (and LibTorch)."""
TAGS = {"1.9": "v1.9.1", "1.10": "v1.10.2", "1.11": "v1.11.0", "1.12": "v1.12.1", "1.13": "v1.13.1", "2.0": "v2.0.1"}
"""Tags of pytorch/pytorch; those of later releases end in .0."""
JAVA_MOVES_UNTIL = "2.0"
"""The newest release whose Java moves inputs to the GPU; see PR 105583 of pytorch/pytorch."""


def newest_published(needs: Needs, published: Mapping[str, str]) -> str:
    """The newest published version that reads a file; empty if there is none."""
    fitting = [release for release in published if reads(needs, release)]
    return published[max(fitting, key=release_key)] if fitting else ""


def reads(needs: Needs, release: str) -> bool:
    """Whether a release reads a file."""
    if needs.oldest is None or release_key(release) < release_key(needs.oldest):
        return False
    return not needs.newest or release_key(release) <= release_key(needs.newest)


def tag(release: str) -> str:
    """The tag of a release's source."""
    return TAGS.get(release, f"v{release}.0")
