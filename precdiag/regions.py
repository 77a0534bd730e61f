"""Find replaced regions: a run of calls on one side that stands against another run between the same paired calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.replacements import Replacement, name_of
from precdiag.rows import INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Region:
    """Two runs of calls (positions in the `calls` frames) that stand against each other.

    `name`: what they compute, by the list of known replacements; "" where it is not on it. `behind`: the positions of
    the next two calls that pair, (-1, -1) at the end. `boundary`: the two rows that hold the results, None where they
    cannot be set side by side (other shapes, gradients of several inputs, a call that msprobe does not hook): there
    what the calls behind take in decides.
    """

    name: str
    note: str
    baseline: tuple[int, ...]
    candidate: tuple[int, ...]
    behind: tuple[int, int]
    boundary: tuple[int, int] | None

    @property
    def length(self) -> int:
        """Calls of the longer run."""
        return max(len(self.baseline), len(self.candidate))


def find_regions(
    baseline: Dump,
    candidate: Dump,
    at: np.ndarray,
    against: np.ndarray,
    alone: tuple[np.ndarray, np.ndarray],
    known: Iterable[Replacement],
) -> tuple[Region, ...]:
    """Return the regions between paired calls (`at` and `against` ascending; `alone` marks one-sided calls).

    Runs on both sides are a region where the list knows them, or where they take in tensors of one shape and hand on
    results of one shape and dtype. A run against nothing is one only where the list knows it whole and the call behind
    takes in its result. Going backward a run is one, too, where its forward calls are. What an optimizer or
    recomputation does is left to onesided.py.
    """
    sides = _Side(baseline), _Side(candidate)
    known = tuple(known)
    gaps = list(_gaps(at, against, alone, (len(baseline.calls), len(candidate.calls))))
    found: list[Region] = []
    forward: dict[str, tuple[str, str]] = {}
    for phase in ("forward", "backward"):
        for left, right, gap in gaps:
            runs = sides[0].of_phase(left, phase), sides[1].of_phase(right, phase)
            if not any(runs):
                continue
            names = [side.name[call] for side, run in zip(sides, runs, strict=True) for call in run]
            seen = {forward.get(name.replace(".backward", ".forward")) for name in names}
            behind = _next_of_phase(sides[0], gap, at, against, phase)
            region = _region(sides, runs, behind, known, next(iter(seen)) if len(seen) == 1 else None)
            if region is not None:
                found.append(region)
                forward |= dict.fromkeys(names, (region.name, region.note)) if phase == "forward" else {}
    return tuple(found)


class _Side:
    """One dump's columns, taken out once."""

    def __init__(self, dump: Dump) -> None:
        calls = dump.calls
        self.cell = dump.cell
        self.codes = dump.rows["call"].cat.codes.to_numpy(dtype="int64")  # a narrower one is widened at each search
        self.tensor, self.io = dump.rows["tensor"].to_numpy(), dump.rows["io"].to_numpy()
        self.name, self.operation = calls["name"].tolist(), calls["operation"].tolist()
        self.phase, self.parent = calls["phase"].tolist(), calls["parent"].tolist()
        self.own = ((calls["scope"] == "") & ~calls["recompute"]).tolist()

    def of_phase(self, calls: Sequence[int], phase: str) -> list[int]:
        """Choose the calls of a run that go in one direction, but for an optimizer's and recomputed ones."""
        return [call for call in calls if self.phase[call] == phase and self.own[call]]

    def tensors(self, call: int, *places: int) -> list[int]:
        """Return a call's tensor rows that stand in some places (INPUT, PARAMETER, OUTPUT)."""
        rows = range(*self.codes.searchsorted((call, call + 1)).tolist())
        return [row for row in rows if self.tensor[row] and self.io[row] in places]

    def taken_shapes(self, run: Sequence[int]) -> set[str]:
        """Return the shapes of what a run takes in."""
        return {self.cell("shape", row) for call in run for row in self.tensors(call, INPUT, PARAMETER)}

    def results(self, run: Sequence[int]) -> list[int]:
        """Return what the last call of a run that gave out tensors gave out."""
        return next((rows for call in reversed(run) if (rows := self.tensors(call, OUTPUT))), [])

    def ends(self, rows: Sequence[int]) -> set[tuple[float, float]]:
        """Return the largest and smallest values of some rows."""
        return {(float(self.cell("max", row)), float(self.cell("min", row))) for row in rows}


_Sides = tuple[_Side, _Side]


def _gaps(
    at: np.ndarray, against: np.ndarray, alone: tuple[np.ndarray, np.ndarray], sizes: tuple[int, int]
) -> Iterator[tuple[list[int], list[int], int]]:
    """Yield the one-sided calls of both sides between two paired calls, and which pair stands behind them."""
    import numpy as np

    ends = np.append(at, sizes[0]), np.append(against, sizes[1])
    starts = np.concatenate([[0], at + 1]), np.concatenate([[0], against + 1])
    for gap in np.flatnonzero((ends[0] > starts[0]) | (ends[1] > starts[1])).tolist():
        runs = [
            [call for call in range(int(start[gap]), int(end[gap])) if lonely[call]]
            for start, end, lonely in zip(starts, ends, alone, strict=True)
        ]
        yield runs[0], runs[1], gap


def _next_of_phase(side: _Side, gap: int, at: np.ndarray, against: np.ndarray, phase: str) -> tuple[int, int]:
    """Return the first pair behind a gap that goes in a direction, (-1, -1) where there is none."""
    for pair in range(gap, len(at)):
        if side.phase[int(at[pair])] == phase:
            return int(at[pair]), int(against[pair])
    return -1, -1


def _region(
    sides: _Sides,
    runs: tuple[list[int], list[int]],
    behind: tuple[int, int],
    known: Sequence[Replacement],
    forward: tuple[str, str] | None,
) -> Region | None:
    operations = [[side.operation[call] for call in run] for side, run in zip(sides, runs, strict=True)]
    named = forward or name_of(operations[0], operations[1], known)
    if not all(runs) and forward is None and (named is None or not _is_consumed(sides, runs, behind)):
        return None
    boundary = _boundary(sides, runs) if all(runs) else None
    if named is None and not (boundary and sides[0].taken_shapes(runs[0]) & sides[1].taken_shapes(runs[1])):
        return None
    name, note = named or ("", "")
    return Region(name, note, tuple(runs[0]), tuple(runs[1]), behind, boundary)


def _boundary(sides: _Sides, runs: tuple[list[int], list[int]]) -> tuple[int, int] | None:
    """The first result of each run, where both are one tensor of one shape and dtype.

    Going forward what follows the first is status (softmax maxima, random state); going backward it is the gradient of
    another input, and which of them is which cannot be told.
    """
    left, right = (side.results(run) for side, run in zip(sides, runs, strict=True))
    if not left or not right:
        return None
    if sides[0].phase[runs[0][0]] == "backward" and (len(left) > 1 or len(right) > 1):
        return None
    if any(sides[0].cell(column, left[0]) != sides[1].cell(column, right[0]) for column in ("shape", "dtype")):
        return None
    return left[0], right[0]


def _is_consumed(sides: _Sides, runs: tuple[list[int], list[int]], behind: tuple[int, int]) -> bool:
    """Tell whether the call behind takes in a result of the one run there is, views and casts apart: equal ends.

    The module around a run is behind it, and gives its result out.
    """
    if behind[0] < 0:
        return False
    one = 0 if runs[0] else 1
    side, run, call = sides[one], runs[one], behind[one]
    taken = side.tensors(call, OUTPUT if side.parent[run[-1]] == call else INPUT)
    return bool(side.ends(side.results(run)) & side.ends(taken))
