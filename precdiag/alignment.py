"""How the calls of two dumps were paired, as people see it: counted, and one by one where not by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precdiag.judge import Judged
from precdiag.match import MAP, NAME, PREFIX, SEQUENCE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Pair:
    """Two calls that were paired by something else than their name, or that stand elsewhere in the other's order."""

    baseline: str
    candidate: str
    how: str
    moved: bool


@dataclass(frozen=True)
class Alignment:
    """Calls counted by how they paired (`name`, `sequence`, `map`, `prefix`) or that stand on one side only.

    `pairs`: those that did not pair by name and in order, up to a limit. `stopped`: the two calls beyond which too
    little matches to go on.
    """

    counts: dict[str, int] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    stopped: tuple[str, str] | None = None

    def __add__(self, other: Alignment) -> Alignment:
        words = {**self.counts, **other.counts}
        counts = {word: self.counts.get(word, 0) + other.counts.get(word, 0) for word in words}
        return Alignment(counts, self.pairs + other.pairs, self.stopped or other.stopped)


def alignment_of(judged: Judged, limit: int) -> Alignment:
    """Describe the pairing of one judged pair of dumps; `limit` is the most pairs that are listed."""
    calls, stopped = judged.pairing.compared, judged.pairing.stopped
    how = calls["how"]
    counts = {word: int((how == word).sum()) for word in (NAME, SEQUENCE, MAP, PREFIX)}
    counts["baseline_only"] = int((calls["candidate"] < 0).sum())
    counts["candidate_only"] = int((calls["baseline"] < 0).sum())
    paired = calls[(how != "") & ((how != NAME) | calls["moved"])].sort_values("baseline").head(limit)
    names = _names(judged.baseline.calls, paired["baseline"]), _names(judged.candidate.calls, paired["candidate"])
    pairs = zip(*names, paired["how"].tolist(), paired["moved"].tolist(), strict=True)
    ends = None
    if stopped is not None:
        ends = str(judged.baseline.calls["name"].iat[stopped[0]]), str(judged.candidate.calls["name"].iat[stopped[1]])
    return Alignment(counts, tuple(Pair(*each) for each in pairs), ends)


def _names(calls: pd.DataFrame, positions: pd.Series[int]) -> list[str]:
    return [str(name) for name in calls["name"].iloc[positions]]
