"""Published networks of several packages with seeded weights, held against every source of models.

``python -m wild RESULTS.jsonl`` (with ``PYTHONPATH=tests``) runs them from each source on the Vulkan device, with
``--batch 7`` several items at a time, with ``--precision fp16`` in that, too;
``python -m wild.page RESULTS.jsonl`` makes their part of ``docs/zoo.md``. Packages but torchvision are optional: nets
of an absent one are named as not run.
"""

from wild import spandrel_nets, timm_nets, torchvision_nets, transformers_nets, ultralytics_nets
from wild.net import Net

_PACKAGES = (timm_nets, torchvision_nets, transformers_nets, ultralytics_nets, spandrel_nets)
NETS: dict[str, Net] = {f"{net.package}.{net.name}": net for package in _PACKAGES for net in package.NETS}
"""By package and name."""
