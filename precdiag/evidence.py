"""Decide each pair of rows by the strongest evidence it has: bytes, checksum, statistics or xor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from precdiag.checksum import dialect
from precdiag.dump import Dump
from precdiag.rows import CHECKSUM_CRC, CHECKSUM_NONE, CHECKSUM_XOR
from precdiag.statistic import StatisticDeltas, compare_statistics, element_counts
from precdiag.tensors import TensorPair, compare_files, require_torch
from precdiag.uninitialised import undefined_contents, uninitialised

if TYPE_CHECKING:
    import numpy as np

EQUAL, DIFFERENT, UNKNOWN, EXCLUDED, BASELINE_ONLY, CANDIDATE_ONLY = range(6)
# What a verdict rests on, in order of strength. NOTHING: an argument or an empty tensor, compared exactly. TABLE: what
# msprobe printed of a comparison of its own.
NOTHING, TABLE, XOR, STATISTICS, CHECKSUM, BYTES = range(6)
# Aspects in which a pair differs: bits.
SHAPE, DTYPE, ARGUMENT, VALUE, GRAD = 1, 2, 4, 8, 16

ROUNDING_REASON = "within the rounding of the statistic: collect md5 or tensor"
NO_STATISTICS_REASON = "no statistics, checksum or tensor on both sides"
DIALECT_REASON = "the checksums may be of two msprobe dialects (up to 8.1 and from 8.3): collect both sides with one"
PORT_NOTE = "device arguments differ: that is the port itself"
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


def judge_pairs(pairs: Pairs, progress: Callable[[int, int], None]) -> tuple[str, ...]:
    """Fill the verdict columns; return notes. `progress(done, total)` is called as tensor files are compared.

    Raises PrecdiagError where there are tensor files and no torch to read them.
    """
    import numpy as np

    notes = _judge_exactly(pairs)
    left, right = pairs.of("tensor")
    elements = element_counts(pairs.baseline.rows["shape"])[pairs.b]
    valued = left & right & pairs.same_text("shape") & (elements != 0)
    left_file, right_file = (np.asarray(side, dtype=bool) for side in pairs.of("file"))
    files = valued & left_file & right_file
    _judge_bytes(pairs, files, progress)
    notes += _judge_checksums(pairs, valued & ~files)
    _judge_statistics(pairs, valued & (pairs.evidence == NOTHING) & (pairs.state != UNKNOWN))
    # A tensor file that could not be read: statistics can show a difference there, never that there is none.
    for at, found in pairs.tensors.items():
        if found.state == "unknown" and pairs.state[at] != DIFFERENT:
            pairs.state[at], pairs.reason[at] = UNKNOWN, found.reason
    return (*notes, *_exclude_uninitialised(pairs), *_notes(pairs))


def _judge_exactly(pairs: Pairs) -> list[str]:
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


def _judge_bytes(pairs: Pairs, files: np.ndarray, progress: Callable[[int, int], None]) -> None:
    import numpy as np

    chosen = np.flatnonzero(files).tolist()
    if chosen:
        require_torch()
    for done, at in enumerate(chosen, 1):
        left = pairs.baseline.tensor_path(int(pairs.b[at]))
        right = pairs.candidate.tensor_path(int(pairs.c[at]))
        if left is None or right is None:  # `files` holds only rows with both
            continue
        found = pairs.tensors[at] = compare_files(left, right)
        progress(done, len(chosen))
        if found.state == "unknown":
            continue
        pairs.evidence[at] = BYTES
        if found.state == "different" and not (found.dtype_only or found.rounding_only):
            pairs.state[at] = DIFFERENT
            pairs.aspects[at] |= VALUE


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
    pairs.unknown(where & ~deltas.comparable, NO_STATISTICS_REASON)


def _exclude_uninitialised(pairs: Pairs) -> list[str]:
    left, right = uninitialised(pairs.baseline), uninitialised(pairs.candidate)
    if not (left.any() or right.any()):
        return []
    exact = (pairs.aspects | VALUE) != VALUE
    handed_on = undefined_contents(pairs.baseline, left)[pairs.b] & undefined_contents(pairs.candidate, right)[pairs.c]
    unsettled = (pairs.state == DIFFERENT) | (pairs.state == UNKNOWN)
    excluded = (left[pairs.b] | right[pairs.c] | (handed_on & unsettled)) & ~exact
    pairs.state[excluded], pairs.aspects[excluded] = EXCLUDED, 0
    pairs.reason[excluded] = UNINITIALISED_REASON
    return [f"{excluded.sum()} rows hold uninitialised memory and prove nothing: excluded"] if excluded.any() else []


def _notes(pairs: Pairs) -> list[str]:
    notes = []
    zeros = [found.negative_zeros for found in pairs.tensors.values() if found.negative_zeros]
    if zeros:
        notes.append(f"{sum(zeros)} elements in {len(zeros)} rows are -0.0 on one side and 0.0 on the other: equal")
    alike = (pairs.deltas.nonfinite == 3) & (pairs.state == EQUAL)
    if alike.any():
        notes.append(f"{alike.sum()} rows hold NaN or Inf alike on both sides: equal, and worth `precdiag nan`")
    return notes
