"""What the costs are by which kernels are chosen: of GPUs, of their matrix units, and of drivers that compute on the
CPU."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

CORE_REGISTERS = 65_536
"""Of 32 bits, that workgroups have which a core computes at the same time (NVIDIA's; elsewhere a guess)."""
CORE_INVOCATIONS = 2048
"""Of such workgroups, likewise."""


@dataclass(frozen=True)
class MatrixCosts:
    """Costs of products of halves by matrix units, in cycles of a core."""

    multiplications_per_cycle: float
    """Pairs of halves that a core multiplies and adds in a cycle."""
    fetch_cycles: float
    """32 runs of 16 bytes from memory (at most from its second-level cache) to shared memory."""
    read_cycles: float
    """32 runs of 16 bytes from shared memory."""
    store_cycles: float
    """32 vec4s of a result."""
    latency_cycles: float
    """Of a step that nothing else hides."""
    turn_cycles: float
    """Of a run that an invocation fetches in a step, likewise."""
    start_cycles: float
    """A workgroup."""
    finish_cycles: float
    """Of a vec4 that an invocation stores, which nothing else hides."""
    code_cycles: float
    """Of the kernel's instructions, which come from memory once where a pipeline comes after others."""


@dataclass(frozen=True)
class FragmentCosts:
    """Costs of products whose operands go from memory straight to registers, in cycles of a core."""

    read_cycles: float
    """16 lines of a step, which a subgroup reads."""
    multiply_cycles: float
    """16 x 16 sums of a step."""
    overlap: float
    """Subgroups that a core lets read and multiply at the same time."""
    latency_cycles: float
    """Of a step that nothing else hides."""
    store_cycles: float
    """32 vec4s of sums."""
    finish_cycles: float
    """16 rows of a workgroup, which are stored one after the other through shared memory: latency."""
    kept_finish_cycles: float
    """The same of sums that are stored from registers."""
    code_cycles: float
    """Of the kernel's instructions, as those of ``MatrixCosts``."""
    crowded_overlap: float
    """As ``overlap``, where a core hasn't room for all workgroups at once."""


@dataclass(frozen=True)
class FewBitsCosts:
    """Costs of products of a few rows by weights of few bits, in nanoseconds of a core."""

    read_nanoseconds: float
    """16 bytes of weights, read and multiplied by an invocation."""
    gap: float
    """Such reads that could have been done in place of jumping to the next line of weights."""
    turn_nanoseconds: float
    """Of a turn in which an invocation reads, which nothing else hides."""
    stage_nanoseconds: float
    """Of adding up the sums of the teams, for each bit of their number."""
    step_nanoseconds: float
    """Of each step of a turn, once."""
    step_registers: float
    """By how much of an invocation each step of a turn makes it larger: fewer of them fit a core."""


@dataclass(frozen=True)
class UnitRowCosts:
    """Costs of products of a few rows by weights of 4 bits with matrix units (``unit_row_kernels.py``)."""

    block_cycles: float
    """64 lines of 16 columns, which a subgroup multiplies, of one scheduler of a core."""
    least_subgroups: float
    """With so many a scheduler is busy."""
    turn_nanoseconds: float
    """Of a turn in which a subgroup reads weights, which nothing else hides."""
    start_nanoseconds: float
    """Of workgroups that a core has at the same time."""


@dataclass(frozen=True)
class DeviceCosts:
    """Costs of a family of devices. A cycle is one of a core; costs in cycles are of 32 invocations together."""

    name: str
    origin: str
    """Where the numbers come from."""
    vendors: tuple[int, ...]
    """Of ``VkPhysicalDeviceProperties.vendorID``; empty: any."""
    kinds: tuple[str, ...]
    """Of :attr:`DeviceInfo.kind`; empty: any."""
    cores: int
    """Workgroups that compute at the same time, where the driver doesn't say."""
    cycles_per_nanosecond: float
    multiplications_per_cycle: int
    """Pairs of floats that a core multiplies and adds in a cycle."""
    fetch_cycles: float
    """A vec4 from memory (at most from its second-level cache) to shared memory."""
    read_cycles: float
    """A vec4 from shared memory."""
    store_cycles: float
    """A vec4 of a result."""
    latency_cycles: float
    """Of a step that nothing else hides."""
    turn_cycles: float
    """Of a vec4 that an invocation fetches in a step, likewise."""
    team_cycles: float
    """Of a team's sum of a vec4 that an invocation adds up, likewise."""
    start_cycles: float
    """A workgroup."""
    code_cycles: float
    """Of a product of a vec4 with four, or a fetch, that has instructions of its own in a step: they come from memory
    once where a pipeline comes after others."""
    second_dispatch_nanoseconds: float
    """A dispatch that waits for another."""
    partial_sum_nanoseconds: float
    """A vec4 of a partial sum, written and read."""
    arrival_nanoseconds: float
    """A workgroup says that it is done, and learns whether the others that share its block are."""
    joined_sum_nanoseconds: float
    """A vec4 of a partial sum that it reads."""
    chained_workgroups_per_core: int
    """Up to which a dispatch waits for others by a counter: see :attr:`Stream.chained_workgroups`."""
    ahead_workgroups_per_core: int
    """Up to which it reads its first weights meanwhile: those that start later find everything computed."""
    code_ahead_bytes: int
    """Constants of a plan from which on instructions are read ahead: see :attr:`Stream.code_ahead_bytes`."""
    in_order_drivers: tuple[int, ...]
    """Of VkDriverId: those that were seen to start workgroups in the order of dispatches, which that takes."""
    most_sums: int
    """vec4s of a product that an invocation may keep in its registers."""
    row_turn_cycles: float
    """Of a turn in which an invocation of ``product_rows.comp`` reads factors, which nothing else hides."""
    row_stage_cycles: float
    """Of adding up the sums of its teams, for each bit of their number."""
    row_gap: float
    """vec4s that could have been read in place of jumping to the next line of factors."""
    lone_read_bytes_per_cycle: float
    """That a core reads from its second-level cache while few others do; no core reads more."""
    kept_registers: int
    """Of an invocation, in which it keeps weights from one step of a recurrent layer to the next."""
    few_bits: FewBitsCosts
    depthwise_invocations_per_core: int
    """That a depthwise convolution needs at least before an invocation takes several pixels."""
    normalizing_lanes: int
    """Invocations of the subgroups each of which normalises a row by itself (``normalize_rows.comp``), or adds for a
    workgroup that does (``normalize_held.comp``); 0 where that isn't known to be faster."""
    softmax_invocations_per_core: int
    """That a softmax needs at least to be computed by one dispatch."""
    softmax_long_steps: int
    """Of an invocation, from which on several dispatches may cost less."""
    reduction_invocations_per_core: int
    """That the parts of a divided reduction should have together."""
    reduction_most_results: int
    """Beyond which a reduction isn't divided."""
    reduction_least_steps: int
    """Of an invocation, from which on a reduction may be divided."""
    reduction_least_lone_steps: int
    """The same, where one invocation has a result to itself."""
    reduction_steps_of_a_part: int
    """Of an invocation, at least, once a reduction is divided."""
    matrix: MatrixCosts | None = None
    """None where matrix units aren't known to be worth it: they are not used then."""
    uses_units: bool = True
    """Whether they are used where there are costs of them: false where it was measured that others take less time."""
    split: MatrixCosts | None = None
    """The same for products of floats, which are split into halves: they take three products of halves, ..."""
    fragments: FragmentCosts | None = None
    """Of products of halves by operands in registers; None where that isn't known to be faster."""
    split_fragments: FragmentCosts | None = None
    """The same of products of floats, which are split."""
    unit_rows: UnitRowCosts | None = None
    """Of products of a few rows by weights of 4 bits with matrix units; None where that isn't known to be faster."""
    split_names: tuple[str, ...] = ()
    """... so they are used on devices only whose name has one of these in it (an empty one is in every name):
    elsewhere ordinary arithmetic may be faster."""
    doorbell_bytes: int = 0
    """That the host writes for a call, from which on the call is submitted before: see ``doorbell.py``."""
    doorbell_names: tuple[str, ...] = ()
    """Whose name has one of these in it sees what the host writes in the order in which it is written, also while
    dispatches run."""

    def covers(self, device: DeviceInfo) -> bool:
        """Whether they are meant for a device."""
        return (not self.vendors or device.vendor_id in self.vendors) and (not self.kinds or device.kind in self.kinds)


@dataclass(frozen=True)
class CpuCosts:
    """Costs of a driver that computes on the CPU, in nanoseconds of a thread."""

    name: str
    origin: str
    """Where the numbers come from."""
    drivers: tuple[int, ...]
    """Of VkDriverId; empty: any."""
    since: tuple[int, ...]
    """The first release of the driver (see :attr:`DeviceInfo.driver_release`); empty: any."""
    tiles: tuple[tuple[int, int], ...]
    """Rows and vec4s of columns of an invocation of ``product_tiles.comp``."""
    broadcast_tiles: tuple[tuple[int, int], ...]
    """Rows of a workgroup and vec4s of columns of an invocation of ``product_broadcast.comp``."""
    threads: int
    """Workgroups that compute at the same time."""
    fetch: float
    """A vec4 that a vector of invocations loads."""
    multiply: float
    """A vec4 of sums in a step: arithmetic, and merging what a loop gives."""
    store: float
    """A vec4 of a result."""
    start: float
    """A workgroup."""
    broadcast: float
    """A vec4 that one lane hands to all."""
    dispatch: float
    """A dispatch that waits for another."""
    short_products: float
    """What products of Winograd's filtering take, whose inner dimensions are short, times what the costs above say."""
    transforms: float
    """The same of what makes their operands and results of them (``winograd.py``)."""
    rolls_stores: bool = False
    """Whether the stores of an invocation are a loop (``rolled.glsl``): the driver takes long to compile each."""

    def __hash__(self) -> int:
        return hash((self.name, self.fetch))

    def covers(self, device: DeviceInfo) -> bool:
        """Whether they are meant for a device."""
        return (not self.drivers or device.driver_id in self.drivers) and self.since <= device.driver_release
