"""A CPU that insists on devices as PyTorch Mobile's does: it refuses operators whose tensors lie in several places."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Node, Program
from mobopt.ir.nests import leaves_of
from mobopt.ops.effects import reads_metadata
from mobopt.ops.schemas import schema_of
from mobopt.ops.targets import Target, judge
from mobopt.passes.facts import Examples, record_facts
from mobopt.runtimes.cpu import Interpreter


class DeviceInterpreter(Interpreter):
    """Runs a program and follows where its tensors lie.

    A transfer gives a copy elsewhere; other operators run where their tensors are, which has to be one place, but for
    arguments that the target's rows say a kernel takes from the CPU. ``places`` collects where each operator ran.
    """

    def __init__(self, program: Program, target: Target) -> None:
        super().__init__(program)
        self.target = target
        self.places: defaultdict[str, set[str]] = defaultdict(set)
        self.gpu_nodes: set[Node] = set()
        self._devices: dict[int, tuple[torch.Tensor, str]] = {}

    def device_of(self, tensor: torch.Tensor) -> str:
        """Where a tensor lies; weights and inputs lie on the CPU."""
        return self._devices.get(id(tensor), (tensor, "cpu"))[1]

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Run an operator where its tensors are."""
        if node.qualified_op == "aten::to.prim_Device" and args[1] is not None and args[2] is None:
            return self._keep(args[0].clone(), args[1].type)
        tensors = list(leaves_of(args, torch.Tensor))
        places = {self.device_of(tensor) for tensor in tensors}
        if len(places) > 1:
            self._check_mixed(node, args)
        place = "vulkan" if "vulkan" in places else "cpu"
        assert not (node.op.startswith("vulkan_prepack::run") and place == "cpu"), f"{node!r} reads the CPU's tensors"
        result = super().operator(node, args)
        if not reads_metadata(node) and tensors:
            self.places[node.qualified_op].add(place)
            self.gpu_nodes.update([node] if place == "vulkan" else [])
        for tensor in leaves_of(result, torch.Tensor):
            self._keep(tensor, place)
        return result

    def _check_mixed(self, node: Node, args: Sequence[Any]) -> None:
        """The GPU's kernel has to take these arguments from the CPU."""
        row = judge(node, self.target, self.program.attributes).row
        allowed = row.cpu_operands if row is not None else ()
        for argument, value in zip(schema_of(node.qualified_op).arguments, args, strict=True):
            for tensor in leaves_of([value], torch.Tensor):
                if self.device_of(tensor) == "cpu":
                    assert argument.name in allowed, f"{node!r} reads {argument.name} from the CPU, the rest elsewhere"

    def _keep(self, tensor: torch.Tensor, device: str) -> torch.Tensor:
        self._devices[id(tensor)] = (tensor, device)
        return tensor


def run_on_devices(program: Program, target: Target, inputs: Sequence[Any]) -> tuple[Any, dict[str, set[str]]]:
    """What ``forward`` returns, all of it on the CPU, and where each operator ran.

    Raises:
        AssertionError: an operator's tensors lie in several places, or a result is not on the CPU.
    """
    result, interpreter = _run(program, target, inputs, "forward")
    return result, dict(interpreter.places)


def run_judged(
    program: Program, target: Target, inputs: Sequence[Any], method: str = "forward"
) -> tuple[Any, dict[str, set[str]]]:
    """The same of any method, where the GPU runs only what the target computes right for these inputs.

    Raises:
        AssertionError: it runs something else.
    """
    result, interpreter = _run(program, target, inputs, method)
    for node in interpreter.gpu_nodes:
        finding = judge(node, target, program.attributes)
        assert finding.verdict == "native", f"{node!r} on the GPU: {finding}"
    return result, dict(interpreter.places)


def _run(program: Program, target: Target, inputs: Sequence[Any], method: str) -> tuple[Any, DeviceInterpreter]:
    record_facts(program, Examples({method: inputs}))
    interpreter = DeviceInterpreter(program, target)
    result = interpreter.run(method, inputs)
    for tensor in leaves_of([result], torch.Tensor):
        assert interpreter.device_of(tensor) == "cpu", "a result stays on the GPU"
    return result, interpreter
