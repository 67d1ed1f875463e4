"""Make PyTorch models ready for mobile GPUs, and run them on any Vulkan device.

Public names are imported when they are first used, so that ``import mobopt`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "optimize_for_mobile": "mobopt.optimizer",
    "generate_mobile_module_lints": "mobopt.lints",
    "LintCode": "mobopt.lints",
    "MobileOptimizerType": "mobopt.options",
    "MobileModule": "mobopt.module",
    "PassPipeline": "mobopt.passes.pipelines",
    "load": "mobopt.module",
    "load_gguf": "mobopt.frontends.gguf.loading",
    "optimize": "mobopt.integrations.optimized",
    "is_vulkan_available": "mobopt.runtimes.vulkan.engine.devices",
    "export_opnames": "mobopt.tools.operator_names",
    "audit": "mobopt.tools.audit",
    "Audit": "mobopt.tools.audit",
    "AuditLine": "mobopt.tools.audit",
    "bisect": "mobopt.tools.bisection",
    "Bisection": "mobopt.tools.bisection_results",
    "compare": "mobopt.tools.comparison",
    "Comparison": "mobopt.tools.comparison_results",
    "migrate": "mobopt.tools.migration",
    "submit": "mobopt.tools.sweep.sweeping",
    "tap": "mobopt.tools.taps.tap",
    "Tapped": "mobopt.tools.taps.tap",
    "TapOptions": "mobopt.tools.taps.graph",
    "compare_dump": "mobopt.tools.taps.comparison",
    "stress": "mobopt.tools.stress",
    "Stress": "mobopt.tools.stress",
    "app_kit": "mobopt.tools.app_kit.kit",
    "AppKit": "mobopt.tools.app_kit.kit",
    **dict.fromkeys(
        (
            "ArgumentTypeError",
            "BundleError",
            "DeviceError",
            "GraphError",
            "InputError",
            "MissingMethodError",
            "MoboptError",
            "PassError",
            "UnsupportedError",
        ),
        "mobopt.errors",
    ),
}

__all__ = [
    "AppKit",
    "ArgumentTypeError",
    "Audit",
    "AuditLine",
    "Bisection",
    "BundleError",
    "Comparison",
    "DeviceError",
    "GraphError",
    "InputError",
    "LintCode",
    "MissingMethodError",
    "MobileModule",
    "MobileOptimizerType",
    "MoboptError",
    "PassError",
    "PassPipeline",
    "Stress",
    "TapOptions",
    "Tapped",
    "UnsupportedError",
    "app_kit",
    "audit",
    "bisect",
    "compare",
    "compare_dump",
    "export_opnames",
    "generate_mobile_module_lints",
    "is_vulkan_available",
    "load",
    "load_gguf",
    "migrate",
    "optimize",
    "optimize_for_mobile",
    "stress",
    "submit",
    "tap",
]

if TYPE_CHECKING:
    from mobopt.errors import (
        ArgumentTypeError,
        BundleError,
        DeviceError,
        GraphError,
        InputError,
        MissingMethodError,
        MoboptError,
        PassError,
        UnsupportedError,
    )
    from mobopt.frontends.gguf.loading import load_gguf
    from mobopt.integrations.optimized import optimize
    from mobopt.lints import LintCode, generate_mobile_module_lints
    from mobopt.module import MobileModule, load
    from mobopt.optimizer import optimize_for_mobile
    from mobopt.options import MobileOptimizerType
    from mobopt.passes.pipelines import PassPipeline
    from mobopt.runtimes.vulkan.engine.devices import is_vulkan_available
    from mobopt.tools.app_kit.kit import AppKit, app_kit
    from mobopt.tools.audit import Audit, AuditLine, audit
    from mobopt.tools.bisection import bisect
    from mobopt.tools.bisection_results import Bisection
    from mobopt.tools.comparison import compare
    from mobopt.tools.comparison_results import Comparison
    from mobopt.tools.migration import migrate
    from mobopt.tools.operator_names import export_opnames
    from mobopt.tools.stress import Stress, stress
    from mobopt.tools.sweep.sweeping import submit
    from mobopt.tools.taps.comparison import compare_dump
    from mobopt.tools.taps.graph import TapOptions
    from mobopt.tools.taps.tap import Tapped, tap


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mobopt' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
