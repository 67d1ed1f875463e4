"""Folds the steps of rotary positions into one node, then what a decoder does with queries, keys and values."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from mobopt.ir import Graph, Node, Value
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.rotary_kernel import MOST_JOBS, may_rotate
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.rotary import ROTARY, Put, Rotation, is_same_rows, put_of, rotation_of


def fold_rotary(graph: Graph, device: DeviceInfo, on_host: Container[Node] = ()) -> None:
    """Let one node compute rotary positions, where nothing else reads the steps.

    Given:
        %a, %b = aten::chunk(%x, 2, -1)
        %p : Float(1, 4, 7, 8) = aten::mul.Tensor(%x, %cosines)
        %n : Float(1, 4, 7, 4) = aten::neg(%b)
        %t : Float(1, 4, 7, 8) = aten::cat([%n, %a], -1)
        %s : Float(1, 4, 7, 8) = aten::mul.Tensor(%t, %sines)
        %y : Float(1, 4, 7, 8) = aten::add.Tensor(%p, %s, 1)
    Result:
        %y : Float(1, 4, 7, 8) = mobopt::rotary()
          block0():
            ...

    Of neighbours in place of halves, ``%t`` is ``stack([%n, %a], -1)`` of every second element, flattened. Nodes of
    ``on_host`` stay as they are.
    """
    if not may_rotate(device):
        return
    order = {node: number for number, node in enumerate(graph.block.nodes)}
    for node in reversed(list(graph.block.nodes)):
        found = None if node in on_host or node.block is not graph.block else rotation_of(node)
        if found is not None and not any(part in on_host or why_unsupported(part) for part in found.nodes):
            enclose([*sorted(found.nodes[:-1], key=order.__getitem__), node], ROTARY)


@dataclass(frozen=True, eq=False)
class _Job:
    """A node that turns rows, or puts one into a cache, which may be turned before."""

    nodes: tuple[Node, ...]
    """In order; the last makes what is read elsewhere."""
    turn: Rotation | None
    put: Put | None

    @property
    def size(self) -> tuple[int, ...]:
        """Batches, rows that come in, and their elements: the same of all jobs of a node."""
        *lead, elements = self.nodes[-1].output.sizes
        row = -2 if self.turn is not None and self.turn.is_of_rows_first else -1
        return (lead[0] if len(lead) > 2 else 1, 1 if self.put else lead[row], elements)

    def goes_with(self, other: _Job) -> bool:
        """Whether one node may do both."""
        turns = [job.turn for job in (self, other) if job.turn is not None]
        same_tables = len(turns) < 2 or all(map(_are_same, *(turn.tables for turn in turns)))  # as many elements, too
        same_tables = same_tables and len({turn.of_neighbours for turn in turns}) < 2
        same_place = self.put is None or other.put is None or self.put.index is other.put.index
        return self.size == other.size and same_tables and same_place


def join_rotary(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    long: Container[Value] = (),
    in_place: Container[Value] = (),
) -> None:
    """Let one node turn queries and keys, and put keys and values into their caches.

    Given:
        %q1 : Float(1, 4, 1, 8) = mobopt::rotary()
          ...
        %k1 : Float(1, 2, 1, 8) = mobopt::rotary()
          ...
        %keys1 : Float(1, 2, 16, 8) = aten::index_copy(%keys, 2, %place, %k1)
        %values1 : Float(1, 2, 16, 8) = aten::index_copy(%values, 2, %place, %v)
    Result:
        %q1 : Float(1, 4, 1, 8), %keys1 : Float(1, 2, 16, 8), %values1 : Float(1, 2, 16, 8) = mobopt::rotary()
          ...

    Nodes of ``on_host`` stay as they are, and so do those that read what is ``long``, of 64 bits. Values ``in_place``
    are made by such a node in any case.
    """
    if may_rotate(device):
        for group in _groups(graph, _jobs(graph, on_host, long)):
            if sum(len(job.nodes) for job in group) > 1 or group[0].nodes[-1].output in in_place:
                _join(graph, group)


def _are_same(first: Value, second: Value) -> bool:
    """Whether they are one, or the same memory of constants."""
    one, other = first.elements, second.elements
    if first is second or one is None or other is None:
        return first is second
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def _groups(graph: Graph, jobs: Sequence[_Job]) -> list[list[_Job]]:
    """Jobs that go together, where no result is read before the last of them can begin."""
    order: dict[Node | None, int] = {node: number for number, node in enumerate(graph.block.nodes)}

    def first_read(job: _Job) -> int:
        return _first_read(job.nodes[-1].output, order)

    groups: list[list[_Job]] = []
    left = list(jobs)
    while left:
        group, limit = left[:1], first_read(left[0])
        for job in left[1:]:
            if len(group) == MOST_JOBS or order[job.nodes[-1]] >= limit:
                break
            if all(job.goes_with(member) for member in group):
                group.append(job)
                limit = min(limit, first_read(job))
        left = [job for job in left if job not in group]
        groups.append(group)
    return groups


def _first_read(value: Value, order: Mapping[Node | None, int]) -> int:
    """Where a value is read first, but for views, which may as well come later."""
    numbers = (
        _first_read(user.output, order) if is_same_rows(user) else order.get(user, len(order)) for user, _ in value.uses
    )
    return min(numbers, default=len(order))


def _jobs(graph: Graph, on_host: Container[Node], long: Container[Value]) -> list[_Job]:
    jobs: list[_Job] = []
    taken: set[Node] = set()
    for node in reversed(list(graph.block.nodes)):
        if node in taken or node in on_host:
            continue
        put = put_of(node)
        if put is not None and any(value in long for value in node.inputs):
            continue
        nodes = (node,) if put is None else _turned_for(put, on_host)
        turn = nodes[0] if nodes[0].op == ROTARY else None
        taken |= set(nodes)
        if put is not None or turn is not None:
            rotation = None if turn is None else rotation_of(list(turn.blocks[0].nodes)[-1])
            jobs.append(_Job(nodes, rotation, put))
    return jobs[::-1]


def _turned_for(put: Put, on_host: Container[Node]) -> tuple[Node, ...]:
    """What puts a row, and before it what turned the row for nothing else, with views in between."""
    nodes = [put.node]
    value: object = put.source
    while True:
        maker = made_only_for(value, nodes[0])
        if maker is None or maker in on_host:
            return (put.node,)
        nodes.insert(0, maker)
        if maker.op == ROTARY:
            return tuple(nodes)
        if not is_same_rows(maker):
            return (put.node,)
        value = maker.args[0]


def _join(graph: Graph, group: Sequence[_Job]) -> None:
    nodes: list[Node] = []
    ends: list[Node] = []
    for job in group:
        nodes += [part for node in job.nodes for part in (dissolve(node) if node.blocks else [node])]
        ends.append(nodes[-1])
    order = {node: number for number, node in enumerate(graph.block.nodes)}
    _move_views(enclose(sorted(nodes, key=order.__getitem__), ROTARY, ends=ends))


def _move_views(whole: Node) -> None:
    """Put views of what a node makes behind it that stand before it."""
    block, last = whole.block, whole
    assert block is not None, "it was put where its last part stood"
    views = [user for value in whole.outputs for user, _ in value.uses]
    while views:
        view = views.pop(0)
        if view.block is block and view is not block.returns and view.is_before(whole):
            InsertionPoint.after(last).insert(view.remove())
            last = view
            views += [user for user, _ in view.output.uses]
