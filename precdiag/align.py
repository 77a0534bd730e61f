"""Pair the calls and rows of two dumps; what has no partner stays in view, in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Pairing:
    """Which call and row of the baseline stands against which of the candidate.

    `calls`: one line a pair or one-sided call: baseline, candidate (positions in the `calls` frames, -1 for none), how
    (`name`; "" for a one-sided call). `rows`: one line a pair or one-sided row, sorted in the order in which work
    began: baseline, candidate (positions in the `rows` frames, -1 for none), call (position in `calls` of this class).
    Every row of either dump stands in exactly one line. The baseline's order is the spine; a row that only the
    candidate has stands behind the row that precedes it there.
    """

    calls: pd.DataFrame
    rows: pd.DataFrame


def pair(baseline: Dump, candidate: Dump) -> Pairing:
    """Pair two dumps of one step and rank by the names of their calls and the slots of their rows."""
    import pandas as pd

    calls = pair_calls(baseline.calls, candidate.calls)
    rows = _pair_rows(baseline.rows, candidate.rows, calls)
    order = _merged_order(rows, baseline.rows["order"].to_numpy(), candidate.rows["order"].to_numpy())
    return Pairing(calls=calls, rows=pd.DataFrame(rows).iloc[order].reset_index(drop=True))


def pair_calls(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Pair calls of equal name: a frame as documented at Pairing, pairs first, in the baseline's order."""
    import numpy as np
    import pandas as pd

    names = pd.Index(_keys(baseline))
    partner = names.get_indexer(pd.Index(_keys(candidate)))  # candidate position -> baseline position or -1
    paired = np.flatnonzero(partner >= 0)
    only_candidate = np.flatnonzero(partner < 0)
    only_baseline = np.setdiff1d(np.arange(len(baseline)), partner[paired])
    return pd.DataFrame(
        {
            "baseline": np.concatenate([partner[paired], only_baseline, np.full(len(only_candidate), -1)]),
            "candidate": np.concatenate([paired, np.full(len(only_baseline), -1), only_candidate]),
            "how": ["name"] * len(paired) + [""] * (len(only_baseline) + len(only_candidate)),
        }
    )


def _keys(calls: pd.DataFrame) -> pd.Series[str]:
    """Names, with `parameters_grad` (1.x, 8.x) spelt as `parameters_grad.0` (26.x)."""
    names = calls["name"]
    old = (calls["phase"] == "parameters_grad") & (calls["index"] < 0)
    return names.where(~old, names + ".0")


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
