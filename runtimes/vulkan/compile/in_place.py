"""Which parts of a model's state a call may write to where they lie: caches of which it replaces one row."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from mobopt.ir import Node, Value
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.rotary_kernel import may_rotate
from mobopt.runtimes.vulkan.lowerings.rotary import put_of

NO_WRITES_IN_PLACE = "no-writes-in-place"
"""The switch by which calls copy what they change of the state."""


def written_in_place(
    segment: Segment,
    device: DeviceInfo,
    state: Collection[Value],
    on_host: Container[Node],
    long: Container[Value],
) -> Mapping[Value, Value]:
    """What becomes of parts of the state, and the inputs in whose memory it may come to lie.

    Nothing else may read such an input, or be given what becomes of it, which later calls write to. What the device
    has written is undone if the call fails. Where the host computes in the middle of a call, nothing is written.

    Args:
        segment: of the call.
        device: where it runs.
        state: inputs that are parts of the state, in arrays that nobody else has.
        on_host: nodes that run on the CPU.
        long: integers of 64 bits.
    """
    if not (state and segment.is_complete and may_rotate(device)) or NO_WRITES_IN_PLACE in device.switches:
        return {}
    graph = segment.graph
    if any(node in on_host for node in graph.block.nodes):
        return {}
    given = {*segment.values_in(segment.result), *segment.values_in(segment.updates)}
    made = list(segment.written.values())
    found: dict[Value, Value] = {}
    for target, value in segment.written.items():
        put = None if value.producer is None else put_of(value.producer)
        is_alone = target in state and len(target.uses) == 1 and value not in given and made.count(value) == 1
        if put is not None and is_alone and put.cache is target and not any(item in long for item in put.node.inputs):
            found[value] = target
    return found
