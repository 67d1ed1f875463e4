"""What speaks against shipping a module as it is: torch's mobile lints, in torch's words."""

from __future__ import annotations

from enum import Enum

import torch

from mobopt.optimizer import check_script_module

_BUNDLED_INPUT = (
    "No bundled input for forward, please add bundled inputs before saving the module using "
    "torch.utils.bundled_inputs.augment_model_with_bundled_inputs."
)
_REQUIRES_GRAD = (
    "Param {name} requires grad, please set torch.no_grad() to reduce memory usage and improve computation speed "
    "during inference phase."
)
_OPERATOR = (
    "Operator {name} exists, remember to call eval() before saving the module and call "
    "torch.utils.mobile_optimizer.optimize_for_mobile to drop {kind} operator."
)


class LintCode(Enum):
    """Kinds of lints, with torch's values."""

    BUNDLED_INPUT = 1
    """No input is bundled with ``forward``."""
    REQUIRES_GRAD = 2
    """A parameter requires a gradient."""
    DROPOUT = 3
    """There is dropout, as in training."""
    BATCHNORM = 4
    """There is a batch norm, which an optimised module has folded away."""


def generate_mobile_module_lints(script_module: torch.jit.ScriptModule) -> list[dict[str, str]]:
    """Lints of a module, as ``torch.utils.mobile_optimizer.generate_mobile_module_lints`` gives them.

    Args:
        script_module: before it is optimised.

    Returns:
        One dictionary with ``name`` (of a :class:`LintCode`) and ``message`` for each lint.

    Raises:
        ArgumentTypeError: ``script_module`` is not a ScriptModule.
    """
    check_script_module(script_module)
    lints: list[dict[str, str]] = []
    if not hasattr(script_module, "_generate_bundled_inputs_for_forward"):
        lints.append(_lint(LintCode.BUNDLED_INPUT, _BUNDLED_INPUT))
    for name, parameter in script_module.named_parameters():
        if parameter.requires_grad:
            lints.append(_lint(LintCode.REQUIRES_GRAD, _REQUIRES_GRAD.format(name=name)))
    for name in torch.jit.export_opnames(script_module):  # type: ignore[no-untyped-call]
        if "dropout" in name:
            lints.append(_lint(LintCode.DROPOUT, _OPERATOR.format(name=name, kind="dropout")))
        if "batch_norm" in name:
            lints.append(_lint(LintCode.BATCHNORM, _OPERATOR.format(name=name, kind="batch_norm")))
    return lints


def _lint(code: LintCode, message: str) -> dict[str, str]:
    return {"name": code.name, "message": message}
