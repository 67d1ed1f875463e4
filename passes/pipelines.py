"""A list of passes that can be changed, printed and compared, and whose order is checked; those of the backends."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from mobopt.errors import PassError
from mobopt.options import (
    DEFAULT_LEGALIZE,
    DEFAULT_RUNTIME,
    Settings,
    parse_backend,
    parse_blocklist,
    parse_legalize,
    parse_quantization,
    parse_runtime,
)
from mobopt.passes.backends import steps_for
from mobopt.passes.conv1d_to_2d import Conv1dTo2d
from mobopt.passes.facts import Examples
from mobopt.passes.fold_batch_norm import FoldBatchNorm
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.fuse_add_relu import FuseAddRelu
from mobopt.passes.fuse_clamp import FuseClamp
from mobopt.passes.hoist_conv_packed_params import HoistConvPackedParams
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.manager import Pass
from mobopt.passes.quantize_weights import QuantizeWeights
from mobopt.passes.remove_dropout import RemoveDropout
from mobopt.passes.transfer import Transfer

_NO_EXAMPLES = Examples()


@dataclass(frozen=True)
class Step:
    """A pass at its place."""

    item: Pass
    reason: str = field(default="", compare=False)
    """Why it stands there."""


class PassPipeline(Sequence[Pass]):
    """Passes in order. It is immutable: methods that change something give another pipeline.

    Two pipelines are equal if they have equal passes, with equal options, in the same order.
    """

    def __init__(self, passes: Iterable[Pass | Step] = (), settings: Settings | None = None) -> None:
        """Take over passes.

        Args:
            passes: in order; a pass without a Step has the first line of its docstring for a reason.
            settings: what the passes were chosen for; None if they are good for all.

        Raises:
            PassError: a pass stands before one that it needs before it, or what it needs is not there.
        """
        self.steps = tuple(item if isinstance(item, Step) else Step(item, _summary(item)) for item in passes)
        self.settings = settings
        self._check_order()

    @classmethod
    def default(
        cls,
        backend: str,
        *,
        runtime: str = DEFAULT_RUNTIME,
        legalize: str = DEFAULT_LEGALIZE,
        optimization_blocklist: set[Any] | None = None,
        xnnpack: bool = False,
        copy_to_host: bool = False,
        clear_inputs: bool = True,
        image_limit: int | None = None,
        quantize: str | None = None,
        quantize_group: int | None = None,
        keep_float: Sequence[str] = (),
    ) -> PassPipeline:
        """The passes that ``optimize_for_mobile`` runs, to be changed and given to it; its example inputs come later.

        Args:
            backend: ``'CPU'``, ``'Vulkan'`` or ``'Metal'``, in any case.
            runtime: as for ``optimize_for_mobile``, like those that follow.
            legalize: level of rewrites for the sake of the runtime.
            optimization_blocklist: optimisations to leave out.
            xnnpack: with the backend CPU, use XNNPACK's operators.
            copy_to_host: with the backend Metal, end in ``metal::copy_to_host``.
            clear_inputs: with the backend Vulkan, clamp inputs that are read beyond their last channel.
            image_limit: with the backend Vulkan, largest extent of an image on the device; None: as most phones have.
            quantize: how weights are rounded, like those that follow.
            quantize_group: weights that share a scale.
            keep_float: patterns of layers that keep their weights.

        Raises:
            ArgumentTypeError: an unknown backend, or a blocklist that is not a set.
            InputError: the arguments contradict each other, or the blocklist names an unknown optimisation.
            UnsupportedError: an unknown runtime.
        """
        return pipeline_for(
            Settings(
                parse_backend(backend),
                parse_runtime(runtime),
                parse_blocklist(optimization_blocklist),
                parse_legalize(legalize),
                xnnpack,
                copy_to_host,
                clear_inputs,
                image_limit,
                parse_quantization(quantize, quantize_group, keep_float),
            )
        )

    @property
    def names(self) -> list[str]:
        """Names of the passes, in order."""
        return [step.item.name for step in self.steps]

    def insert_before(self, name: str, item: Pass, reason: str = "", *, number: int | None = None) -> PassPipeline:
        """The pipeline with one more pass, just before another.

        Args:
            name: name of the other pass.
            item: the new pass.
            reason: why it stands there; by default the first line of its docstring.
            number: which of several passes of that name, from 1.

        Raises:
            PassError: there is no such pass, or there are several and none is chosen, or the new pass can't be there.
        """
        place = self._place(name, number)
        return self._spliced(place, place, item, reason)

    def insert_after(self, name: str, item: Pass, reason: str = "", *, number: int | None = None) -> PassPipeline:
        """The pipeline with one more pass, just after another; see :meth:`insert_before`."""
        place = self._place(name, number) + 1
        return self._spliced(place, place, item, reason)

    def replace(self, name: str, item: Pass, reason: str = "", *, number: int | None = None) -> PassPipeline:
        """The pipeline with a pass in the place of another, for the same reason unless one is given; see
        :meth:`insert_before`."""
        place = self._place(name, number)
        return self._spliced(place, place + 1, item, reason or self.steps[place].reason)

    def remove(self, name: str, *, number: int | None = None) -> PassPipeline:
        """The pipeline without a pass; see :meth:`insert_before`."""
        place = self._place(name, number)
        return PassPipeline((*self.steps[:place], *self.steps[place + 1 :]), self.settings)

    def without(self, blocklist: Iterable[Any]) -> PassPipeline:
        """The pipeline less what a blocklist names.

        Args:
            blocklist: members of ``MobileOptimizerType`` (ours or torch's), their names, or names of passes.

        Raises:
            PassError: a name is unknown; the message has the nearest ones.
        """
        blocked: set[type[Pass]] = set()
        for entry in blocklist:
            blocked.update(_passes_of(str(getattr(entry, "name", entry))))
        kept = ((_unblocked(step.item, blocked), step.reason) for step in self.steps)
        return PassPipeline([Step(item, reason) for item, reason in kept if item is not None], self.settings)

    def without_rounding(self) -> PassPipeline:
        """The pipeline that leaves weights as they are; itself if it rounds none."""
        kept = [step for step in self.steps if not isinstance(step.item, QuantizeWeights)]
        return self if len(kept) == len(self.steps) else PassPipeline(kept, self.settings)

    def with_examples(self, examples: Examples) -> PassPipeline:
        """The pipeline whose passes judge by these example inputs."""
        steps = [Step(step.item.with_examples(examples), step.reason) for step in self.steps]
        return PassPipeline(steps, self.settings)

    @overload
    def __getitem__(self, index: int) -> Pass: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Pass, ...]: ...

    def __getitem__(self, index: int | slice) -> Pass | tuple[Pass, ...]:
        if isinstance(index, slice):
            return tuple(step.item for step in self.steps[index])
        return self.steps[index].item

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Pass]:
        return (step.item for step in self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PassPipeline) and self.steps == other.steps

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PassPipeline({', '.join(self.names)})"

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        numbered = enumerate(self.steps, 1)
        return "\n".join(f"{number:2} {step.item.name:{width}}  {step.reason}".rstrip() for number, step in numbered)

    def _spliced(self, start: int, end: int, item: Pass, reason: str) -> PassPipeline:
        step = Step(item, reason or _summary(item))
        return PassPipeline((*self.steps[:start], step, *self.steps[end:]), self.settings)

    def _place(self, name: str, number: int | None) -> int:
        places = [index for index, other in enumerate(self.names) if other == name]
        if not places:
            near = difflib.get_close_matches(name, self.names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(dict.fromkeys(self.names))}"
            raise PassError(f"the pipeline has no pass {name!r}; {hint}")
        if number is None and len(places) > 1:
            raise PassError(f"{name} stands {len(places)} times in the pipeline; choose with number=1 to {len(places)}")
        if number is not None and not 1 <= number <= len(places):
            raise PassError(f"number is {number}, and {name} stands {len(places)} times in the pipeline")
        return places[0 if number is None else number - 1]

    def _check_order(self) -> None:
        names = self.names
        for index, step in enumerate(self.steps):
            for other in step.item.after:
                if other.name in names[:index]:
                    continue
                if other.name in names:
                    raise PassError(f"{step.item.name} must stand after {other.name}: {other.why}")
                if other.is_needed:
                    raise PassError(f"{step.item.name} needs {other.name} before it: {other.why}")


def _summary(item: Pass) -> str:
    lines = (type(item).__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def pipeline_for(settings: Settings, examples: Examples = _NO_EXAMPLES) -> PassPipeline:
    """The passes of a conversion, in order.

    Args:
        settings: what is asked for.
        examples: inputs whose sizes decide what the target computes right.

    Raises:
        InputError: the settings contradict each other.
    """
    steps = [Step(item, reason) for item, reason in steps_for(settings, examples)]
    return PassPipeline(steps, settings).without(settings.blocked)


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


def _unblocked(item: Pass, blocked: set[type[Pass]]) -> Pass | None:
    """What is left of a pass; the transfer pass still has to move what runs on the CPU."""
    if type(item) not in blocked:
        return item
    return replace(item, automatic=False) if isinstance(item, Transfer) and item.target is not None else None


def _passes_of(name: str) -> tuple[type[Pass], ...]:
    if name.upper() in OPTIMIZER_TYPES:
        return OPTIMIZER_TYPES[name.upper()]
    by_name = {type(item).name: type(item) for item in (*VULKAN, *METAL, *CPU)}
    if name in by_name:
        return (by_name[name],)
    known = [*OPTIMIZER_TYPES, *by_name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4) or difflib.get_close_matches(
        name.upper(), known, n=1
    )
    hint = f"did you mean {near[0]}?" if near else f"known names are {', '.join(known)}"
    raise PassError(f"{name!r} is not an optimisation that can be blocked; {hint}")


VULKAN = pipeline_for(Settings("vulkan"))
METAL = pipeline_for(Settings("metal", copy_to_host=True))
CPU = pipeline_for(Settings("cpu"))
"""The pipelines of each backend without example inputs."""
