"""Pair the calls and rows of two dumps by sequence; what has no partner stays in view, in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precdiag.bridge import Renames, bridge, learn, orphans
from precdiag.dump import Dump
from precdiag.errors import UnreadableError
from precdiag.identity import keys_of, names_of, renamed_subjects, sequences, subjects_of
from precdiag.sequence import Sequence, align_sequences

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# How a pair came about; "" stands for a one-sided call.
NAME, SEQUENCE, MAP, PREFIX = "name", "sequence", "map", "prefix"
# Fewer pairs than this share of the smaller side's calls, and the two have nothing in common.
_LEAST_SHARE = 0.1
# A tail is not comparable where less than a quarter of the smaller side's calls pair, and it is at least so long.
_PAIR_WORTH, _SHORTEST_TAIL = 3, 16
# A call that stands elsewhere in the order pairs with its namesake no further away than this many pairs.
_MOVED_AT_MOST = 32


@dataclass(frozen=True)
class Pairing:
    """Which call and row of the baseline stands against which of the candidate.

    `calls`: one line a pair or one-sided call: baseline, candidate (positions in the `calls` frames, -1 for none), how
    (`name`, `sequence`, `map`, `prefix`; "" for a one-sided call), moved (bool: it stands elsewhere in the order of the
    other side). `rows`: one line a pair or one-sided row, sorted in the order in which work began: baseline, candidate
    (positions in the `rows` frames, -1 for none), call (position in `calls` of this class). Every row of either dump
    stands in exactly one line. The baseline's order is the spine; a row that only the candidate has stands behind the
    row that precedes it there. `stopped`: the positions of the first calls behind which too little matches to go on.
    """

    calls: pd.DataFrame
    rows: pd.DataFrame
    notes: tuple[str, ...] = ()
    stopped: tuple[int, int] | None = None


def pair(baseline: Dump, candidate: Dump, renames: Renames | None = None) -> Pairing:
    """Pair two dumps of one step and rank: their calls by sequence, the rows of two paired calls by slot.

    The longest common subsequence over kind, operation (a module's path) and direction; among the longest the one with
    most rows of equal value, then of equal shape and dtype, then of equal names. Where both sides made the same calls
    in the same order nothing is searched. `renames`: the user's map. Raises UnreadableError where the two have nothing
    in common.
    """
    import pandas as pd

    matched = _match(baseline, candidate, renames or Renames())
    calls = _lines(matched, len(baseline.calls), len(candidate.calls))
    rows = _pair_rows(baseline.rows, candidate.rows, calls)
    order = _merged_order(rows, baseline.rows["order"].to_numpy(), candidate.rows["order"].to_numpy())
    frame = pd.DataFrame(rows).iloc[order].reset_index(drop=True)
    return Pairing(calls, frame, _notes(matched, baseline, candidate), matched.stopped)


@dataclass(frozen=True)
class _Matched:
    """Paired positions of both sides, how each came about, and whether it stands elsewhere in the order."""

    at: np.ndarray
    against: np.ndarray
    how: np.ndarray
    moved: np.ndarray
    stopped: tuple[int, int] | None = None

    def chosen(self, where: np.ndarray) -> _Matched:
        return replace(
            self, at=self.at[where], against=self.against[where], how=self.how[where], moved=self.moved[where]
        )


def _match(baseline: Dump, candidate: Dump, renames: Renames) -> _Matched:
    import numpy as np

    left, right = names_of(baseline.calls).to_numpy(), names_of(candidate.calls).to_numpy()
    if len(left) == len(right) and not renames.mapped and bool((left == right).all()):
        everything = np.arange(len(left))
        return _Matched(everything, everything, np.full(len(left), NAME, object), np.zeros(len(left), bool))
    subjects = subjects_of(baseline.calls), subjects_of(candidate.calls)
    mapped = renamed_subjects(subjects[0], renames.mapped)
    renames = replace(renames, bridged=bridge(mapped.unique(), subjects[1].unique()))
    sides = sequences(baseline, candidate, keys_of(baseline.calls, renames.all), keys_of(candidate.calls))
    at, against = align_sequences(*sides)
    if all(orphans(renamed_subjects(subjects[0], renames.all).unique(), subjects[1].unique())):
        renames = replace(renames, learnt=_learnt(baseline, candidate, renames))
        if renames.learnt:
            sides = sequences(baseline, candidate, keys_of(baseline.calls, renames.all), keys_of(candidate.calls))
            at, against = align_sequences(*sides)
    stopped, kept = _extent(at, against, len(left), len(right))
    at, against = at[kept], against[kept]
    if stopped is None:
        more = _moved(*sides, at, against)
        moved = np.repeat([False, True], [len(at), len(more[0])])
        at, against = np.concatenate([at, more[0]]), np.concatenate([against, more[1]])
    else:
        moved = np.zeros(len(at), dtype=bool)
    _require_common(sides, at, against, baseline, candidate)
    how = _how(subjects[0].to_numpy()[at], left[at] == right[against], renames)
    return _Matched(at, against, how, moved, stopped)


def _learnt(baseline: Dump, candidate: Dump, renames: Renames) -> dict[str, str]:
    """Align once more with modules that only one side knows by their class, and see which stand in one place."""
    calls = baseline.calls, candidate.calls
    subjects = renamed_subjects(subjects_of(calls[0]), renames.all), subjects_of(calls[1])
    unknown = orphans(subjects[0].unique(), subjects[1].unique())
    keys, alone = [], []
    for frame, subject, names in zip(calls, subjects, unknown, strict=True):
        orphan = subject.isin(names)
        keys.append(subject.where(~orphan, "Module of " + frame["operation"]) + "." + frame["phase"])
        alone.append(orphan.to_numpy())
    at, against = align_sequences(*sequences(baseline, candidate, *keys))
    both = alone[0][at] & alone[1][against]
    own = subjects_of(baseline.calls).to_numpy()[at[both]]
    return learn(zip(own.tolist(), subjects[1].to_numpy()[against[both]].tolist(), strict=True))


def _how(subjects: np.ndarray, same_name: np.ndarray, renames: Renames) -> np.ndarray:
    import numpy as np

    how = np.where(same_name, NAME, SEQUENCE).astype(object)
    for table, word in ((renames.learnt, SEQUENCE), (renames.bridged, PREFIX), (renames.mapped, MAP)):
        if table:
            how[np.isin(subjects, list(table))] = word
    return how


def _extent(at: np.ndarray, against: np.ndarray, size: int, other: int) -> tuple[tuple[int, int] | None, np.ndarray]:
    """Find where to stop: behind the pair from which on the balance of pairs and calls without one only falls.

    A pair counts for three, a gap against it as long as its shorter side is (what only one side made stops nothing).
    """
    import numpy as np

    gaps = np.minimum(np.diff(at, prepend=-1, append=size) - 1, np.diff(against, prepend=-1, append=other) - 1)
    balance = np.concatenate([[0], np.cumsum(_PAIR_WORTH - gaps[:-1])])
    keep = len(balance) - 1 - int(np.argmax(balance[::-1]))
    rest = slice(keep, None)
    tail = int(gaps[rest].sum()) + len(at) - keep
    whole = np.ones(len(at), dtype=bool)
    if tail < _SHORTEST_TAIL or keep == 0:
        return None, whole
    whole[keep:] = False
    return (int(at[keep - 1]) + 1, int(against[keep - 1]) + 1), whole


def _moved(left: Sequence, right: Sequence, at: np.ndarray, against: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair what is left on both sides: calls equal in everything, then namesakes that stand close by."""
    import numpy as np
    import pandas as pd

    rest = np.setdiff1d(np.arange(len(left.key)), at), np.setdiff1d(np.arange(len(right.key)), against)
    nowhere = np.array([], dtype=np.int64)
    if not len(rest[0]) or not len(rest[1]):
        return nowhere, nowhere
    frames = []
    for side, alone, paired in ((left, rest[0], at), (right, rest[1], np.sort(against))):
        before = np.searchsorted(paired, alone)
        columns = {"at": alone, "whole": side.whole[alone], "key": side.key[alone], "name": side.name[alone]}
        frames.append(pd.DataFrame(columns | {"before": before}))
    nth = [frame.assign(nth=frame.groupby("whole").cumcount()) for frame in frames]
    equal = nth[0].merge(nth[1], on=["whole", "key", "nth"])
    others = [frame[~frame["at"].isin(equal[f"at_{side}"])] for frame, side in zip(frames, "xy", strict=True)]
    namesakes = others[0].merge(others[1], on=["key", "name"])
    namesakes = namesakes[(namesakes["before_x"] - namesakes["before_y"]).abs() <= _MOVED_AT_MOST]
    found = pd.concat([equal, namesakes])
    return found["at_x"].to_numpy(dtype=np.int64), found["at_y"].to_numpy(dtype=np.int64)


def _require_common(
    sides: tuple[Sequence, Sequence], at: np.ndarray, against: np.ndarray, baseline: Dump, candidate: Dump
) -> None:
    import numpy as np

    left, right = sides
    smaller = min(len(left.key), len(right.key))
    alike = (left.shapes[at] == right.shapes[against]) & (left.shapes[at] != 0)
    if len(at) > _LEAST_SHARE * smaller and bool(np.any(alike)):
        return
    raise UnreadableError(
        f"{baseline.part.folder} and {candidate.part.folder} have nothing in common: {len(at):,} of {smaller:,} calls "
        f"pair; {baseline.calls['name'].iat[0]} stands against {candidate.calls['name'].iat[0]}",
        hint="check that both paths are dumps of the same model, or say with --map what is called what",
    )


def _notes(matched: _Matched, baseline: Dump, candidate: Dump) -> tuple[str, ...]:
    notes = []
    for word, said in (
        (SEQUENCE, "calls pair by their place in the sequence: their names differ"),
        (MAP, "calls pair as --map says"),
        (PREFIX, "module calls pair but for a wrapper's prefix or a model chunk's number"),
    ):
        if count := int((matched.how == word).sum()):
            notes.append(f"{count} {said}")
    if count := int(matched.moved.sum()):
        notes.append(f"{count} calls stand elsewhere in the order of the other side")
    if matched.stopped is not None:
        sides = zip((baseline, candidate), matched.stopped, strict=True)
        left, right = (str(dump.calls["name"].iat[position]) for dump, position in sides)
        notes.append(
            f"not comparable beyond here: {left} in the baseline, {right} in the candidate; "
            "too little behind them matches"
        )
    return tuple(notes)


def _lines(matched: _Matched, size: int, other: int) -> pd.DataFrame:
    """Return Pairing.calls: pairs first, then what only the baseline, then what only the candidate has."""
    import numpy as np
    import pandas as pd

    only_baseline = np.setdiff1d(np.arange(size), matched.at)
    only_candidate = np.setdiff1d(np.arange(other), matched.against)
    alone = len(only_baseline) + len(only_candidate)
    return pd.DataFrame(
        {
            "baseline": np.concatenate([matched.at, only_baseline, np.full(len(only_candidate), -1)]),
            "candidate": np.concatenate([matched.against, np.full(len(only_baseline), -1), only_candidate]),
            "how": np.concatenate([matched.how, np.full(alone, "", dtype=object)]),
            "moved": np.concatenate([matched.moved, np.zeros(alone, dtype=bool)]),
        }
    )


def _pair_rows(baseline: pd.DataFrame, candidate: pd.DataFrame, calls: pd.DataFrame) -> dict[str, np.ndarray]:
    import numpy as np
    import pandas as pd

    slots = baseline["slot"].cat.categories.union(candidate["slot"].cat.categories, sort=False)
    keys = []
    for side, frame in (("baseline", baseline), ("candidate", candidate)):
        there = calls[side].to_numpy() >= 0
        line = np.full(len(frame["call"].cat.categories), -1, dtype=np.int64)
        line[calls[side].to_numpy()[there]] = np.flatnonzero(there)
        slot = slots.get_indexer(frame["slot"].cat.categories).astype(np.int64)
        keys.append(line[frame["call"].cat.codes.to_numpy()] * len(slots) + slot[frame["slot"].cat.codes.to_numpy()])
    partner = pd.Index(keys[0]).get_indexer(pd.Index(keys[1]))
    paired = np.flatnonzero(partner >= 0)
    only_candidate = np.flatnonzero(partner < 0)
    only_baseline = np.setdiff1d(np.arange(len(baseline)), partner[paired])
    at_baseline = np.concatenate([partner[paired], only_baseline, np.full(len(only_candidate), -1)])
    at_candidate = np.concatenate([paired, np.full(len(only_baseline), -1), only_candidate])
    key = np.where(at_baseline >= 0, keys[0][at_baseline], keys[1][at_candidate])
    return {"baseline": at_baseline, "candidate": at_candidate, "call": key // max(len(slots), 1)}


def _merged_order(rows: dict[str, np.ndarray], baseline: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Sort key: the baseline's order; for a candidate-only row that of the paired row before it, then its own."""
    import numpy as np

    at_baseline, at_candidate = rows["baseline"], rows["candidate"]
    own = np.where(at_candidate >= 0, candidate[at_candidate], 0)
    anchor = np.where(at_baseline >= 0, baseline[at_baseline], -1)
    here = np.flatnonzero(at_candidate >= 0)
    walk = here[np.argsort(own[here])]  # the candidate's rows in the candidate's order
    last_paired = np.maximum.accumulate(np.where(at_baseline[walk] >= 0, np.arange(len(walk)), -1))
    anchored = np.where(last_paired >= 0, anchor[walk[last_paired]], -1)
    anchor[walk] = np.where(at_baseline[walk] >= 0, anchor[walk], anchored)
    order: np.ndarray = np.lexsort((own, at_baseline < 0, anchor))
    return order
