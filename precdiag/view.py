"""What of two paired dumps is compared: what the user asked for, and what both sides recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.errors import UsageError
from precdiag.identity import skips_counters, subjects_of
from precdiag.rows import OUTPUT

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Without another sign a dump is taken for a filtered one only where it lacks at least this share of the other's calls,
# whole operations of it and at least so many, in several places: a few missing calls are a difference.
_MISSING_SHARE, _MISSING_OPERATIONS, _MISSING_RUNS = 1 / 3, 3, 2


@dataclass(frozen=True)
class View:
    """Which calls the user wants compared; nothing set means all.

    A pattern matches a call's name, or that of a module around it: whole with `*` and `?`, or as a leading part
    (`Module.layers.3` is the layer and all inside it). `phase`: forward, backward or parameters_grad.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    phase: str | None = None

    def unwanted(self, baseline: Dump, candidate: Dump, calls: pd.DataFrame) -> np.ndarray:
        """Mark lines of Pairing.calls that are not to be compared: bool of len(calls).

        Raises UsageError where nothing is left.
        """
        import numpy as np

        out = np.zeros(len(calls), dtype=bool)
        if self == View():
            return out
        if self.include:
            out |= ~_either(baseline, candidate, calls, self.include)
        if self.exclude:
            out |= _either(baseline, candidate, calls, self.exclude)
        if self.phase is not None:
            out |= _column(baseline, candidate, calls, "phase") != self.phase
        if out.all():
            raise UsageError(
                "--include, --exclude and --phase leave no call of these dumps to compare",
                hint=f"call names look like {baseline.calls['name'].iat[0]}",
            )
        return out


def unrecorded(
    baseline: Dump, candidate: Dump, calls: pd.DataFrame
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Mark one-sided lines of Pairing.calls that the other side's dump could not hold or left out.

    A level records its own kind of call only. A dump collected with a scope or a list leaves calls out: its
    construct.json names them all the same, or its call counters skip them, or whole operations are missing from it.
    Returns the marks, the sides that were collected in part, and notes.
    """
    import numpy as np

    out, partial, notes = np.zeros(len(calls), dtype=bool), [], []
    if baseline.level != candidate.level:
        out |= _of_other_level(baseline, candidate, calls)
        notes.append(
            f"the baseline is level {baseline.level}, the candidate {candidate.level}: what both record is compared"
        )
    for side, mine, other, theirs in (
        ("candidate", candidate, "baseline", baseline),
        ("baseline", baseline, "candidate", candidate),
    ):
        alone = ((calls[other] >= 0) & (calls[side] < 0)).to_numpy() & ~out
        if not alone.any():
            continue
        positions = calls[other].to_numpy()[alone]
        left_out = _left_out(mine, theirs, positions, bool((calls.loc[calls[side] >= 0, other] < 0).any()))
        if left_out.any():
            out[np.flatnonzero(alone)[left_out]] = True
            partial.append(side)
            notes.append(
                f"{left_out.sum()} calls are not in the {side}'s dump, which was collected in part (scope or list)"
            )
    return out, tuple(partial), tuple(notes)


def cut_short(
    baseline: Dump, candidate: Dump, calls: pd.DataFrame, rows: pd.DataFrame, partial: Iterable[str]
) -> np.ndarray:
    """Mark lines of Pairing.rows whose output a dump collected in part lacks: the scope ended inside their call."""
    import numpy as np

    out = np.zeros(len(rows), dtype=bool)
    for side in partial:
        mine, theirs = (baseline, candidate) if side == "baseline" else (candidate, baseline)
        other = "candidate" if side == "baseline" else "baseline"
        gives = np.zeros(len(mine.calls), dtype=bool)
        gives[mine.rows["call"].cat.codes.to_numpy()[(mine.rows["io"] == OUTPUT).to_numpy()]] = True
        position = calls[side].to_numpy()[rows["call"].to_numpy()]
        silent = (position >= 0) & ~gives[np.maximum(position, 0)]
        io = theirs.rows["io"].to_numpy()[np.maximum(rows[other].to_numpy(), 0)]
        out |= silent & (rows[side] < 0).to_numpy() & (rows[other] >= 0).to_numpy() & (io == OUTPUT)
    return out


def _of_other_level(baseline: Dump, candidate: Dump, calls: pd.DataFrame) -> np.ndarray:
    import numpy as np

    out = np.zeros(len(calls), dtype=bool)
    for side, dump, other, level in (
        ("baseline", baseline, "candidate", candidate.level),
        ("candidate", candidate, "baseline", baseline.level),
    ):
        alone = np.flatnonzero(((calls[side] >= 0) & (calls[other] < 0)).to_numpy())
        is_module = (dump.calls["module"] != "").to_numpy()[calls[side].to_numpy()[alone]]
        out[alone] |= ~is_module if level == "L0" else is_module if level == "L1" else False
    return out


def _left_out(mine: Dump, theirs: Dump, positions: np.ndarray, has_own: bool) -> np.ndarray:
    """Tell which calls of the other side (positions) this dump left out although its run may have made them."""
    import numpy as np

    names = theirs.calls["name"].iloc[positions].astype(str)
    undumped = mine.mentioned() - set(mine.calls["name"])
    own = (theirs.calls["scope"] == "").to_numpy()[positions]  # an optimizer's calls: onesided.py
    there = own & names.str.replace(".parameters_grad", ".backward", regex=False).isin(undumped).to_numpy()
    if there.all() or has_own:
        return np.asarray(there)
    if set(mine.calls["name"]) < set(theirs.calls["name"]) and skips_counters(mine.calls):
        return np.ones(len(positions), dtype=bool)
    runs = 1 + int((np.diff(np.sort(positions)) > 1).sum())
    if len(positions) < _MISSING_SHARE * len(theirs.calls) or runs < _MISSING_RUNS:
        return np.asarray(there)
    subjects = subjects_of(theirs.calls).iloc[positions]
    whole = not set(subjects) & set(subjects_of(mine.calls))
    return np.ones(len(positions), bool) if whole and subjects.nunique() >= _MISSING_OPERATIONS else np.asarray(there)


def _either(baseline: Dump, candidate: Dump, calls: pd.DataFrame, patterns: tuple[str, ...]) -> np.ndarray:
    import numpy as np

    matched = np.zeros(len(calls), dtype=bool)
    for side, dump in (("baseline", baseline), ("candidate", candidate)):
        positions = calls[side].to_numpy()
        matched |= (positions >= 0) & _matches(dump, patterns)[np.maximum(positions, 0)]
    return matched


def _matches(dump: Dump, patterns: tuple[str, ...]) -> np.ndarray:
    import numpy as np

    own = [any(_fits(name, pattern) for pattern in patterns) for name in dump.calls["name"]]
    parents = dump.calls["parent"].tolist()
    for call in range(len(own) - 1, -1, -1):  # a parent stands behind its children
        parent = parents[call]
        own[call] |= parent >= 0 and own[parent]
    return np.array(own, dtype=bool)


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _column(baseline: Dump, candidate: Dump, calls: pd.DataFrame, column: str) -> np.ndarray:
    import numpy as np

    left, right = calls["baseline"].to_numpy(), calls["candidate"].to_numpy()
    mine, theirs = baseline.calls[column].to_numpy(), candidate.calls[column].to_numpy()
    return np.where(left >= 0, mine[np.maximum(left, 0)], theirs[np.maximum(right, 0)])
