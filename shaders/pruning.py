"""SPIR-V without the branches that specialization constants rule out.

A variant is one text for many kernels: operators, types of elements and the shapes of blocks are specialization
constants, and what they don't choose is most of a module. Drivers translate all of it before they find that out. Here
constants are followed through each function once, from block to block in their order (as Wegman and Zadeck, "Constant
propagation with conditional branches", 1991, but optimistic about nothing that comes back from below), and blocks that
can't be reached are left out. Only branches change: constants stay specialization constants, for pipelines to give.

Of the format (the SPIR-V specification, version 1.3) this knows words 0 to 4, the instructions that are named here, and
that a structured header names blocks which must exist though nothing reaches them. Switches are of 32 bits. A module
whose blocks lie in an order that one walk doesn't do for is left whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

_MOST_MODULES = 64
_MOST_RESULTS = 256
"""That are kept: a network has a dozen modules and twice as many pipelines, which twins of a device make again."""

_MAGIC = 0x07230203
_HEADER_WORDS = 5
_BOUND = 3
_MASK = 0xFFFFFFFF

_TYPE_BOOL, _TYPE_INT = 20, 21
_TRUE, _FALSE, _CONSTANT = 41, 42, 43
_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OPERATION = 48, 49, 50, 52
_CONSTANTS = frozenset({_TRUE, _FALSE, _CONSTANT, _SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OPERATION})
_NAMES = frozenset({5, 6})
_DECORATE, _SPEC_ID = 71, 1
_FUNCTION, _FUNCTION_END = 54, 56
_UNDEFINED, _PHI, _LOOP_MERGE, _SELECTION_MERGE, _LABEL = 1, 245, 246, 247, 248
_BRANCH, _BRANCH_CONDITIONAL, _SWITCH, _UNREACHABLE = 249, 250, 251, 255
_TERMINATORS = frozenset({_BRANCH, _BRANCH_CONDITIONAL, _SWITCH, 252, 253, 254, _UNREACHABLE, 4416})
_SELECT, _AND, _OR = 169, 167, 166


def _signed(word: int) -> int:
    return word - ((word & 0x80000000) << 1)


def _quotient(a: int, b: int) -> int | None:
    """Of signed words, towards zero; None if it isn't defined."""
    a, b = _signed(a), _signed(b)
    if b == 0:
        return None
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    """With the sign of the dividend."""
    quotient = _quotient(a, b)
    return None if quotient is None else _signed(a) - quotient * _signed(b)


def _shifted(shift: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    return lambda a, b: shift(a, b) if b < 32 else None


_OPERATIONS: dict[int, Callable[..., int | None]] = {
    83: lambda a: a,  # OpCopyObject
    124: lambda a: a,  # OpBitcast
    126: lambda a: -a,
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: a // b if b else None,
    135: _quotient,
    137: lambda a, b: a % b if b else None,
    138: _remainder,
    139: lambda a, b: _signed(a) % _signed(b) if b else None,
    164: lambda a, b: a == b,
    165: lambda a, b: a != b,
    _OR: lambda a, b: a | b,
    _AND: lambda a, b: a & b,
    168: lambda a: not a,
    _SELECT: lambda a, b, c: b if a else c,
    170: lambda a, b: a == b,
    171: lambda a, b: a != b,
    172: lambda a, b: a > b,
    173: lambda a, b: _signed(a) > _signed(b),
    174: lambda a, b: a >= b,
    175: lambda a, b: _signed(a) >= _signed(b),
    176: lambda a, b: a < b,
    177: lambda a, b: _signed(a) < _signed(b),
    178: lambda a, b: a <= b,
    179: lambda a, b: _signed(a) <= _signed(b),
    194: _shifted(lambda a, b: a >> b),
    195: _shifted(lambda a, b: _signed(a) >> b),
    196: _shifted(lambda a, b: a << b),
    197: lambda a, b: a | b,
    198: lambda a, b: a ^ b,
    199: lambda a, b: a & b,
    200: lambda a: ~a,
}
"""By opcode, of words; truth values are 0 and 1."""


@lru_cache(_MOST_RESULTS)
def pruned(spirv: bytes, specialization: bytes) -> bytes:
    """A module without what can't be reached by these values of its specialization constants.

    Args:
        spirv: the module.
        specialization: 32-bit words of constants 0, 1, 2, ...; others are what the module says.

    Raises:
        ValueError: it isn't SPIR-V of this machine's byte order.
    """
    return _module(spirv).pruned(dict(enumerate(array("I", specialization))))


@lru_cache(_MOST_MODULES)
def _module(spirv: bytes) -> Module:
    return Module(spirv)


@dataclass(frozen=True)
class _Block:
    """Places of its instructions; ``merge`` is that of a structured header's, else the terminator's."""

    label: int
    begin: int
    merge: int
    terminator: int
    end: int


@dataclass
class _Function:
    begin: int
    blocks: list[_Block] = field(default_factory=list)
    end: int = 0

    @cached_property
    def places(self) -> dict[int, int]:
        """Of blocks in their order, by their labels."""
        return {block.label: place for place, block in enumerate(self.blocks)}


@dataclass
class _Reached:
    """What of a function can be reached: labels, and pairs of labels that follow each other."""

    labels: set[int] = field(default_factory=set)
    edges: set[tuple[int, int]] = field(default_factory=set)
    chosen: dict[int, int] = field(default_factory=dict)
    """The only block that follows another one which has a choice, by labels."""


class Module:
    """A module of SPIR-V, as it was read."""

    def __init__(self, spirv: bytes) -> None:
        """Find its functions and their blocks; raises as :func:`pruned` does."""
        self._words = array("I", spirv)
        if len(self._words) < _HEADER_WORDS or self._words[0] != _MAGIC:
            raise ValueError("this is no SPIR-V module")
        self._scalars: set[int] = set()
        self._spec_ids: dict[int, int] = {}
        self._constants: list[int] = []
        self._functions: list[_Function] = []
        self._before = array("I")
        """What comes before decorations, without names."""
        self._decorations: dict[int, array[int]] = {}
        """By the labels of the blocks whose results they are of; 0 for all that is outside of functions."""
        self._between = array("I")
        """What comes after them, before functions."""
        self._read()

    def _read(self) -> None:
        words, place, size = self._words, _HEADER_WORDS, len(self._words)
        decorated: dict[int, array[int]] = {}
        self._before += words[:place]
        label = begin = merge = 0
        while place < size:
            word = words[place]
            opcode, end = word & 0xFFFF, place + (word >> 16)
            if opcode == _FUNCTION:
                self._functions.append(_Function(place))
                label = 0
            elif self._functions:
                if opcode == _LABEL:
                    label, begin, merge = words[place + 1], place, 0
                elif opcode in (_SELECTION_MERGE, _LOOP_MERGE):
                    merge = place
                elif opcode in _TERMINATORS:
                    self._functions[-1].blocks.append(_Block(label, begin, merge or place, place, end))
                elif opcode == _FUNCTION_END:
                    self._functions[-1].end = end
                elif end - place > 2 and words[place + 2] in decorated:  # the first time is where it is defined
                    self._decorate(label, decorated.pop(words[place + 2]))
            elif opcode == _DECORATE:
                decorated.setdefault(words[place + 1], array("I")).extend(words[place:end])
                if words[place + 2] == _SPEC_ID:
                    self._spec_ids[words[place + 1]] = words[place + 3]
            elif opcode not in _NAMES:
                (self._between if decorated else self._before).extend(words[place:end])
                if opcode in _CONSTANTS:
                    self._constants.append(place)
                elif opcode == _TYPE_BOOL or (opcode == _TYPE_INT and words[place + 2] == 32):
                    self._scalars.add(words[place + 1])
            place = end
        for rest in decorated.values():
            self._decorate(0, rest)

    def _decorate(self, label: int, decorations: array[int]) -> None:
        self._decorations.setdefault(label, array("I")).extend(decorations)

    def pruned(self, specialization: Mapping[int, int]) -> bytes:
        """The module without what can't be reached where specialization constants are these words, by number."""
        known = self._known_constants(specialization)
        head, code, undefined = self._before[:], array("I"), dict[int, int]()
        head += self._decorations.get(0, array("I"))
        for function in self._functions:
            reached = self._reach(function, dict(known))
            if reached is None:
                return self._words.tobytes()
            self._write(code, function, reached, undefined)
            for label in self._decorations.keys() & reached.labels:
                head += self._decorations[label]
        head += self._between
        for kind, name in undefined.items():
            head.extend([3 << 16 | _UNDEFINED, kind, name])
        head[_BOUND] += len(undefined)
        return (head + code).tobytes()

    def _known_constants(self, specialization: Mapping[int, int]) -> dict[int, int]:
        """Words of 32-bit integers and truth values by their ids."""
        words, known = self._words, dict[int, int]()
        for place in self._constants:
            opcode, kind, name = words[place] & 0xFFFF, words[place + 1], words[place + 2]
            if kind not in self._scalars:
                continue
            if opcode == _SPEC_OPERATION:
                self._evaluate(known, words[place + 3], name, place + 4, place + (words[place] >> 16))
                continue
            value = words[place + 3] if opcode in (_CONSTANT, _SPEC_CONSTANT) else int(opcode in (_TRUE, _SPEC_TRUE))
            if opcode in (_SPEC_TRUE, _SPEC_FALSE):
                value = int(specialization.get(self._spec_ids.get(name, -1), value) != 0)
            elif opcode == _SPEC_CONSTANT:
                value = specialization.get(self._spec_ids.get(name, -1), value)
            known[name] = value
        return known

    def _evaluate(self, known: dict[int, int], opcode: int, name: int, begin: int, end: int) -> None:
        """Know what an operation gives, whose operands are at ``begin`` to ``end``, if they tell."""
        operation = _OPERATIONS.get(opcode)
        if operation is None:
            return
        operands = [known.get(word) for word in self._words[begin:end]]
        if None not in operands:
            value = operation(*operands)
        elif opcode == _SELECT and operands[0] is not None:
            value = operands[1] if operands[0] else operands[2]
        elif (opcode == _AND and 0 in operands) or (opcode == _OR and 1 in operands):
            value = int(opcode == _OR)
        else:
            value = None
        if value is not None:
            known[name] = int(value) & _MASK

    def _reach(self, function: _Function, known: dict[int, int]) -> _Reached | None:
        """Follow constants from the first block on; None if blocks lie in an order that one walk doesn't do for."""
        words, places, reached = self._words, function.places, _Reached()
        reached.labels.add(function.blocks[0].label)
        for number, block in enumerate(function.blocks):
            if block.label not in reached.labels:
                continue
            for place, end in self._instructions(block.begin, block.merge):
                if end - place < 3 or words[place + 1] not in self._scalars:
                    continue
                opcode = words[place] & 0xFFFF
                if opcode == _PHI:
                    self._know_phi(known, place, end, block.label, number, places, reached)
                else:
                    self._evaluate(known, opcode, words[place + 2], place + 3, end)
            targets = self._targets(block, known)
            if len(targets) == 1 and words[block.terminator] & 0xFFFF != _BRANCH:
                reached.chosen[block.label] = targets[0]
            for target in targets:
                if places[target] <= number and target not in reached.labels:
                    return None
                reached.labels.add(target)
                reached.edges.add((block.label, target))
        return reached

    def _instructions(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        words = self._words
        while begin < end:
            following = begin + (words[begin] >> 16)
            yield begin, following
            begin = following

    def _know_phi(
        self,
        known: dict[int, int],
        begin: int,
        end: int,
        label: int,
        number: int,
        places: Mapping[int, int],
        reached: _Reached,
    ) -> None:
        """A phi is known if it is the same from wherever its block is reached; from below anything may come."""
        words, values = self._words, set[int | None]()
        for place in range(begin + 3, end, 2):
            value, before = words[place], words[place + 1]
            if places[before] >= number:
                return
            if (before, label) in reached.edges:
                values.add(known.get(value))
        if len(values) == 1 and (only := values.pop()) is not None:
            known[words[begin + 2]] = only

    def _targets(self, block: _Block, known: Mapping[int, int]) -> list[int]:
        """Blocks that may follow."""
        words, place = self._words, block.terminator
        opcode = words[place] & 0xFFFF
        if opcode == _BRANCH:
            return [words[place + 1]]
        if opcode == _BRANCH_CONDITIONAL:
            value = known.get(words[place + 1])
            both = list(words[place + 2 : place + 4])
            return both if value is None else both[:1] if value else both[1:]
        if opcode == _SWITCH:
            value = known.get(words[place + 1])
            labels = dict(zip(words[place + 3 : block.end : 2], words[place + 4 : block.end : 2], strict=True))
            return [*labels.values(), words[place + 2]] if value is None else [labels.get(value, words[place + 2])]
        return []

    def _write(self, result: array[int], function: _Function, reached: _Reached, undefined: dict[int, int]) -> None:
        """Append a function with the blocks that are reached, and with empty ones where headers name others.

        Values that come from empty blocks are undefined; they are added to ``undefined``, by their types.
        """
        words = self._words
        result += words[function.begin : function.blocks[0].begin]
        merges, back = self._named(function, reached)
        for block in function.blocks:
            if block.label in reached.labels:
                self._write_block(result, block, reached, back, undefined)
            elif block.label in back:
                result.extend([2 << 16 | _LABEL, block.label, 2 << 16 | _BRANCH, back[block.label]])
            elif block.label in merges:
                result.extend([2 << 16 | _LABEL, block.label, 1 << 16 | _UNREACHABLE])
        result += words[function.blocks[-1].end : function.end]

    def _named(self, function: _Function, reached: _Reached) -> tuple[set[int], dict[int, int]]:
        """Blocks that nothing reaches and that must be there: ends of constructs, and places where loops go on, with
        these their headers."""
        words, merges, back = self._words, set[int](), dict[int, int]()
        for block in function.blocks:
            if block.label not in reached.labels or block.merge == block.terminator:
                continue
            opcode, place = words[block.merge] & 0xFFFF, block.merge
            if opcode == _LOOP_MERGE or not self._is_resolved(block, reached):
                merges.add(words[place + 1])
            if opcode == _LOOP_MERGE and words[place + 2] not in reached.labels:
                back[words[place + 2]] = block.label
        return merges - reached.labels, back

    def _is_resolved(self, block: _Block, reached: _Reached) -> bool:
        """Whether a choice of two became a plain branch. A switch stays one, as blocks inside of it may leave it."""
        return self._words[block.terminator] & 0xFFFF == _BRANCH_CONDITIONAL and block.label in reached.chosen

    def _write_block(
        self,
        result: array[int],
        block: _Block,
        reached: _Reached,
        back: Mapping[int, int],
        undefined: dict[int, int],
    ) -> None:
        words, body = self._words, block.begin
        for place, end in self._instructions(block.begin, block.merge):
            if words[place] & 0xFFFF == _PHI:
                result += words[body:place]
                pairs = self._pairs(place, end, block.label, reached)
                kind = words[place + 1]
                for empty in (empty for empty, header in back.items() if header == block.label):
                    pairs += [undefined.setdefault(kind, words[_BOUND] + len(undefined)), empty]
                result.extend([(3 + len(pairs)) << 16 | _PHI, kind, words[place + 2], *pairs])
                body = end
        opcode, chosen = words[block.terminator] & 0xFFFF, reached.chosen.get(block.label)
        if chosen is None:
            result += words[body : block.end]
            return
        is_loop = words[block.merge] & 0xFFFF == _LOOP_MERGE
        result += words[body : block.terminator if is_loop or opcode == _SWITCH else block.merge]
        if opcode == _SWITCH:
            result.extend([3 << 16 | _SWITCH, words[block.terminator + 1], chosen])
        else:
            result.extend([2 << 16 | _BRANCH, chosen])

    def _pairs(self, begin: int, end: int, label: int, reached: _Reached) -> list[int]:
        """What a phi takes, and whence, where its block is reached from there."""
        words, pairs = self._words, list[int]()
        for place in range(begin + 3, end, 2):
            if (words[place + 1], label) in reached.edges:
                pairs += words[place : place + 2]
        return pairs
