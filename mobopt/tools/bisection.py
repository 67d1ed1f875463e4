"""Which pass, which of its rewrites, which node on the device, which fusion or which node in half precision makes a
model's outputs differ, found in a logarithmic number of runs, and the smallest program that still shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from mobopt.errors import InputError
from mobopt.options import Precision, PrecisionChoice
from mobopt.passes.pipelines import PassPipeline
from mobopt.runtimes.half_ranges import check_patterns
from mobopt.samples.example_inputs import ExampleInputs, choose_inputs
from mobopt.tools.bisection_results import Bisection
from mobopt.tools.bisection_search import Search
from mobopt.tools.comparison import arguments_of, opened, tolerance_of
from mobopt.tools.comparison_sides import CPU, VULKAN, CpuRunner, Side


def bisect(
    model: object,
    *,
    device: str = VULKAN,
    passes: PassPipeline | None = None,
    method: str = "forward",
    example_inputs: ExampleInputs | None = None,
    tolerance: float | None = None,
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
    show: Callable[[str], None] = lambda step: None,
) -> Bisection:
    """Find what makes a model's outputs differ from those of the model on the CPU, without passes.

    The passes come first, on the CPU: the shortest pipeline that ends in a difference names the pass, and its first
    rewrites that do name the rewrite. If they are right, nodes go to the device in the model's order until the outputs
    differ, and the node that makes them is tried without fusions. If the device is right in float32 and not in halves,
    it is which nodes may be halves that is searched.

    Args:
        model: as for :func:`mobopt.compare`.
        device: ``"vulkan"`` for the best device, a device's number or a part of its name; ``"cpu"``: passes only.
        passes: the passes that the model goes through.
        method: the method that is run.
        example_inputs: as for :func:`mobopt.compare`.
        tolerance: the error of outputs that is let pass, over their scale; without it 1e-4, 1e-2 of fp16, and
            8e-2 of bf16.
        precision: of the device; see :func:`mobopt.load`.
        fp32_nodes: patterns of nodes that keep float32.
        show: is told each step.

    Returns:
        The pass, rewrite, node or fusion to blame, with its source lines and the smallest program that shows it; of the
        kind ``nothing`` if outputs agree.

    Raises:
        InputError: there is nothing to bisect, no inputs are known, or no node matches a pattern.
        MoboptError: the model or the device can't be used.
    """
    if device == CPU and passes is None:
        raise InputError("there is nothing to bisect on the CPU without passes; give passes, or a Vulkan device")
    choice = PrecisionChoice.of(precision, fp32_nodes)
    if choice.is_half and device == CPU:
        raise InputError(f"{precision} is what a Vulkan device stores; choose one with --device")
    tolerance_of(tolerance, (), choice)  # a bad one is refused before anything is read
    started = time.perf_counter()
    show("reading")
    sources = opened(model, None, example_inputs)
    tolerance = tolerance_of(tolerance, sources, choice)
    check_patterns(sources[0].program, choice.fp32_nodes)
    inputs = choose_inputs(sources[0], example_inputs)
    search = Search(arguments_of(sources, method, inputs), method, tolerance, show)
    plain = Side(sources[0].name, sources[0].program, CPU)
    search.expected = search.results(CpuRunner(plain, method))
    found, side = (None, plain) if passes is None else search.bad_pass(plain, passes.with_examples(inputs.examples))
    if found is None and device != CPU:
        found = search.bad_on_device(replace(side, device=device, precision=choice))
    found = found or search.nothing(device)
    seconds = time.perf_counter() - started
    return replace(
        found,
        inputs=str(inputs.of([method])),
        tolerance=tolerance,
        runs=search.runs,
        seconds=seconds,
        precision=choice.precision,
    )
