"""What is kept of a tuned device for later choices of kernels."""

from __future__ import annotations

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    NOT_TUNED,
    ChainsUse,
    TunedCosts,
    UnitsUse,
    forget_tuned,
    keep_tuned,
    tuned_costs,
)
from mobopt.runtimes.vulkan.tuning.result import Tuning

__all__ = ["NOT_TUNED", "ChainsUse", "TunedCosts", "UnitsUse", "forget_costs", "keep_costs", "kept_costs"]

kept_costs, forget_costs = tuned_costs, forget_tuned


def keep_costs(device: DeviceInfo, found: Tuning) -> bool:
    """Let later choices go by what was found; families that were not measured stay as they were tuned earlier.

    Returns:
        Whether it is kept for other processes.
    """
    earlier, new = tuned_costs(device), found.costs
    chains = earlier.chains if new.chains is None else new.chains
    return keep_tuned(device, TunedCosts({**earlier.costs, **new.costs}, {**earlier.units, **new.units}, chains))
