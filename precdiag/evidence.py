"""Decide each pair of rows by the strongest evidence it has: bytes, checksum, statistics or xor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precdiag.checksum import dialect
from precdiag.dump import Dump
from precdiag.rows import CHECKSUM_CRC, CHECKSUM_NONE, CHECKSUM_XOR
from precdiag.statistic import StatisticDeltas, compare_statistics, element_counts
from precdiag.tensorfiles import FilePair, compare_all
from precdiag.tensors import TensorPair
from precdiag.torchfile import import_beside
from precdiag.uninitialised import undefined_contents, uninitialised
from precdiag.workers import Resources

if TYPE_CHECKING:
    import numpy as np

EQUAL, DIFFERENT, UNKNOWN, EXCLUDED, BASELINE_ONLY, CANDIDATE_ONLY = range(6)
# What a verdict rests on, in order of strength. NOTHING: an argument or an empty tensor, compared exactly. TABLE: what
# msprobe printed of a comparison of its own.
NOTHING, TABLE, XOR, STATISTICS, CHECKSUM, BYTES = range(6)
# Aspects in which a pair differs: bits.
SHAPE, DTYPE, ARGUMENT, VALUE, GRAD = 1, 2, 4, 8, 16

ROUNDING_REASON = "within the rounding of the statistic: collect md5 or tensor"
LOPSIDED_REASON = "a statistic stands on one side only: collect both sides alike"
NO_STATISTICS_REASON = "no statistics, checksum or tensor on both sides"
DIALECT_REASON = "the checksums may be of two msprobe dialects (up to 8.1 and from 8.3): collect both sides with one"
PORT_NOTE = "device arguments differ: that is the port itself"
NOT_LOOKED_AT_REASON = "behind the first difference: not looked at with --first"
UNINITIALISED_REASON = "uninitialised memory"

_DEVICE = re.compile(r"(?:cpu|cuda|npu|gpu|xpu|musa|mps)(?::(?:\d+|None))?")


class Pairs:
    """Paired rows under judgement: their positions on both sides, and the verdict columns being filled.

    state, evidence (int8 codes), aspects (uint8 bits), reason (object) and the findings on tensor files by pair.
    """

    def __init__(self, baseline: Dump, candidate: Dump, b: np.ndarray, c: np.ndarray) -> None:
        import numpy as np

        self.baseline, self.candidate, self.b, self.c = baseline, candidate, b, c
        self.deltas: StatisticDeltas = compare_statistics(baseline, candidate, b, c)
        self.state = np.full(len(b), EQUAL, dtype=np.int8)
        self.aspects = np.zeros(len(b), dtype=np.uint8)
        self.evidence = np.full(len(b), NOTHING, dtype=np.int8)
        self.reason = np.full(len(b), None, dtype=object)
        self.tensors: dict[int, TensorPair] = {}

    def of(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return one column of the two sides."""
        return self.baseline.rows[column].to_numpy()[self.b], self.candidate.rows[column].to_numpy()[self.c]

    def same_text(self, column: str) -> np.ndarray:
        """Compare a categorical column of the two sides without spelling it out."""
        import numpy as np

        left, right = self.baseline.rows[column].cat, self.candidate.rows[column].cat
        code = left.categories.get_indexer(right.categories)
        return np.asarray(left.codes.to_numpy()[self.b] == code[right.codes.to_numpy()[self.c]])

    def differ(self, where: np.ndarray, aspect: int) -> None:
        """Call some pairs different in an aspect."""
        self.state[where] = DIFFERENT
        self.aspects[where] |= aspect

    def unknown(self, where: np.ndarray, reason: str) -> None:
        """Call some pairs unknown, but for those about which a difference is known."""
        still = where & (self.state != DIFFERENT)
        self.state[still] = UNKNOWN
        self.reason[still] = reason


@dataclass(frozen=True)
class Effort:
    """How to go about tensor files: in which processes, and whether to stop at the first that differs.

    With `first` what stands behind it is unknown: NOT_LOOKED_AT_REASON. `replays`: calls will be replayed with torch
    where something differs, so it is imported meanwhile.
    """

    resources: Resources = field(default_factory=Resources)
    first: bool = False
    replays: bool = False


def judge_pairs(pairs: Pairs, progress: Callable[[int, int], None], effort: Effort = Effort()) -> tuple[str, ...]:
    """Fill the verdict columns; return notes. `progress(done, total)` is called as tensor files are compared."""
    import numpy as np

    notes = judge_exactly(pairs)
    left, right = pairs.of("tensor")
    elements = element_counts(pairs.baseline.rows["shape"])[pairs.b]
    valued = left & right & pairs.same_text("shape") & (elements != 0)
    left_file, right_file = (np.asarray(side, dtype=bool) for side in pairs.of("file"))
    files = valued & left_file & right_file
    _judge_bytes(pairs, files, progress, effort)
    notes += _judge_checksums(pairs, valued & ~files)
    _judge_statistics(pairs, valued & (pairs.evidence == NOTHING) & (pairs.state != UNKNOWN))
    # A tensor file that could not be read: statistics can show a difference there, never that there is none.
    for at, found in pairs.tensors.items():
        if found.state == "unknown" and pairs.state[at] != DIFFERENT:
            pairs.state[at], pairs.reason[at] = UNKNOWN, found.reason
    return (*notes, *_exclude_uninitialised(pairs), *_notes(pairs))


def judge_exactly(pairs: Pairs) -> list[str]:
    """Compare shape, dtype, requires_grad and arguments."""
    import numpy as np

    left, right = pairs.of("tensor")
    both = left & right
    pairs.differ(both & ~pairs.same_text("shape"), SHAPE)
    pairs.differ(both & ~pairs.same_text("dtype"), DTYPE)
    left_grad, right_grad = pairs.of("requires_grad")
    pairs.differ(both & (left_grad >= 0) & (right_grad >= 0) & (left_grad != right_grad), GRAD)
    left_value, right_value = pairs.of("value")
    argument = ~both & ((left_value != right_value) | ~pairs.same_text("type") | (left != right))
    ported = np.zeros(len(pairs.b), dtype=bool)
    for at in np.flatnonzero(argument).tolist():
        ported[at] = all(_DEVICE.fullmatch(str(side[at])) for side in (left_value, right_value))
    pairs.differ(argument & ~ported, ARGUMENT)
    return [f"{ported.sum()} {PORT_NOTE}"] if ported.any() else []


def _judge_bytes(pairs: Pairs, files: np.ndarray, progress: Callable[[int, int], None], effort: Effort) -> None:
    import numpy as np

    stops = np.zeros(len(files), dtype=bool)
    chosen = np.flatnonzero(files)
    if effort.first:
        stops = ~_holds_uninitialised(pairs, unsettled=np.ones(len(files), dtype=bool))
        known = np.flatnonzero((pairs.state == DIFFERENT) & stops)
        chosen = chosen[: np.searchsorted(chosen, known[0])] if len(known) else chosen
    elements = int(element_counts(pairs.baseline.rows["shape"])[pairs.b[chosen]].sum())
    file_pairs = [_file_pair(pairs, at) for at in chosen.tolist()]
    found_in = compare_all(file_pairs, elements, effort.resources, first=effort.first)
    looked_at, importing = -1, None
    try:
        for done, (at, found) in enumerate(zip(chosen.tolist(), found_in, strict=True), 1):
            pairs.tensors[at] = found
            looked_at = at
            progress(done, len(chosen))
            if found.state == "unknown":
                continue
            pairs.evidence[at] = BYTES
            if found.state == "different" and not (found.dtype_only or found.rounding_only):
                pairs.differ(np.array([at]), VALUE)
                if stops[at]:
                    break
                if effort.replays and importing is None:
                    importing = import_beside()
    finally:
        if importing is not None:
            importing.join()
    if effort.first:
        pairs.unknown(files & (np.arange(len(files)) > looked_at), NOT_LOOKED_AT_REASON)


def _file_pair(pairs: Pairs, at: int) -> FilePair:
    b, c = int(pairs.b[at]), int(pairs.c[at])
    left, right = pairs.baseline.tensor_path(b), pairs.candidate.tensor_path(c)
    assert left is not None and right is not None  # `files` marks only rows with both
    same = TensorPair(
        "equal",
        nonfinite="same" if pairs.deltas.nonfinite[at] else "none",
        baseline_dtype=pairs.baseline.cell("dtype", b),
        candidate_dtype=pairs.candidate.cell("dtype", c),
    )
    return FilePair(left, right, same)


def _judge_checksums(pairs: Pairs, where: np.ndarray) -> list[str]:
    import numpy as np

    left_kind, right_kind = pairs.of("checksum_kind")
    where = where & (left_kind == right_kind) & (left_kind != CHECKSUM_NONE) & ((pairs.aspects & DTYPE) == 0)
    left, right = pairs.of("checksum")
    agree = np.equal(left, right).astype(bool)
    notes = []
    disputed = where & (left_kind == CHECKSUM_CRC) & (pairs.of("dtype")[0] == "torch.bfloat16")
    alike = disputed & pairs.deltas.comparable & ~pairs.deltas.differ & ~pairs.deltas.constant
    if alike.any() and not (agree & disputed).any():
        dialects = dialect(pairs.baseline), dialect(pairs.candidate)
        if None in dialects:
            pairs.unknown(alike, DIALECT_REASON)
        if dialects[0] != dialects[1] or None in dialects:
            where = where & ~disputed
            notes.append("the two dumps' bfloat16 checksums are of different msprobe dialects: statistics decide there")
    pairs.evidence[where] = np.where(left_kind == CHECKSUM_XOR, XOR, CHECKSUM)[where]
    proved = where & ~agree & pairs.deltas.constant
    pairs.evidence[proved] = STATISTICS
    pairs.differ(where & ~agree & ~proved, VALUE)
    if proved.any():
        notes.append(f"{proved.sum()} constant tensors have equal values and other checksums (-0.0 against 0.0)")
    return notes


def _judge_statistics(pairs: Pairs, where: np.ndarray) -> None:
    deltas = pairs.deltas
    told = where & deltas.comparable
    pairs.evidence[told] = STATISTICS
    widened = ((pairs.aspects & DTYPE) != 0) & deltas.narrowing
    pairs.differ(told & deltas.differ & ~widened, VALUE)
    pairs.unknown(told & deltas.rounding, ROUNDING_REASON)
    pairs.unknown(told & deltas.lopsided & ((pairs.aspects & DTYPE) == 0), LOPSIDED_REASON)
    pairs.unknown(where & ~deltas.comparable, NO_STATISTICS_REASON)


def _exclude_uninitialised(pairs: Pairs) -> list[str]:
    excluded = _holds_uninitialised(pairs, (pairs.state == DIFFERENT) | (pairs.state == UNKNOWN))
    pairs.state[excluded], pairs.aspects[excluded] = EXCLUDED, 0
    pairs.reason[excluded] = UNINITIALISED_REASON
    return [f"{excluded.sum()} rows hold uninitialised memory and prove nothing: excluded"] if excluded.any() else []


def _holds_uninitialised(pairs: Pairs, unsettled: np.ndarray) -> np.ndarray:
    """Mark pairs that prove nothing: uninitialised on a side, or handed on from there on both and `unsettled`."""
    left, right = uninitialised(pairs.baseline), uninitialised(pairs.candidate)
    exact = (pairs.aspects | VALUE) != VALUE
    handed_on = undefined_contents(pairs.baseline, left)[pairs.b] & undefined_contents(pairs.candidate, right)[pairs.c]
    marked: np.ndarray = (left[pairs.b] | right[pairs.c] | (handed_on & unsettled)) & ~exact
    return marked


def _notes(pairs: Pairs) -> list[str]:
    notes = []
    zeros = [found.negative_zeros for found in pairs.tensors.values() if found.negative_zeros]
    if zeros:
        notes.append(f"{sum(zeros)} elements in {len(zeros)} rows are -0.0 on one side and 0.0 on the other: equal")
    shortened = pairs.deltas.shortened & (pairs.state == EQUAL) & (pairs.evidence == STATISTICS)
    if shortened.any():
        notes.append(f"{shortened.sum()} rows have Mean and Norm on one side only: Max and Min decide there")
    alike = (pairs.deltas.nonfinite == 3) & (pairs.state == EQUAL)
    if alike.any():
        notes.append(f"{alike.sum()} rows hold NaN or Inf alike on both sides: equal, and worth `precdiag nan`")
    return notes
