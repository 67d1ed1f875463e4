"""Fits costs to times: first so that predictions are right, then so that choices are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.tuning.measuring import Measured

Parameters = dict[str, float]
Predict = Callable[[ProductKernel, ProductShape], float]
"""Nanoseconds of a kernel."""
Model = Callable[[Parameters], Predict]

_ERROR_WEIGHT = 0.02
"""Of a wrong prediction beside a wrong choice: choices are what costs are for."""
_DISTANCE_WEIGHT = 0.001
"""Of a cost far from what it was, so that costs which decide nothing stay."""
_STEPS = (2.0, 1.4, 1.15)
_MOST_SWEEPS = 12
_FIXED = ("threads",)
"""Which are counted, not fitted."""
_MOST_SOLUTIONS = 25
_NUDGE = 0.01
"""Of a logarithm, for slopes."""
_PULL = 0.002
"""Of a cost far from what it was, beside errors of predictions."""
_LONGEST_STEP = 1.5
_MOST_DAMPING = 1e5
_LEAST_GAIN = 1e-6
_STARTS, _START_DISTANCE = 4, 1.5


def chosen(kernels: Collection[ProductKernel], predict: Predict, shape: ProductShape) -> ProductKernel:
    """What :func:`choose_gpu_kernel` would choose of some kernels: joined parts stand behind the best of the others."""
    predicted = {kernel: predict(kernel, shape) for kernel in kernels}
    best = min((kernel for kernel in kernels if not _joins(kernel)), key=predicted.__getitem__)
    if not isinstance(best, SharedKernel) or (joined := replace(best, joins=True)) not in predicted:
        return best
    return min(best, joined, key=predicted.__getitem__)


def _joins(kernel: ProductKernel) -> bool:
    return isinstance(kernel, SharedKernel) and kernel.joins


def excess(predict: Predict, measured: Sequence[Measured]) -> float:
    """How much longer than the best kernels the chosen ones take: a mean of logarithms."""
    taken = (item.times[chosen(item.times, predict, item.shape)] / item.least for item in measured)
    return sum(map(math.log, taken)) / len(measured)


def mistake(predict: Predict, measured: Sequence[Measured]) -> float:
    """How bad a prediction is: the time that its choices lose, and a little of how far it is off."""
    return excess(predict, measured) + _ERROR_WEIGHT * _error(predict, measured)


def _error(predict: Predict, measured: Sequence[Measured]) -> float:
    """The mean square of the logarithms by which predictions are off, the better a kernel the more it counts."""
    total = 0.0
    for item in measured:
        weights = [item.least / taken for taken in item.times.values()]
        errors = [math.log(predict(kernel, item.shape) / taken) ** 2 for kernel, taken in item.times.items()]
        total += sum(weight * error for weight, error in zip(weights, errors, strict=True)) / sum(weights)
    return total / len(measured)


def fit(start: Parameters, model: Model, measured: Sequence[Measured]) -> Parameters:
    """The parameters that choose best."""

    def found_wrong(tried: Parameters) -> float:
        distance = sum(math.log(tried[name] / value) ** 2 for name, value in start.items()) / len(start)
        return mistake(model(tried), measured) + _DISTANCE_WEIGHT * distance

    return _better(min(start, *_predicting(start, model, measured), key=found_wrong), found_wrong)


def _better(best: Parameters, found_wrong: Callable[[Parameters], float]) -> Parameters:
    """Each parameter in turn is made larger and smaller, by less and less."""
    least = found_wrong(best)
    for step in _STEPS:
        for _ in range(_MOST_SWEEPS):
            before = least
            for tried in _changed(best, step):
                found = found_wrong({**best, **tried})
                if found < least - 1e-6:
                    best, least = {**best, **tried}, found
            if least == before:
                break
    return best


def _changed(parameters: Parameters, step: float) -> Iterator[Parameters]:
    for name, value in parameters.items():
        if name not in _FIXED:
            yield {name: value * step}
            yield {name: value / step}


def predicting(start: Parameters, model: Model, measured: Sequence[Measured]) -> Parameters:
    """The parameters that predict best."""
    return min(_predicting(start, model, measured), key=lambda tried: _error(model(tried), measured))


def _predicting(start: Parameters, model: Model, measured: Sequence[Measured]) -> list[Parameters]:
    """Parameters that predict best nearby, by the method of Levenberg and Marquardt on logarithms, from several starts:
    costs that don't show at one of them do at another."""
    names = [name for name in start if name not in _FIXED]
    origin = torch.tensor([math.log(start[name]) for name in names], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    farther = _START_DISTANCE * torch.randn(_STARTS, len(names), generator=generator, dtype=torch.float64)

    def parameters(place: torch.Tensor) -> Parameters:
        return {**start, **dict(zip(names, place.exp().tolist(), strict=True))}

    def residuals(place: torch.Tensor) -> torch.Tensor:
        predict, found = model(parameters(place)), []
        for item in measured:
            weights = [item.least / taken for taken in item.times.values()]
            share = 1 / (len(measured) * sum(weights))
            for weight, (kernel, taken) in zip(weights, item.times.items(), strict=True):
                found.append(math.sqrt(weight * share) * math.log(predict(kernel, item.shape) / taken))
        pull = math.sqrt(_PULL / len(names)) * (place - origin)
        return torch.cat([torch.tensor(found, dtype=torch.float64), pull])

    starts = [origin, *(origin + step for step in farther)]
    return [parameters(_least_squares(place, residuals)) for place in starts]


def _least_squares(place: torch.Tensor, residuals: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Where the sum of squares is least, near a place."""
    found = residuals(place)
    damping = 0.1
    for _ in range(_MOST_SOLUTIONS):
        nudges = _NUDGE * torch.eye(len(place), dtype=torch.float64)
        slopes = torch.stack([(residuals(place + nudge) - found) / _NUDGE for nudge in nudges], 1)
        square = slopes.T @ slopes
        square += damping * torch.diag(square.diagonal().clamp(min=1e-6))
        tried = place + torch.linalg.solve(square, -slopes.T @ found).clamp(-_LONGEST_STEP, _LONGEST_STEP)
        there = residuals(tried)
        gained = float(found.square().sum() - there.square().sum())
        if gained > 0:
            place, found, damping = tried, there, damping / 4
        else:
            damping *= 6
        if damping > _MOST_DAMPING or 0 < gained < _LEAST_GAIN:
            break
    return place
