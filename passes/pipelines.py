"""The lists of passes for each backend, and what of them a blocklist takes away."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from mobopt.errors import PassError
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.constant_propagation import ConstantPropagation
from mobopt.passes.conv1d_to_2d import Conv1dTo2d
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.fold_batch_norm import FoldBatchNorm
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.fuse_add_relu import FuseAddRelu
from mobopt.passes.fuse_clamp import FuseClamp
from mobopt.passes.hoist_conv_packed_params import HoistConvPackedParams
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.known_conditions import KnownConditions
from mobopt.passes.loop_unrolling import LoopUnrolling
from mobopt.passes.manager import Pass
from mobopt.passes.remove_dropout import RemoveDropout
from mobopt.passes.repeat import Repeat
from mobopt.passes.set_flag import SetFlag
from mobopt.passes.transfer import Transfer

SIMPLIFY = Repeat(
    (
        ConstantFolding(),  # before branches are resolved: it makes their conditions constant
        ConstantPropagation(),  # before unrolling: it resolves what loops count to
        LoopUnrolling(),  # before the next round folds what the copies compute
        CommonSubexpressionElimination(),  # before conditions are compared: equal ones become one
        KnownConditions(),  # after that; its constants are folded in the next round
        DeadCodeElimination(),  # last in a round
    )
)
"""Everything that makes work for constant folding, in rounds."""

VULKAN: tuple[Pass, ...] = (
    SIMPLIFY,  # first: later passes match constants and see no branches that are never taken
    Canonicalize(),  # before all that match convolutions and linear layers
    RemoveDropout(),  # before folding and fusing: dropout stands between a layer and what it is fused with
    Functionalize(),  # before clamp fusion and common subexpressions, which look at pure operators
    FoldBatchNorm(),  # before packing, while weights are plain tensors
    InsertPrepack(),  # after canonicalize, which makes the three forms that it knows
    FuseClamp(),  # between inserting and folding: the range is an argument of the packing operator
    FoldPrepack(),  # after clamp fusion
    HoistConvPackedParams(),  # independent of the others
    Transfer(),  # after all fusion, which it would stand between
    SIMPLIFY,  # what the rewrites above have left behind
    SetFlag("optimized_for_vulkan"),  # last: the file is what it says
)
"""PyTorch's Vulkan backend."""

CPU: tuple[Pass, ...] = (
    SIMPLIFY,  # first: later passes match constants
    Canonicalize(),  # before all that match convolutions and linear layers
    RemoveDropout(),  # before folding: dropout may stand between a convolution and its normalisation
    FoldBatchNorm(),  # before conv1d becomes conv2d, whose normalisation then follows a squeeze
    Conv1dTo2d(),  # after folding
    HoistConvPackedParams(),  # independent of the others
    FuseAddRelu(),  # after dropout has gone
    SIMPLIFY,  # what the rewrites above have left behind
    SetFlag("mobile_optimized"),  # last: the file is what it says
)
"""PyTorch's CPU, without XNNPACK's operators, which stock builds no longer have."""

OPTIMIZER_TYPES: dict[str, tuple[type[Pass], ...]] = {
    "CONV_BN_FUSION": (FoldBatchNorm,),
    "INSERT_FOLD_PREPACK_OPS": (InsertPrepack, FuseClamp, FoldPrepack),
    "REMOVE_DROPOUT": (RemoveDropout,),
    "FUSE_ADD_RELU": (FuseAddRelu,),
    "HOIST_CONV_PACKED_PARAMS": (HoistConvPackedParams,),
    "CONV_1D_TO_2D": (Conv1dTo2d,),
    "VULKAN_AUTOMATIC_GPU_TRANSFER": (Transfer,),
}
"""The passes that each member of ``MobileOptimizerType`` names, in the order of its integer values."""


def without(pipeline: Iterable[Pass], blocklist: Iterable[Any]) -> tuple[Pass, ...]:
    """A pipeline less what a blocklist names.

    Args:
        pipeline: the passes.
        blocklist: members of ``MobileOptimizerType`` (ours or torch's), their names, or names of passes.

    Raises:
        PassError: a name is unknown; the message has the nearest ones.
    """
    pipeline = tuple(pipeline)
    blocked: set[type[Pass]] = set()
    for entry in blocklist:
        blocked.update(_passes_of(str(getattr(entry, "name", entry))))
    return tuple(item for item in pipeline if type(item) not in blocked)


def _passes_of(name: str) -> tuple[type[Pass], ...]:
    if name.upper() in OPTIMIZER_TYPES:
        return OPTIMIZER_TYPES[name.upper()]
    by_name = {type(item).name: type(item) for item in (*VULKAN, *CPU)}
    if name in by_name:
        return (by_name[name],)
    known = [*OPTIMIZER_TYPES, *by_name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4) or difflib.get_close_matches(
        name.upper(), known, n=1
    )
    hint = f"did you mean {near[0]}?" if near else f"known names are {', '.join(known)}"
    raise PassError(f"{name!r} is not an optimisation that can be blocked; {hint}")
