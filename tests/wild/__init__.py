"""Published networks of timm, torchvision and transformers with seeded weights, held against every source of models.

``python -m wild RESULTS.jsonl`` (with ``PYTHONPATH=tests``) runs them from each source on the Vulkan device, with
``--batch 7`` several items at a time, with ``--precision fp16`` in that, too;
``python -m wild.page RESULTS.jsonl`` makes their part of ``docs/zoo.md``. timm and transformers are optional: nets of
an absent package are named as not run.
"""

from wild import timm_nets, torchvision_nets, transformers_nets
from wild.net import Net

NETS: dict[str, Net] = {
    f"{net.package}.{net.name}": net for net in (*timm_nets.NETS, *torchvision_nets.NETS, *transformers_nets.NETS)
}
"""By package and name."""
