"""Match the calls of two dumps by sequence; find what was renamed, wrapped or moved, and where matching must stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precdiag.bridge import Renames, bridge, learn, orphans
from precdiag.dump import Dump
from precdiag.errors import UnreadableError
from precdiag.identity import contents, keyed, names_of, renamed_subjects, skips_counters, subjects_of
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
class Matched:
    """Paired calls: positions on both sides, how each pair came about, and whether it stands elsewhere in the order.

    Those not `moved` ascend on both sides. `stopped`: the first calls behind which too little matches to go on.
    """

    at: np.ndarray
    against: np.ndarray
    how: np.ndarray
    moved: np.ndarray
    stopped: tuple[int, int] | None = None


def match_calls(baseline: Dump, candidate: Dump, renames: Renames) -> Matched:
    """Match the calls of two dumps by sequence; with equal names call for call nothing is searched.

    Raises UnreadableError where the two have nothing in common.
    """
    import numpy as np

    names = names_of(baseline.calls).to_numpy(), names_of(candidate.calls).to_numpy()
    if not renames.mapped and not renames.forced:
        named = _by_name(baseline, candidate, *names)
        if named is not None:
            return named
    forced = _forced(names, renames.forced)
    subjects = subjects_of(baseline.calls), subjects_of(candidate.calls)
    mapped = renamed_subjects(subjects[0], renames.mapped)
    renames = replace(renames, bridged=bridge(mapped.unique(), subjects[1].unique()))
    ours = renamed_subjects(subjects[0], renames.all)
    unkeyed = contents(baseline, candidate)
    sides = keyed(unkeyed, *_keys(baseline, candidate, (ours, subjects[1]), forced))
    at, against = align_sequences(*sides)
    if all(orphans(ours.unique(), subjects[1].unique())):
        renames = replace(renames, learnt=_learnt(baseline, candidate, unkeyed, (ours, subjects[1]), subjects[0]))
        if renames.learnt:
            ours = renamed_subjects(subjects[0], renames.all)
            sides = keyed(unkeyed, *_keys(baseline, candidate, (ours, subjects[1]), forced))
            at, against = align_sequences(*sides)
    stopped, kept = _extent(at, against, *map(len, names))
    at, against = at[kept], against[kept]
    more = _moved(*sides, at, against, forced) if stopped is None else (at[:0], at[:0])
    moved = np.repeat([False, True], [len(at), len(more[0])])
    at, against = np.concatenate([at, more[0]]), np.concatenate([against, more[1]])
    _require_common(sides, at, against, baseline, candidate)
    how = _how(subjects[0].iloc[at], names[0][at] == names[1][against], renames)
    how[np.isin(at, forced[0])] = MAP
    return Matched(at, against, how, moved, stopped)


_Positions = tuple["np.ndarray", "np.ndarray"]
_Subjects = tuple["pd.Series[str]", "pd.Series[str]"]


def _forced(names: _Positions, forced: Mapping[str, str]) -> _Positions:
    """Positions of the calls that the user paired by name, where both dumps have them."""
    import numpy as np
    import pandas as pd

    if not forced:
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    at = pd.Index(names[0]).get_indexer(pd.Index(list(forced)))
    against = pd.Index(names[1]).get_indexer(pd.Index(list(forced.values())))
    both = (at >= 0) & (against >= 0)
    return at[both], against[both]


def _keys(baseline: Dump, candidate: Dump, subjects: _Subjects, forced: _Positions) -> _Subjects:
    """Both sides' keys: subject and direction; calls that the user paired have their own."""
    keys = (subjects[0] + "." + baseline.calls["phase"], subjects[1] + "." + candidate.calls["phase"])
    for key, positions in zip(keys, forced, strict=True):
        key.iloc[positions] = [f"forced {number}" for number in range(len(positions))]
    return keys


def _by_name(baseline: Dump, candidate: Dump, left: np.ndarray, right: np.ndarray) -> Matched | None:
    """Pair by name where nothing needs to be searched: all names are equal in order; or one side's counters skip calls,
    as with a scope or a list, and the other has all its names.
    """
    import numpy as np
    import pandas as pd

    if len(left) == len(right) and bool((left == right).all()):
        everything = np.arange(len(left))
        return Matched(everything, everything, np.full(len(left), NAME, object), np.zeros(len(left), bool))
    skips = skips_counters(baseline.calls), skips_counters(candidate.calls)
    if not any(skips):
        return None
    positions = pd.Index(right).get_indexer(pd.Index(left))
    at = np.flatnonzero(positions >= 0)
    against = positions[at]
    has_all = (skips[0] and len(at) == len(left)) or (skips[1] and len(at) == len(right))
    if has_all and bool((np.diff(against) > 0).all()):
        return Matched(at, against, np.full(len(at), NAME, object), np.zeros(len(at), bool))
    return None


def _learnt(
    baseline: Dump,
    candidate: Dump,
    unkeyed: tuple[Sequence, Sequence],
    subjects: _Subjects,
    own: pd.Series[str],
) -> dict[str, str]:
    """Align once more with modules that only one side knows by their class, and see which stand in one place.

    `unkeyed`: both sides without keys; `subjects`: of both, renamed as far as known; `own`: the baseline's as they are.
    """
    unknown = orphans(subjects[0].unique(), subjects[1].unique())
    keys, alone = [], []
    for frame, subject, names in zip((baseline.calls, candidate.calls), subjects, unknown, strict=True):
        orphan = subject.isin(names)
        keys.append(subject.where(~orphan, "Module of " + frame["operation"]) + "." + frame["phase"])
        alone.append(orphan.to_numpy())
    at, against = align_sequences(*keyed(unkeyed, *keys))
    both = alone[0][at] & alone[1][against]
    found = own.to_numpy()[at[both]].tolist(), subjects[1].to_numpy()[against[both]].tolist()
    return learn(zip(*found, strict=True))


def _how(subjects: pd.Series[str], same_name: np.ndarray, renames: Renames) -> np.ndarray:
    import numpy as np

    how = np.where(same_name, NAME, SEQUENCE).astype(object)
    for table, word in ((renames.learnt, SEQUENCE), (renames.bridged, PREFIX), (renames.mapped, MAP)):
        if table:
            how[subjects.isin(table).to_numpy()] = word
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


def left_over(size: int, taken: np.ndarray) -> np.ndarray:
    """Return the positions 0..size-1 that are not among `taken`, in order."""
    import numpy as np

    free = np.ones(size, dtype=bool)
    free[taken] = False
    return np.flatnonzero(free)


def _moved(
    left: Sequence, right: Sequence, at: np.ndarray, against: np.ndarray, forced: _Positions
) -> tuple[np.ndarray, np.ndarray]:
    """Pair what is left on both sides: what the user paired, calls equal in everything, namesakes close by."""
    import numpy as np
    import pandas as pd

    told = ~np.isin(forced[0], at)
    rest = tuple(
        left_over(len(side.key), np.concatenate([paired, own]))
        for side, paired, own in ((left, at, forced[0]), (right, against, forced[1]))
    )
    if not len(rest[0]) or not len(rest[1]):
        return forced[0][told], forced[1][told]
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
    return (
        np.concatenate([forced[0][told], found["at_x"].to_numpy(dtype=np.int64)]),
        np.concatenate([forced[1][told], found["at_y"].to_numpy(dtype=np.int64)]),
    )


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
