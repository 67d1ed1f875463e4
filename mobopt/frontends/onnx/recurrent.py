"""LSTM, GRU and RNN: ATen's own where it computes the same, else a loop over the steps."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.control import build_loop, stacked
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.quantization import rounded_dynamically
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Value

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ORDERS = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}
"""ONNX's gates (iofc, zrh) in torch's order (ifgo, rzn)."""
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ALPHAS = {"LeakyRelu": 0.01, "Elu": 1.0, "HardSigmoid": 0.2, "ThresholdedRelu": 1.0, "ScaledTanh": 1.0, "Affine": 1.0}
_BETAS = {"HardSigmoid": 0.5, "ScaledTanh": 1.0, "Affine": 0.0}


@translates("LSTM", "GRU", "RNN")
def _recurrent(call: Call) -> Any:
    """Outputs of all steps, ``steps x directions x batch x hidden``, and the last state."""
    return _layer(call, None)


def dynamically_quantized_lstm(call: Call) -> Any:
    """The same of a LSTM whose input, and whose state at each step, are rounded to 8 bits before they are multiplied.

    Its weights, recurrences and the rest are those of a LSTM of floats.
    """
    return _layer(call, _DynamicCell)


def _layer(call: Call, cell: type[_Cell] | None) -> Any:
    """A layer; with a kind of cell, step by step by such."""
    kind = call.node.op_type
    direction = call.get("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    emit, batch_first = call.emit, bool(call.get("layout", 0))
    x = emit("transpose.int", call.tensor(), 0, 1) if batch_first else call.tensor()
    batch = emit.size(x, 1)
    hidden = call.get("hidden_size") or (call.operand(2).sizes or ())[-1]
    if hidden is None:
        raise call.unsupported("the size of its state is known at run time only")
    states = [
        _initial(call, index, x, [directions, batch, hidden], batch_first) for index in (5, 6)[: 1 + (kind == "LSTM")]
    ]
    if cell is None and _is_plain(call, kind, directions):
        results = _as_torch(call, kind, x, states, direction, hidden)
    else:
        results = _step_by_step(call, kind, x, states, direction, hidden, cell or _Cell)
    steps, *last = results
    if batch_first:  # batch x steps x directions x hidden, batch x directions x hidden
        steps = emit("permute", steps, [2, 0, 1, 3])
        last = [emit("transpose.int", item, 0, 1) for item in last]
    known = call.operand().sizes or (None, None, None)
    time, rows = (known[1], known[0]) if batch_first else (known[0], known[1])
    sizes = (rows, time, directions, hidden) if batch_first else (time, directions, rows, hidden)
    ends = (rows, directions, hidden) if batch_first else (directions, rows, hidden)
    return [Operand(call.dtype(), sizes, steps), *(Operand(call.dtype(), ends, item) for item in last)]


def _initial(call: Call, index: int, x: Any, sizes: list[Any], batch_first: bool) -> Any:
    if not call.has(index):
        return call.emit("zeros", sizes, dtype=call.dtype(), layout=None, device=None, pin_memory=None)
    given = call.tensor(index)
    return call.emit("transpose.int", given, 0, 1) if batch_first else given


def _activations(call: Call, kind: str, directions: int) -> list[str]:
    given = call.get("activations") or _DEFAULTS[kind] * directions
    return [str(name) for name in given]


def _is_plain(call: Call, kind: str, directions: int) -> bool:
    """Whether torch's own operator computes the same."""
    names = [name.lower() for name in _activations(call, kind, directions)]
    expected = [name.lower() for name in _DEFAULTS[kind] * directions]
    is_relu = kind == "RNN" and names == ["relu"] * directions
    lengths = call.known(4) if call.has(4) else []
    full = (call.operand().sizes or (None, None))[1 if call.get("layout", 0) else 0]
    is_whole = lengths == [] or (lengths is not None and full is not None and set(lengths) == {full})
    return (
        (names == expected or is_relu)
        and not call.get("clip")
        and is_whole
        and not call.has(7)
        and not call.get("input_forget", 0)
        and (kind != "GRU" or bool(call.get("linear_before_reset", 0)))
    )


def _reordered(call: Call, weight: Any, kind: str, hidden: int) -> Any:
    """Rows of gates in torch's order."""
    order = _ORDERS[kind]
    if len(order) == 1:
        return weight
    parts = [call.emit("slice.Tensor", weight, 0, gate * hidden, (gate + 1) * hidden, 1) for gate in order]
    return call.emit("cat", parts, 0)


def _parameters(call: Call, kind: str, direction: int, hidden: int) -> tuple[Any, Any, Any, Any]:
    """Weights and biases of input and state of a direction, in ONNX's order of gates."""
    emit, rows = call.emit, _GATES[kind] * hidden
    weights = [emit("select.int", call.tensor(index), 0, direction) for index in (1, 2)]
    if call.has(3):
        bias = emit("select.int", call.tensor(3), 0, direction)
        biases = [emit("slice.Tensor", bias, 0, part * rows, (part + 1) * rows, 1) for part in (0, 1)]
    else:
        biases = [torch.zeros(rows, dtype=call.dtype()) for _ in range(2)]
    return weights[0], weights[1], biases[0], biases[1]


def _as_torch(call: Call, kind: str, x: Any, states: list[Any], direction: str, hidden: int) -> list[Any]:
    emit = call.emit
    directions = 2 if direction == "bidirectional" else 1
    parameters = []
    for number in range(directions):
        parts = _parameters(call, kind, number, hidden)
        parameters += [_reordered(call, part, kind, hidden) for part in parts]
    x = emit("flip", x, [0]) if direction == "reverse" else x
    settings = [True, 1, 0.0, False, directions == 2, False]
    if kind == "LSTM":
        steps, *last = emit("lstm.input", x, states, parameters, *settings)
    else:
        is_relu = kind == "RNN" and _activations(call, kind, directions)[0].lower() == "relu"
        op = "gru.input" if kind == "GRU" else "rnn_relu.input" if is_relu else "rnn_tanh.input"
        steps, *last = emit(op, x, states[0], parameters, *settings)
    steps = emit("reshape", steps, [emit.size(x, 0), emit.size(x, 1), directions, hidden])
    steps = emit("permute", steps, [0, 2, 1, 3])
    return [emit("flip", steps, [0]) if direction == "reverse" else steps, *last]


def _step_by_step(
    call: Call, kind: str, x: Any, states: list[Any], direction: str, hidden: int, made: type[_Cell]
) -> list[Any]:
    emit = call.emit
    x = made.before(call, x)
    directions = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    found = []
    for number, name in enumerate(directions):
        mine = [emit("select.int", state, 0, number) for state in states]
        cell = made(call, kind, number, hidden, len(directions))
        found.append(_one_direction(call, cell, x, mine, name == "reverse"))
    return [
        emit("stack", [item[0] for item in found], 1),
        *(emit("stack", list(items), 0) for items in list(zip(*found, strict=True))[1:]),
    ]


def _one_direction(call: Call, cell: _Cell, x: Any, states: list[Any], is_reverse: bool) -> list[Any]:
    """A loop over the steps; rows that have ended keep their state, and give zeros."""
    emit = call.emit
    lengths = emit("reshape", call.tensor(4), [-1, 1]) if call.has(4) else None
    trips = emit.size(x, 0)
    sizes = (None, cell.hidden)
    carried = [Operand(call.dtype(), sizes, state) for state in states]

    def body(trip: Value, goes_on: Value, items: list[Any]) -> Any:
        place = emit("sub.int", emit("sub.int", trips, 1), trip) if is_reverse else trip
        before = [item.value for item in items]
        after = cell.step(emit("select.int", x, 0, place), before)
        shown = after[0]
        if lengths is not None:
            runs = emit("gt.Scalar", lengths, place)
            after = [emit("where.self", runs, new, old) for new, old in zip(after, before, strict=True)]
            shown = emit("mul.Tensor", after[0], emit("to.dtype", runs, call.dtype()))
        results = [Operand(call.dtype(), sizes, item) for item in after]
        return True, results, [Operand(call.dtype(), sizes, shown)]

    last, ((listed, part),) = build_loop(call, trips, True, carried, 1, body)
    steps = stacked(call, listed, part).value
    steps = emit("flip", steps, [0]) if is_reverse else steps
    return [steps, *(item.value for item in last if isinstance(item, Operand))]


class _Cell:
    """One step of one direction, by ONNX's formulae."""

    def __init__(self, call: Call, kind: str, number: int, hidden: int, directions: int) -> None:
        self.call, self.kind, self.hidden = call, kind, hidden
        self.weight, self.recurrence, self.bias, self.recurrence_bias = _parameters(call, kind, number, hidden)
        count = len(_DEFAULTS[kind])
        names = _activations(call, kind, directions)
        self.names = names[number * count : (number + 1) * count]
        self.alphas = (call.get("activation_alpha") or [])[number * count :]
        self.betas = (call.get("activation_beta") or [])[number * count :]
        self.peepholes: list[Any] = []
        if call.has(7):
            row = call.emit("select.int", call.tensor(7), 0, number)
            self.peepholes = [self._rows(row, part, 0) for part in range(3)]

    @staticmethod
    def before(call: Call, x: Any) -> Any:
        """What steps take of the input."""
        return x

    def step(self, x: Any, states: list[Any]) -> list[Any]:
        """The states after a step."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind](x, states)

    def _rows(self, tensor: Any, part: int, dim: int) -> Any:
        return self.call.emit("slice.Tensor", tensor, dim, part * self.hidden, (part + 1) * self.hidden, 1)

    def _activated(self, index: int, x: Any) -> Any:
        emit, name = self.call.emit, self.names[index]
        clip = self.call.get("clip")
        x = emit("clamp", x, -clip, clip) if clip else x
        alpha = self.alphas[index] if index < len(self.alphas) else _ALPHAS.get(name, 0.0)
        beta = self.betas[index] if index < len(self.betas) else _BETAS.get(name, 0.0)
        match name.lower():
            case "sigmoid" | "tanh" | "relu" | "softplus" as plain:
                return emit(plain, x)
            case "leakyrelu":
                return emit("leaky_relu", x, alpha)
            case "elu":
                return emit("elu", x, alpha)
            case "thresholdedrelu":
                return emit("threshold", x, alpha, 0)
            case "hardsigmoid":
                return emit("clamp", emit("add.Scalar", emit("mul.Scalar", x, alpha), beta), 0, 1)
            case "scaledtanh":
                return emit("mul.Scalar", emit("tanh", emit("mul.Scalar", x, beta)), alpha)
            case "affine":
                return emit("add.Scalar", emit("mul.Scalar", x, alpha), beta)
            case "softsign":
                return emit("div.Tensor", x, emit("add.Scalar", emit("abs", x), 1))
        raise self.call.unsupported(f"its activation {name!r}")

    def _rnn(self, x: Any, states: list[Any]) -> list[Any]:
        emit = self.call.emit
        total = emit("add.Tensor", emit("linear", x, self.weight, self.bias), self._of_state(states[0]))
        return [self._activated(0, total)]

    def _of_state(self, state: Any) -> Any:
        return self.call.emit("linear", state, self.recurrence, self.recurrence_bias)

    def _gru(self, x: Any, states: list[Any]) -> list[Any]:
        emit, (state,) = self.call.emit, states
        given, own = emit("linear", x, self.weight, self.bias), self._of_state(state)
        update = self._activated(0, emit("add.Tensor", self._rows(given, 0, 1), self._rows(own, 0, 1)))
        reset = self._activated(0, emit("add.Tensor", self._rows(given, 1, 1), self._rows(own, 1, 1)))
        if self.call.get("linear_before_reset", 0):
            inner = emit("mul.Tensor", reset, self._rows(own, 2, 1))
        else:
            weight, bias = self._rows(self.recurrence, 2, 0), self._rows(self.recurrence_bias, 2, 0)
            inner = emit("linear", emit("mul.Tensor", reset, state), weight, bias)
        new = self._activated(1, emit("add.Tensor", self._rows(given, 2, 1), inner))
        kept = emit("mul.Tensor", update, state)
        return [emit("add.Tensor", emit("mul.Tensor", emit("rsub.Scalar", update, 1), new), kept)]

    def _lstm(self, x: Any, states: list[Any]) -> list[Any]:
        emit, (state, cell) = self.call.emit, states
        total = emit("add.Tensor", emit("linear", x, self.weight, self.bias), self._of_state(state))
        i, o, f, c = (self._rows(total, part, 1) for part in range(4))
        i = self._activated(0, self._peeped(i, 0, cell))
        f = (
            emit("rsub.Scalar", i, 1)
            if self.call.get("input_forget", 0)
            else self._activated(0, self._peeped(f, 2, cell))
        )
        new = emit("add.Tensor", emit("mul.Tensor", f, cell), emit("mul.Tensor", i, self._activated(1, c)))
        o = self._activated(0, self._peeped(o, 1, new))
        clip = self.call.get("clip")
        shown = self._activated(2, new) if not clip else self._unclipped(new)
        return [emit("mul.Tensor", o, shown), new]

    def _unclipped(self, cell: Any) -> Any:
        """Only what goes into gates is clipped."""
        if self.names[2] not in ("Tanh", "Sigmoid", "Relu"):
            raise self.call.unsupported(f"it clips, with the activation {self.names[2]!r}")
        return self.call.emit(self.names[2].lower(), cell)

    def _peeped(self, gate: Any, index: int, cell: Any) -> Any:
        if not self.peepholes:
            return gate
        return self.call.emit("add.Tensor", gate, self.call.emit("mul.Tensor", self.peepholes[index], cell))


class _DynamicCell(_Cell):
    """A step that multiplies rounded numbers."""

    @staticmethod
    def before(call: Call, x: Any) -> Any:
        """The whole input, rounded together."""
        rounded, step, zero = rounded_dynamically(call, x)
        return call.emit("mul.Tensor", call.emit("sub.Tensor", rounded, zero), step)

    def _of_state(self, state: Any) -> Any:
        return super()._of_state(self.before(self.call, state))
