"""One line of a comparison as people see it: its name, its place, what differs in it, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from precdiag.dump import Dump
from precdiag.evidence import (
    ARGUMENT,
    BASELINE_ONLY,
    CANDIDATE_ONLY,
    DTYPE,
    EQUAL,
    EXCLUDED,
    GRAD,
    SHAPE,
    UNKNOWN,
    VALUE,
)
from precdiag.judge import Judged
from precdiag.match import SEQUENCE
from precdiag.rows import STATISTICS

_UNDIFFERENT = {EQUAL: "equal", UNKNOWN: "unknown", EXCLUDED: "uninitialised"}


@dataclass(frozen=True)
class Row:
    """One line of a comparison as people see it: JSON keys of DESIGN's `row`, and what the report adds.

    `kind` of a row that is not the cause is what differs in it: `structure`, `shape`, `dtype`, `argument`,
    `requires_grad`, `non-finite` or `value`; in the context shown around the cause also `equal`, `unknown` and
    `uninitialised`. `how` its two calls were paired (`name`, `sequence`, `map`, `prefix`; "" where one side has none),
    and `partner`, the candidate's name of the row where it is another.
    """

    step: int | None
    rank: int | None
    stage: str
    order: int
    name: str
    call: str
    slot: str | None
    phase: str
    kind: str
    metrics: dict[str, Any] | None
    evidence: int
    module: str | None = None
    how: str = ""
    partner: str | None = None


def row_of(judged: Judged, line: int) -> Row:
    """Describe one line of `judged.rows`; its kind is what differs in it."""
    dump, at = side_of(judged, line)
    entry = dump.rows.iloc[at]
    call = dump.calls.iloc[int(dump.rows["call"].cat.codes.iat[at])]
    name = f"{entry['call']}.{entry['slot']}"
    other = judged.candidate.name(int(judged.rows["candidate"].iat[line])) if is_paired(judged, line) else name
    how = str(judged.pairing.calls["how"].iat[int(judged.rows["call"].iat[line])])
    if not how and is_paired(judged, line):  # the results of a replaced region
        how = SEQUENCE
    return Row(
        step=judged.baseline.part.step if judged.baseline.part.step is not None else judged.candidate.part.step,
        rank=judged.baseline.part.rank if judged.baseline.part.rank is not None else judged.candidate.part.rank,
        stage=judged.baseline.part.stage,
        order=line,
        name=name,
        call=str(entry["call"]),
        slot=str(entry["slot"]),
        phase=str(call["phase"]),
        kind=aspect_of(judged, line),
        metrics=_metrics(judged, line),
        evidence=int(judged.rows["evidence"].iat[line]),
        module=module_of(dump, int(dump.rows["call"].cat.codes.iat[at])),
        how=how,
        partner=None if other == name else other,
    )


def module_of(dump: Dump, call: int) -> str | None:
    """Return the path of the module that a call is or stands in, None where construct.json does not say."""
    while call >= 0:
        path = dump.calls["module"].iat[call]
        if path:
            return str(path)
        call = int(dump.calls["parent"].iat[call])
    return None


def side_of(judged: Judged, line: int) -> tuple[Dump, int]:
    """Return the dump and row position that speak for a line: the baseline's where it has the row."""
    b, c = int(judged.rows["baseline"].iat[line]), int(judged.rows["candidate"].iat[line])
    return (judged.baseline, b) if b >= 0 else (judged.candidate, c)


def is_paired(judged: Judged, line: int) -> bool:
    """Tell whether both sides have the row of a line."""
    return int(judged.rows["baseline"].iat[line]) >= 0 and int(judged.rows["candidate"].iat[line]) >= 0


def is_beyond(judged: Judged, line: int) -> bool:
    """Tell whether a one-sided line stands behind the place beyond which too little matches to compare."""
    stopped = judged.pairing.stopped
    if stopped is None:
        return False
    call = judged.pairing.calls.iloc[int(judged.rows["call"].iat[line])]
    return any(position >= first for position, first in zip(call[["baseline", "candidate"]], stopped, strict=True))


def aspect_of(judged: Judged, line: int) -> str:
    """Name what differs in a line, the most telling aspect first."""
    state, aspects = int(judged.rows["state"].iat[line]), int(judged.rows["aspects"].iat[line])
    if state in (BASELINE_ONLY, CANDIDATE_ONLY):
        return "structure"
    if state in _UNDIFFERENT:
        return _UNDIFFERENT[state]
    for bit, name in ((SHAPE, "shape"), (ARGUMENT, "argument")):
        if aspects & bit:
            return name
    if aspects & VALUE:
        return "non-finite" if int(judged.rows["nonfinite"].iat[line]) in (1, 2) else "value"
    return "dtype" if aspects & DTYPE else "requires_grad" if aspects & GRAD else "value"


def texts_of(judged: Judged, line: int) -> tuple[str, str]:
    """What the two sides hold of the aspect that differs, as text."""
    column = {"shape": "shape", "dtype": "dtype", "requires_grad": "requires_grad"}.get(
        aspect_of(judged, line), "value"
    )
    texts = []
    for dump, side in ((judged.baseline, "baseline"), (judged.candidate, "candidate")):
        row = dump.rows.iloc[int(judged.rows[side].iat[line])]
        if column == "requires_grad":
            texts.append(str(row["requires_grad"] == 1))
        elif column == "value" and row["tensor"]:
            texts.append(f"a tensor {row['shape']} {row['dtype']}")
        else:
            texts.append(str(row[column]))
    return texts[0], texts[1]


def _metrics(judged: Judged, line: int) -> dict[str, Any] | None:
    """Return DESIGN's metrics of a line: from its tensors, else from statistics, else the two texts; None one-sided."""
    if int(judged.rows["state"].iat[line]) in (BASELINE_ONLY, CANDIDATE_ONLY):
        return None
    empty = dict.fromkeys(("mismatched", "elements", "index", "baseline", "candidate"))
    numbers = {name: float(judged.rows[name].iat[line]) for name in ("max_abs", "max_rel", "cosine", "max_ulp")}
    metrics: dict[str, Any] = {name: None if math.isnan(value) else value for name, value in numbers.items()} | empty
    found = judged.tensors.get(line)
    if found is not None and found.metrics is not None:
        return metrics | {name: getattr(found.metrics, name) for name in ("max_ulp", *empty)}
    if aspect_of(judged, line) in ("value", "non-finite"):
        metrics["baseline"], metrics["candidate"] = _worst_statistic(judged, line)
    else:
        metrics["baseline"], metrics["candidate"] = texts_of(judged, line)
    return metrics


def _worst_statistic(judged: Judged, line: int) -> tuple[float | None, float | None]:
    """The statistic of an element (Max, Min, Mean) that differs most, on both sides."""
    left = judged.baseline.rows.iloc[int(judged.rows["baseline"].iat[line])]
    right = judged.candidate.rows.iloc[int(judged.rows["candidate"].iat[line])]
    pairs = [(float(left[name]), float(right[name])) for name in STATISTICS]
    unlike = [(b, c) for b, c in pairs if b != c and not (math.isnan(b) and math.isnan(c))]
    if not unlike:
        return None, None
    return max(unlike[:3], key=lambda pair: math.inf if math.isnan(pair[0] - pair[1]) else abs(pair[0] - pair[1]))
