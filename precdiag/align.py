"""Pair the calls and rows of two dumps by sequence; what has no partner stays in view, in its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.mapping import CallMap
from precdiag.match import MAP, PREFIX, SEQUENCE, Matched, left_over, match_calls
from precdiag.regions import Region, find_regions
from precdiag.replacements import Replacement, known_replacements
from precdiag.view import View, cut_short, unrecorded

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Pairing:
    """Which call and row of the baseline stands against which of the candidate.

    `calls`: one line a pair or one-sided call: baseline, candidate (positions in the `calls` frames, -1 for none), how
    (`name`, `sequence`, `map`, `prefix`; "" for a one-sided call), moved (bool: it stands elsewhere in the order of the
    other side). `rows`: one line a pair or one-sided row, sorted in the order in which work began: baseline, candidate
    (positions in the `rows` frames, -1 for none), call (position in `calls` of this class). Every row of either dump
    stands in exactly one line. The baseline's order is the spine; a row that only the candidate has stands behind the
    row that precedes it there. `regions`: one-sided calls that stand against others; the rows of their boundary are
    paired, in the line of the baseline's call. `stopped`: the positions of the first calls behind which too little
    matches to go on. `filtered`: rows that are left out, because the user did not ask for them or because one side's
    dump could not hold them or left them out; they are the only ones without a line.
    """

    calls: pd.DataFrame
    rows: pd.DataFrame
    notes: tuple[str, ...] = ()
    stopped: tuple[int, int] | None = None
    regions: tuple[Region, ...] = ()
    filtered: int = 0

    @property
    def paired(self) -> np.ndarray:
        """Mark the lines of `rows` that both sides have: bool of len(rows)."""
        import numpy as np

        return np.asarray((self.rows["baseline"].to_numpy() >= 0) & (self.rows["candidate"].to_numpy() >= 0))

    @property
    def compared(self) -> pd.DataFrame:
        """The lines of `calls` of which any row is compared, under their own index."""
        return self.calls[self.calls.index.isin(self.rows["call"].unique())] if self.filtered else self.calls


def pair(
    baseline: Dump,
    candidate: Dump,
    call_map: CallMap | None = None,
    view: View | None = None,
) -> Pairing:
    """Pair two dumps of one step and rank: their calls by sequence, the rows of two paired calls by slot.

    The longest common subsequence over kind, operation (a module's path) and direction; among the longest the one with
    most rows of equal value, then of equal shape and dtype, then of equal names. Where both sides made the same calls
    in the same order nothing is searched. `call_map`: the user's map. `view`: what the user
    wants compared. Raises UnreadableError where the two have nothing in common, UsageError where the view leaves
    nothing.
    """
    import pandas as pd

    call_map = call_map or CallMap()
    matched = match_calls(baseline, candidate, call_map.renames(baseline.calls, candidate.calls))
    calls = _lines(matched, len(baseline.calls), len(candidate.calls))
    out, partial, said = unrecorded(baseline, candidate, calls)
    regions = _regions(matched, baseline, candidate, call_map.replacements, calls[out])
    out |= (view or View()).unwanted(baseline, candidate, calls)
    rows = _pair_boundaries(_pair_rows(baseline.rows, candidate.rows, calls), regions)
    order = merged_order(rows, baseline.rows["order"].to_numpy(), candidate.rows["order"].to_numpy())
    frame = pd.DataFrame(rows).iloc[order].reset_index(drop=True)
    left_out = out[frame["call"].to_numpy()] | cut_short(baseline, candidate, calls, frame, partial)
    kept = frame[~left_out].reset_index(drop=True) if left_out.any() else frame
    notes = (*_notes(matched, baseline, candidate), *said)
    return Pairing(calls, kept, notes, matched.stopped, regions, len(frame) - len(kept))


def _notes(matched: Matched, baseline: Dump, candidate: Dump) -> tuple[str, ...]:
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


def _lines(matched: Matched, size: int, other: int) -> pd.DataFrame:
    """Return Pairing.calls: pairs first, then what only the baseline, then what only the candidate has."""
    import numpy as np
    import pandas as pd

    only_baseline = left_over(size, matched.at)
    only_candidate = left_over(other, matched.against)
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
    only_baseline = left_over(len(baseline), partner[paired])
    at_baseline = np.concatenate([partner[paired], only_baseline, np.full(len(only_candidate), -1)])
    at_candidate = np.concatenate([paired, np.full(len(only_baseline), -1), only_candidate])
    key = np.where(at_baseline >= 0, keys[0][at_baseline], keys[1][at_candidate])
    return {"baseline": at_baseline, "candidate": at_candidate, "call": key // max(len(slots), 1)}


def _regions(
    matched: Matched, baseline: Dump, candidate: Dump, known: Iterable[Replacement], left_out: pd.DataFrame
) -> tuple[Region, ...]:
    """Find replaced regions up to where the alignment stops."""
    import numpy as np

    sizes = matched.stopped or (len(baseline.calls), len(candidate.calls))
    alone = []
    for size, paired, side in zip(sizes, (matched.at, matched.against), ("baseline", "candidate"), strict=True):
        lonely = np.ones(size, dtype=bool)
        lonely[paired] = False
        positions = left_out[side].to_numpy()
        lonely[positions[(positions >= 0) & (positions < size)]] = False
        alone.append(lonely)
    if not any(lonely.any() for lonely in alone):
        return ()
    ordered = ~matched.moved
    everything = (*known_replacements(), *known)
    at, against = matched.at[ordered], matched.against[ordered]
    return find_regions(baseline, candidate, at, against, (alone[0], alone[1]), everything)


def _pair_boundaries(rows: dict[str, np.ndarray], regions: Iterable[Region]) -> dict[str, np.ndarray]:
    """Lay the two results of each region on one line, that of the baseline's call."""
    import numpy as np

    boundaries = [region.boundary for region in regions if region.boundary is not None]
    if not boundaries:
        return rows
    left, right = np.array(boundaries).T
    line = np.argsort(rows["baseline"], kind="stable")
    here = line[np.searchsorted(rows["baseline"], left, sorter=line)]
    rows["candidate"][here] = right
    there = np.isin(rows["candidate"], right) & (rows["baseline"] < 0)
    return {name: column[~there] for name, column in rows.items()}


def merged_order(rows: dict[str, np.ndarray], baseline: np.ndarray, candidate: np.ndarray) -> np.ndarray:
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
