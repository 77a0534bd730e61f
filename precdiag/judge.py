"""Judge each line of a pairing under a policy: bitwise, or a band that the user asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precdiag.align import Pairing
from precdiag.dump import Dump
from precdiag.errors import UsageError
from precdiag.evidence import (
    ARGUMENT,
    BASELINE_ONLY,
    BYTES,
    CANDIDATE_ONLY,
    DIFFERENT,
    GRAD,
    NOTHING,
    ROUNDING_REASON,
    SHAPE,
    UNKNOWN,
    XOR,
    Effort,
    Pairs,
    judge_pairs,
)
from precdiag.lookup import Lookup
from precdiag.tensors import TensorPair

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Scrutiny:
    """What is to be found out about rounding, beside the verdict; it changes none.

    `arbiter`: replay calls in float64 where tensors allow it. `noise`: a run whose distance from the baseline is
    rounding alone; a row is beyond it from `k` times on.
    """

    arbiter: bool = True
    noise: Path | None = None
    k: float = 3.0


@dataclass(frozen=True)
class Policy:
    """What counts as outside: nothing set means bitwise; a row is inside a band only if it meets every bound set.

    On tensors the bounds are elementwise maxima and the cosine of the whole. On statistics max_rel is |Δ| over
    max(|Max|, |Min|) of the baseline (Norm: over itself), max_abs the largest elementwise |Δ| that the statistics
    prove (|ΔNorm|/√n for the Norm); cosine_min and max_ulp need tensors. `band_from`: a run whose measured noise makes
    the band, row by row (noise.in_band_of_noise).
    """

    max_abs: float | None = None
    max_rel: float | None = None
    cosine_min: float | None = None
    max_ulp: int | None = None
    band_from: Path | None = None
    scrutiny: Scrutiny = field(default=Scrutiny(), compare=False)

    @property
    def mode(self) -> str:
        """`bitwise` or `band`."""
        return "bitwise" if self == Policy() else "band"


@dataclass(frozen=True)
class Judged:
    """A pairing with a verdict for each line.

    `rows` is Pairing.rows with: state, evidence (int8 codes of evidence.py), aspects (uint8 bits), reason (object: why
    unknown or excluded, or None), outside (bool: counts under the policy), blocking (bool: unknown, and so forbids "no
    divergence"), nonfinite (uint8: bit 1 baseline, 2 candidate), max_abs, max_rel, cosine, max_ulp (float64, NaN where
    not known). `tensors`: what the comparison of bytes found for a line of `rows`, where they differ.
    """

    baseline: Dump
    candidate: Dump
    pairing: Pairing
    rows: pd.DataFrame
    tensors: dict[int, TensorPair]
    notes: tuple[str, ...]

    @cached_property
    def cell(self) -> Lookup:
        """Single values of `rows`."""
        return Lookup(self.rows)

    def differs_in(self, aspects: int) -> np.ndarray:
        """Mark the lines that differ in any of some aspects (bits of evidence.py): bool of len(rows)."""
        import numpy as np

        state, differing = self.rows["state"].to_numpy(), self.rows["aspects"].to_numpy()
        return np.asarray((state == DIFFERENT) & ((differing & aspects) != 0))

    def name(self, line: int) -> str:
        """Return the row name of a line: the baseline's, the candidate's where only that has it."""
        b, c = int(self.cell("baseline", line)), int(self.cell("candidate", line))
        return self.baseline.name(b) if b >= 0 else self.candidate.name(c)


def judge(
    baseline: Dump,
    candidate: Dump,
    pairing: Pairing,
    policy: Policy,
    progress: Callable[[int, int], None] = lambda done, total: None,
    effort: Effort = Effort(),  # noqa: B008 - a frozen value
) -> Judged:
    """Judge every line of a pairing. `progress(done, total)` is called as tensor files are compared.

    Raises UsageError where the band asks for what the evidence cannot give.
    """
    pairs = pairs_of(baseline, candidate, pairing)
    notes = judge_pairs(pairs, progress, effort)
    _require_evidence(pairs, policy)
    return settle(pairs, pairing, policy, _metrics(pairs), notes)


def pairs_of(baseline: Dump, candidate: Dump, pairing: Pairing) -> Pairs:
    """Return the two-sided lines of a pairing, in its order, for judgement."""
    both = pairing.rows[pairing.paired]
    return Pairs(baseline, candidate, both["baseline"].to_numpy(), both["candidate"].to_numpy())


def settle(
    pairs: Pairs, pairing: Pairing, policy: Policy, metrics: Mapping[str, np.ndarray], notes: tuple[str, ...]
) -> Judged:
    """Lay the verdicts of judged pairs (`pairs_of` the pairing) and their metrics on its lines, under a policy.

    `metrics`: max_abs, max_rel, cosine, max_ulp, each float64 over the pairs, NaN where not known.
    """
    import numpy as np

    rows = pairing.rows.copy()
    lines = np.flatnonzero(pairing.paired)
    one_sided = np.where(rows["candidate"] < 0, BASELINE_ONLY, CANDIDATE_ONLY).astype(np.int8)
    rows["state"] = _scattered(one_sided, lines, pairs.state)
    rows["aspects"] = _scattered(np.zeros(len(rows), np.uint8), lines, pairs.aspects)
    rows["evidence"] = _scattered(np.full(len(rows), NOTHING, np.int8), lines, pairs.evidence)
    rows["reason"] = _scattered(np.full(len(rows), None, object), lines, pairs.reason)
    rows["nonfinite"] = _scattered(np.zeros(len(rows), np.uint8), lines, pairs.deltas.nonfinite)
    for name, values in metrics.items():
        rows[name] = _scattered(np.full(len(rows), np.nan), lines, values)
    rows["outside"] = _outside(rows, policy)
    rounded = (rows["reason"] == ROUNDING_REASON) if policy.mode == "band" else False
    rows["blocking"] = (rows["state"] == UNKNOWN) & ~rounded
    tensors = {int(lines[at]): found for at, found in pairs.tensors.items() if found.state == "different"}
    return Judged(pairs.baseline, pairs.candidate, pairing, rows, tensors, notes)


def _require_evidence(pairs: Pairs, policy: Policy) -> None:
    weakest = pairs.evidence[pairs.evidence != NOTHING]
    if policy.mode == "bitwise" or not len(weakest):
        return
    if (policy.cosine_min is not None or policy.max_ulp is not None) and not (weakest == BYTES).any():
        raise UsageError(
            "--cosine-min and --max-ulp need tensors, and these dumps hold none that can be read",
            hint="use --max-rel or --max-abs, or collect with --task tensor",
        )
    if (weakest == XOR).all():
        raise UsageError(
            "a band needs statistics or tensors; these dumps hold xor checksums, which know only equal or not"
        )


def _scattered(column: np.ndarray, lines: np.ndarray, values: np.ndarray) -> np.ndarray:
    column[lines] = values
    return column


def _metrics(pairs: Pairs) -> dict[str, np.ndarray]:
    """Metrics of every pair: from the tensors where they were compared, else what the statistics prove."""
    import numpy as np

    columns = {"max_abs": pairs.deltas.max_abs.copy(), "max_rel": pairs.deltas.max_rel.copy()}
    columns |= {"cosine": np.full(len(pairs.b), np.nan), "max_ulp": np.full(len(pairs.b), np.nan)}
    for at, found in pairs.tensors.items():
        for name, column in columns.items():
            metric: Any = None if found.metrics is None else getattr(found.metrics, name)
            if found.state == "equal":
                column[at] = 1.0 if name == "cosine" else 0.0
            elif metric is not None:
                column[at] = metric
    return columns


def _outside(rows: pd.DataFrame, policy: Policy) -> np.ndarray:
    """Mark lines that count under the policy. dtype alone never does under a band: there values decide."""
    import numpy as np

    differs = (rows["state"] == DIFFERENT).to_numpy()
    if policy.mode == "bitwise":
        return np.asarray(differs)
    inside = np.ones(len(rows), dtype=bool)  # a bound on a metric that a row lacks (NaN) is not met
    for bound, metric in ((policy.max_abs, "max_abs"), (policy.max_rel, "max_rel"), (policy.max_ulp, "max_ulp")):
        if bound is not None:
            inside &= (rows[metric] <= bound).to_numpy()
    if policy.cosine_min is not None:
        inside &= (rows["cosine"] >= policy.cosine_min).to_numpy()
    exact = (rows["aspects"].to_numpy() & (SHAPE | ARGUMENT | GRAD)) != 0
    judged = differs | (rows["reason"] == ROUNDING_REASON).to_numpy()
    return np.asarray(judged & (exact | ~inside))
