"""Geometry of kernels that include ``shaders/glsl/reduction.glsl``: which dimensions are walked by lanes, threads
and loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.geometry import Iteration, merged
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    is_vector_run,
    load_mode,
    read_access,
    reading,
    spread,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.reduction_push import ReductionPush, RewritingPush

MAX_KEPT = 4
MAX_REDUCED = 3
SUMMED_STEPS = 32
"""Steps that a kernel adds up before it adds their sum to the total, as in ``reduction.glsl``. On GPUs, where the outer
loop costs time even if it runs once, few steps are added up at once; CPU drivers would compile another pipeline."""
_GROUP = 128
_CPU_GROUP = 8
_OTHER_ITERATIONS = 64
"""At most: loops over dimensions, and over the threads of an item."""


@dataclass(frozen=True)
class Reduction:
    """How one kernel walks its input.

    ``kept`` holds the strides of the input and of the outputs (all outputs have the same), ``reduced`` those of the
    input and, for
    kernels that write every element, of the output.
    """

    kept: Iteration
    reduced: Iteration
    lanes_reduced: bool
    threads: int
    group: int

    @property
    def items(self) -> int:
        """Results to be computed, a vec4 of them counting once."""
        inner = self.kept.sizes[-1]
        return math.prod(self.kept.sizes[:-1]) * (inner if self.lanes_reduced else -(-inner // VECTOR))

    @property
    def steps(self) -> int:
        """How many runs of elements one invocation reads, a vec4 counting once, each time that it walks its item."""
        inner = self.reduced.sizes[-1]
        runs = math.prod(self.reduced.sizes[:-1]) * (-(-inner // VECTOR) if self.lanes_reduced else inner)
        return -(-runs // self.threads)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Workgroups."""
        return spread(-(-self.items // (self.group // self.threads)))

    def lane_mode(self, tensor: DeviceTensor, number: int) -> LoadMode:
        """How four lanes of a tensor are read, whose strides are those of this number."""
        kept, reduced = self.kept.strides[number], self.reduced.strides[number]
        strides = (*kept, *reduced) if self.lanes_reduced else (*reduced, *kept)
        mode = load_mode(tensor.offset, strides)
        inner = self.reduced.sizes[-1] if self.lanes_reduced else self.kept.sizes[-1]
        beyond = inner % VECTOR and tensor.span[1] + VECTOR - inner % VECTOR > tensor.storage.capacity
        return LoadMode.SINGLES if mode == LoadMode.VECTOR and beyond else mode

    def stores_vectors(self, target: DeviceTensor) -> bool:
        """Whether a result is written in whole vec4s."""
        kept, reduced = self.kept, self.reduced
        writes_all = len(reduced.strides) > 1
        if self.lanes_reduced:
            inner, strides = reduced.sizes[-1], (*kept.strides[1], *(reduced.strides[1] if writes_all else (0,)))
        else:
            inner, strides = kept.sizes[-1], (*(reduced.strides[1] if writes_all else ()), *kept.strides[1])
        return inner % VECTOR == 0 and is_vector_run(target.offset, strides)


def plan_reduction(
    device: DeviceInfo,
    source: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    *,
    writes_all: bool,
    shares: bool = True,
    others: Sequence[DeviceTensor] = (),
    order_by: int | None = None,
) -> Reduction | None:
    """How to reduce ``dims`` of ``source`` into ``target``, which has the same rank; None if it takes too many
    dimensions.

    Args:
        device: decides how many threads share an item.
        source: what is read.
        target: its reduced dimensions have size 1, unless ``writes_all``.
        dims: the reduced dimensions.
        writes_all: whether the kernel writes the reduced dimensions too.
        shares: whether the kernel can share an item between threads.
        others: what else it reads, of the source's sizes; only with ``writes_all``.
        order_by: 0 where the reduced dimensions may be walked in another order, that of the source's memory.
    """
    kept_dims = [d for d in range(source.rank) if d not in dims]
    kept_tensors = (source, target, *others)
    kept = merged(_pick(source.sizes, kept_dims), [_pick(t.strides, kept_dims) for t in kept_tensors])
    reduced_tensors = kept_tensors if writes_all else (source,)
    reduced = merged(_pick(source.sizes, dims), [_pick(t.strides, dims) for t in reduced_tensors], order_by=order_by)
    if kept.rank > MAX_KEPT or reduced.rank > MAX_REDUCED:
        return None
    lanes_reduced = shares and _reduced_is_inner(kept, reduced)
    if lanes_reduced and kept.sizes == (1,):  # no step to another item keeps lanes from being whole vec4s
        kept = Iteration(kept.sizes, ((0,),) * len(kept.strides))
    if not lanes_reduced:
        kept = _rounded(kept, reduced, source, target)
    threads, group = _threads(device, kept, reduced, lanes_reduced) if shares else (1, _group(device))
    return Reduction(kept, reduced, lanes_reduced, threads, group)


def _pick(values: Sequence[int], dims: Sequence[int]) -> list[int]:
    return [values[d] for d in dims]


def _reduced_is_inner(kept: Iteration, reduced: Iteration) -> bool:
    """Whether neighbouring elements are reduced with each other."""
    if reduced.sizes[-1] == 1:
        return False
    kept_step = min(
        (abs(stride) for size, stride in zip(kept.sizes, kept.strides[0], strict=True) if size > 1), default=0
    )
    return kept_step == 0 or abs(reduced.strides[0][-1]) < kept_step


def _rounded(kept: Iteration, reduced: Iteration, source: DeviceTensor, target: DeviceTensor) -> Iteration:
    """The inner kept dimension rounded up to whole vec4s, if what pads it can be read and written."""
    rounded = -(-kept.sizes[-1] // VECTOR) * VECTOR
    extra = rounded - kept.sizes[-1]
    fits = all(
        strides[-1] == 1 and tensor.span[1] + extra <= tensor.storage.capacity
        for tensor, strides in zip((source, target), kept.strides[:2], strict=True)
    )
    written = kept.strides[1][:-1] + (reduced.strides[1] if len(reduced.strides) > 1 else ())
    room = all(stride >= rounded for stride in written)
    return Iteration((*kept.sizes[:-1], rounded), kept.strides) if fits and room else kept


def _group(device: DeviceInfo) -> int:
    return _CPU_GROUP if device.is_cpu else _GROUP


def _threads(device: DeviceInfo, kept: Iteration, reduced: Iteration, lanes_reduced: bool) -> tuple[int, int]:
    """Threads of an item, and of a workgroup. CPU drivers pay for barriers, so there an item has one thread."""
    if device.is_cpu:
        return 1, _CPU_GROUP
    steps = math.prod(reduced.sizes) // (VECTOR if lanes_reduced else 1)
    threads = 1
    while threads < _GROUP and threads * 4 <= steps:
        threads *= 2
    return threads, _GROUP


@replayable
def run_reduction(
    plan: Plan,
    shader: str,
    reduction: Reduction,
    sources: Sequence[DeviceTensor],
    targets: Sequence[DeviceTensor],
    constants: Sequence[int | float] = (),
    push: Callable[..., ReductionPush] = ReductionPush,
    *,
    passes: int = 1,
) -> None:
    """Dispatch a kernel of the family.

    Args:
        plan: where the dispatch goes.
        shader: variant name without the suffix of texel buffers, or of integers of 64 bits.
        reduction: from :func:`plan_reduction`.
        sources: what is read, all with the sizes, strides and offset of the first.
        targets: what is written, all with the strides and offset of the first, and all but indices with elements of the
        last one's form.
        constants: the kernel's own specialization constants.
        push: makes the push constants of what all such kernels have.
        passes: how often the kernel walks the elements of an item.
    """
    if targets[0].numel == 0:
        return
    source = sources[0]
    kept, reduced = reduction.kept, reduction.reduced
    mode = reduction.lane_mode(source, 0)
    long = any(tensor.is_long for tensor in (*sources, *targets))
    texels = not long and uses_texels(plan.device, [(source, mode)])
    specialization = [
        reduction.group,
        kept.rank,
        reduced.rank,
        reduction.threads,
        int(reduction.lanes_reduced),
        read_access(source, mode),
        write_access(targets[-1], reduction.stores_vectors(targets[0])),
        int(plan.device.is_cpu or reduction.steps > 2 * SUMMED_STEPS),
        *constants,
    ]
    if len(reduced.strides) > 1:
        push = partial(RewritingPush, output_reduced=reduced.strides[1])
    sizes = (*kept.sizes, *reduced.sizes)
    places = (source.offset, *kept.strides[0], *reduced.strides[0]), (targets[0].offset, *kept.strides[1])
    plan.dispatch(
        f"{shader}{'_long' if long else '_texels' if texels else ''}",
        [*(writing(target) for target in targets), *(reading(each, mode, texels) for each in sources)],
        reduction.grid,
        specialization,
        push(sizes, *places),
        iterations=passes * (reduction.steps + reduction.steps // SUMMED_STEPS + 1) + _OTHER_ITERATIONS,
    )


def regrouped(plan: Plan, source: DeviceTensor, dims: Sequence[int]) -> DeviceTensor:
    """A copy with the kept dimensions first, dense, so that any reduction of ``dims`` has few dimensions."""
    order = [*(d for d in range(source.rank) if d not in dims), *dims]
    dense = contiguous_strides(_pick(source.sizes, order))
    strides = [0] * source.rank
    for d, stride in zip(order, dense, strict=True):
        strides[d] = stride
    return copied(plan, source, strides)
