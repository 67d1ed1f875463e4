"""Nothing that dispatches write is read before the wait for them, whatever a compiler thinks of barriers.

In a chained variant (``shaders/glsl/chain_end.glsl``) each index of what is ``readonly`` depends, after the wait, on a
number that comes from shared memory there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from spirv_resources import instructions

from mobopt import shaders

_LOAD, _STORE, _ACCESS_CHAIN, _VARIABLE, _POINTER, _CONSTANT, _MEMBER_DECORATE = 61, 62, 65, 59, 32, 43, 72
_MEMORY_BARRIER, _CONTROL_BARRIER = 225, 224
_NON_WRITABLE, _WORKGROUP, _STORAGE_BUFFER, _ACQUIRE = 24, 4, 12, 2
"""Numbers of the SPIR-V specification."""

CHAINED = sorted(name for name in shaders.variants() if name.endswith(shaders.CHAINED) and "doorbell" not in name)
"""But for what waits for the host alone."""


class Module:
    """What of a shader says where its loads are from."""

    def __init__(self, spirv: bytes) -> None:
        self.code = list(instructions(spirv))
        read_only = {
            given[0] for opcode, given in self.code if opcode == _MEMBER_DECORATE and given[2] == _NON_WRITABLE
        }
        pointers = {given[0]: given[2] for opcode, given in self.code if opcode == _POINTER}
        variables = [given for opcode, given in self.code if opcode == _VARIABLE]
        self.operands = {given[1] for given in variables if pointers[given[0]] in read_only}
        self.shared = {given[1] for given in variables if given[2] == _WORKGROUP}
        self.written = {given[1] for given in variables if given[2] in (_WORKGROUP, _STORAGE_BUFFER)}
        self.chains = {given[1]: given for opcode, given in self.code if opcode == _ACCESS_CHAIN}

    def base(self, load: Sequence[int]) -> int:
        chain = self.chains.get(load[2])
        return load[2] if chain is None else chain[2]

    @property
    def after_wait(self) -> list[tuple[int, tuple[int, ...]]]:
        """From the barrier on that ends the wait, the first one after the acquiring fence. Of two waits the last one:
        after the other a workgroup that has nothing to do ends."""
        constants = {given[1]: given[2] for opcode, given in self.code if opcode == _CONSTANT}
        places = list(enumerate(self.code))
        fences = [place for place, (opcode, given) in places if opcode == _MEMORY_BARRIER]
        fence = max(place for place in fences if constants[self.code[place][1][1]] & _ACQUIRE)
        return self.code[min(place for place, (opcode, _) in places if opcode == _CONTROL_BARRIER and place > fence) :]


@pytest.mark.parametrize("name", CHAINED)
def test_indices_depend_on_the_wait(name: str) -> None:
    module = Module(shaders.load(name))
    after = module.after_wait
    loads = [given for opcode, given in after if opcode == _LOAD]
    assert module.base(loads[0]) in module.shared, "the number comes first"
    known = {loads[0][1]}
    while True:
        found = {given[1] for opcode, given in after if len(given) > 2 and known.intersection(given[2:])}
        # What is kept in an array, of as many elements as a constant says.
        kept = {module.base((0, 0, given[0])) for opcode, given in after if opcode == _STORE and given[1] in known}
        found |= {load[1] for load in loads if module.base(load) in kept - module.written}
        if found <= known:
            break
        known |= found
    read = [load for load in loads if module.base(load) in module.operands]
    assert read, "it reads something"
    assert [load for load in read if load[2] not in known] == []
