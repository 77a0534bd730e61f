"""Judge replaced regions: whether what two runs of calls hand on agrees, or differs by what rounding explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.evidence import DIFFERENT, EQUAL
from precdiag.judge import Judged
from precdiag.onesided import REPLACED
from precdiag.regions import Region
from precdiag.relative import errors_of, explained
from precdiag.rows import INPUT, OUTPUT

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Replaced:
    """A region and the verdict on it.

    `boundary`: `equal`, `different` or `unknown`. e_in: the largest error before it, e_out: that of its result, both
    relative to the baseline's norm; u: the roundoff of the result. `explained`: rounding explains e_out, given e_in
    and as many roundings as the longer run has calls. `lines`: of Judged.rows, where the results are compared. `calls`:
    lines of Pairing.calls that are inside.
    """

    name: str
    note: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    boundary: str
    e_in: float
    e_out: float
    u: float
    explained: bool
    lines: tuple[int, ...]
    calls: tuple[int, ...]

    @property
    def sides(self) -> str:
        """Which calls stand against which, for a sentence."""
        runs = [said(calls) for calls in (self.baseline, self.candidate)]
        what = f"{self.name}: " if self.name else ""
        return f"{what}{runs[0]} of the baseline stand against {runs[1]} of the candidate"


def judge_regions(judged: Judged) -> tuple[Replaced, ...]:
    """Judge every region of a pairing (DESIGN, "Beyond rounding": e_out <= calls·floor + 2·e_in)."""
    if not judged.pairing.regions:
        return ()
    errors = errors_of(judged)
    e, u = errors.e, errors.u
    before = largest_before(e)
    return tuple(_judged(judged, region, e, u, before) for region in judged.pairing.regions)


def spans(judged: Judged) -> np.ndarray:
    """Count, for each line of `judged.rows`, the calls whose rounding it may carry: more than one behind a region."""
    import numpy as np

    counts = np.ones(len(judged.rows), dtype=np.int64)
    for region in judged.pairing.regions:
        lines = boundary_lines(judged, region)
        counts[lines] = np.maximum(counts[lines], region.length)
    return counts


def boundary_lines(judged: Judged, region: Region) -> np.ndarray:
    """Return the lines in which a region's results are compared: their own, else what the call behind takes in.

    Where that call is the module around the region, its output is the result.
    """
    import numpy as np

    rows = judged.rows
    if region.boundary is not None:
        return np.flatnonzero((rows["baseline"] == region.boundary[0]).to_numpy())
    if region.behind[0] < 0:
        return np.array([], dtype=np.int64)
    place = OUTPUT if _is_inside(judged, region) else INPUT
    at = np.maximum(rows["baseline"].to_numpy(), 0)
    frame = judged.baseline.rows
    tensor = frame["tensor"].to_numpy()[at] & (frame["io"].to_numpy()[at] == place)
    here = judged.pairing.calls["baseline"].to_numpy()[rows["call"].to_numpy()] == region.behind[0]
    return np.flatnonzero(here & tensor & judged.pairing.paired)


def explained_calls(replaced: Iterable[Replaced], recognised: Mapping[int, str]) -> dict[int, str]:
    """Add to the recognised one-sided calls those inside regions that agree but for rounding: line of calls → why."""
    inside = {line: REPLACED for region in replaced if region.explained for line in region.calls}
    return {**inside, **recognised}


def largest_before(e: np.ndarray) -> np.ndarray:
    """Return the largest finite error of the lines before each line."""
    import numpy as np

    finite = np.where(np.isfinite(e), e, 0.0)
    return np.concatenate([[0.0], np.maximum.accumulate(finite)[:-1]]) if len(e) else finite


def said(calls: tuple[str, ...]) -> str:
    """Name a run of calls in a few words."""
    if not calls:
        return "none that msprobe saw"
    return calls[0] if len(calls) == 1 else f"{len(calls)} calls ({calls[0]} … {calls[-1]})"


def _judged(judged: Judged, region: Region, e: np.ndarray, u: np.ndarray, before: np.ndarray) -> Replaced:
    import numpy as np

    lines = boundary_lines(judged, region)
    state = judged.rows["state"].to_numpy()[lines]
    boundary = "different" if (state == DIFFERENT).any() else "equal" if (state == EQUAL).any() else "unknown"
    e_in = float(before[lines[0]]) if len(lines) else 0.0
    known = lines[~np.isnan(e[lines])]
    worst = int(known[np.argmax(e[known])]) if len(known) else -1
    told = boundary == "equal" or (worst >= 0 and bool(explained(e[worst], np.asarray(e_in), u[worst], region.length)))
    names = [
        tuple(dump.call_cell("name", call) for call in calls)
        for dump, calls in ((judged.baseline, region.baseline), (judged.candidate, region.candidate))
    ]
    calls = judged.pairing.calls
    inside = np.flatnonzero(calls["baseline"].isin(region.baseline) | calls["candidate"].isin(region.candidate))
    return Replaced(
        name=region.name,
        note=region.note,
        baseline=names[0],
        candidate=names[1],
        boundary=boundary,
        e_in=e_in,
        e_out=float(e[worst]) if worst >= 0 else float("nan"),
        u=float(u[worst]) if worst >= 0 else float("nan"),
        explained=told,
        lines=tuple(lines.tolist()),
        calls=tuple(inside.tolist()),
    )


def _is_inside(judged: Judged, region: Region) -> bool:
    if region.baseline:
        return bool(judged.baseline.call_cell("parent", region.baseline[-1]) == region.behind[0])
    return bool(judged.candidate.call_cell("parent", region.candidate[-1]) == region.behind[1])
