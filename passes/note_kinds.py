"""Everything that mobopt's own passes say, in one place; what follows the subject of a note."""

from __future__ import annotations

from mobopt.passes.notes import NoteKind


def _done(name: str, words: str) -> NoteKind:
    return NoteKind(name, words)


def _left(name: str, words: str) -> NoteKind:
    return NoteKind(name, words, done=False)


def _rewritten(why: str, rewrite: str, summary: str, fixes_sizes: bool, remark: str) -> str:
    fixed = " (fixes the file to the example's sizes)" if fixes_sizes else ""
    reason = f"; {remark}" if remark else ""
    return f"{why}; rewritten by {rewrite}: {summary}{fixed}{reason}"


# Several passes.
STAYS = _left("stays", "stays: {reason}")
FUSED_WITH = _done("fused_with", "fused with {other}")
NOT_FUSED_WITH = _left("not_fused_with", "not fused with {other}: {reason}")
REWRITTEN_AS = _done("rewritten_as", "rewritten as {operator}")
NOT_FOLDED = _left("not_folded", "not folded: {reason}")

# Simplification.
BUILT_AT_ONCE = _done("built_at_once", "is built at once, of {items} items")
OPERAND_IS_NUMBER = _done(
    "operand_is_number", "its constant operand is a number, which leaves the dtype to the other operand"
)
RANK_CHECK_KNOWN = _done("rank_check_known", "is {outcome} for tensors of all ranks that can come here")
REMOVED = _done("removed", "removed: {reason}")
SAME_AS = _done("same_as", "removed: {other} is the same")
SHUFFLE_FOUND = _done("shuffle_found", "ends a shuffle of {groups} groups of channels, which is one operator now")
UNROLLED = _done("unrolled", "unrolled: {trips} trips")
NOT_UNROLLED = _left("not_unrolled", "not unrolled: {trips} trips make {nodes} nodes")

# Sizes of the example inputs.
CHANNELS_FIXED = _done("channels_fixed", "is {channels}, by the weights before it")
RANK_FIXED = _done("rank_fixed", "is {rank} on the example inputs: the result is for inputs of their ranks")

# In-place operators.
MADE_FUNCTIONAL = _done("made_functional", "made functional")
STAYS_IN_PLACE = _left("stays_in_place", "stays in place: {reason}")
INPUT_IS_CHANGED = _left("input_is_changed", "is changed in place: its copy on the GPU is, the caller's is not")
INPUT_MAY_CHANGE = _left("input_may_change", "may be changed in place: its copy on the GPU is, the caller's is not")

# Places in memory.
READS_MEMORY = _done("reads_memory", "takes elements by their places in memory, so it gets all of {memory}, row by row")
PLACES_DIFFER = _left(
    "places_differ",
    "depends on where elements lie in memory, which is row by row on the phone and not known to be so in the model: "
    "{reason}",
)

# Targets.
REWRITTEN = NoteKind("rewritten", _rewritten)
NOT_REWRITTEN = _left("not_rewritten", "{why}; not rewritten: {reason}")
WOULD_FIX_SIZES = _left("would_fix_sizes", "{why}; {rewrite} would fix the file to the example's sizes: {way}")

# Quantisation.
QUANTIZED = _done(
    "quantized", "has its weight as integers of {bits} bits: {before} bytes become {after}, and {error:.2%} is lost"
)
EXPANDED_QUANTIZED = _done("expanded_quantized", "computes in floats that are rounded as the quantised tensor is")
QUANTIZED_POORLY = _left(
    "quantized_poorly", "{layer} loses {error:.0%} of its weight with {bits} bits; let it keep its floats"
)
EXPANDED = _done("expanded", "is computed ahead of time: the target has no weights of few bits")

# Packing.
PACKED = _done("packed", "its weights are packed ahead of time")
NOT_PACKED = _left("not_packed", "not packed: {reason}")
FUSED_AS_RANGE = _done("fused_as_range", "fused into {layer} as the range {low} to {high}")
NOT_FUSED_INTO = _left("not_fused_into", "not fused into {layer}: {reason}")
FOLDED_INTO = _done("folded_into", "folded into attribute {attribute}")
READS_ATTRIBUTE = _done("reads_attribute", "reads its packed weights from attribute {attribute}")

# Migration.
UNPACKED = _done("unpacked", "is {operator} on plain weights")
FLAG_DROPPED = _done("flag_dropped", "dropped: the file is for no backend any more")
TRANSFER_REMOVED = _done("transfer_removed", "removed: every tensor lies on the CPU")
TRANSFER_IS_COPY = _done("transfer_is_copy", "is a plain copy: memory of it is written to in place")
DEVICE_IS_CPU = _done("device_is_cpu", "names the CPU in place of {device}")

# Places.
RUNS_ON_CPU = _left("runs_on_cpu", "runs on the CPU: {reason}")
WITH_ITS_OPERANDS = _left("with_its_operands", "stays where its operands were made, on the CPU")
MOVED = _done("moved", "is moved to {device}")
NOT_MOVED = _left("not_moved", "is not moved to {device}: its type {type} is not known")
COPIED_TO_HOST = _done("copied_to_host", "is copied to the host")
RETURNED_WITHOUT_COPIES = _left(
    "returned_without_copies", "is returned without copies: its tensors are put together by {operator}"
)
LANES_CLEARED = _done("lanes_cleared", "reads finite numbers in lanes beyond the last channel")
READS_UNWRITTEN = _left(
    "reads_unwritten",
    "its input's channels are no multiple of 4: PyTorch multiplies what lies in memory behind them with 0, and NaN "
    "stays NaN; without --no-clear-inputs (clear_inputs=False) it is clamped first",
)

# Metal.
FORMAT_DROPPED = _done("format_dropped", "its memory format is dropped: Metal has one layout")
FORMAT_STAYS = _left("format_stays", "its memory format stays: {reason}")

# Flags.
FLAG_SET = _done("flag_set", "set, so that a file says what it is for")
FLAG_WAS_SET = _left("flag_was_set", "is set: the methods move their tensors already")
