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
    and `partner`, the candidate's name of the row where it is another. `result` is msprobe's own word, where it was
    asked.
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
    result: str | None = None


def row_of(judged: Judged, line: int) -> Row:
    """Describe one line of `judged.rows`; its kind is what differs in it."""
    dump, at = side_of(judged, line)
    call = dump.cell.code("call", at)
    name = dump.name(at)
    other = judged.candidate.name(int(judged.cell("candidate", line))) if is_paired(judged, line) else name
    how = str(judged.pairing.calls["how"].iat[int(judged.cell("call", line))])
    if not how and is_paired(judged, line):  # the results of a replaced region
        how = SEQUENCE
    return Row(
        step=judged.baseline.part.step if judged.baseline.part.step is not None else judged.candidate.part.step,
        rank=judged.baseline.part.rank if judged.baseline.part.rank is not None else judged.candidate.part.rank,
        stage=judged.baseline.part.stage,
        order=line,
        name=name,
        call=str(dump.cell("call", at)),
        slot=str(dump.cell("slot", at)),
        phase=str(dump.call_cell("phase", call)),
        kind=aspect_of(judged, line),
        metrics=_metrics(judged, line),
        evidence=int(judged.cell("evidence", line)),
        module=module_of(dump, call),
        how=how,
        partner=None if other == name else other,
        result=(judged.cell("result", line) or None) if "result" in judged.rows else None,
    )


def module_of(dump: Dump, call: int) -> str | None:
    """Return the path of the module that a call is or stands in, None where construct.json does not say."""
    while call >= 0:
        path = dump.call_cell("module", call)
        if path:
            return str(path)
        call = int(dump.call_cell("parent", call))
    return None


def side_of(judged: Judged, line: int) -> tuple[Dump, int]:
    """Return the dump and row position that speak for a line: the baseline's where it has the row."""
    b, c = int(judged.cell("baseline", line)), int(judged.cell("candidate", line))
    return (judged.baseline, b) if b >= 0 else (judged.candidate, c)


def call_at(judged: Judged, line: int) -> tuple[Dump, int]:
    """Return the dump and the position in its `calls` of the call that a line belongs to."""
    dump, at = side_of(judged, line)
    return dump, dump.cell.code("call", at)


def is_paired(judged: Judged, line: int) -> bool:
    """Tell whether both sides have the row of a line."""
    return int(judged.cell("baseline", line)) >= 0 and int(judged.cell("candidate", line)) >= 0


def is_beyond(judged: Judged, line: int) -> bool:
    """Tell whether a one-sided line stands behind the place beyond which too little matches to compare."""
    stopped = judged.pairing.stopped
    if stopped is None:
        return False
    call = judged.pairing.calls.iloc[int(judged.cell("call", line))]
    return any(position >= first for position, first in zip(call[["baseline", "candidate"]], stopped, strict=True))


def aspect_of(judged: Judged, line: int) -> str:
    """Name what differs in a line, the most telling aspect first."""
    state, aspects = int(judged.cell("state", line)), int(judged.cell("aspects", line))
    if state in (BASELINE_ONLY, CANDIDATE_ONLY):
        return "structure"
    if state in _UNDIFFERENT:
        return _UNDIFFERENT[state]
    for bit, name in ((SHAPE, "shape"), (ARGUMENT, "argument")):
        if aspects & bit:
            return name
    if aspects & VALUE:
        return "non-finite" if int(judged.cell("nonfinite", line)) in (1, 2) else "value"
    return "dtype" if aspects & DTYPE else "requires_grad" if aspects & GRAD else "value"


def texts_of(judged: Judged, line: int) -> tuple[str, str]:
    """What the two sides hold of the aspect that differs, as text."""
    column = {"shape": "shape", "dtype": "dtype", "requires_grad": "requires_grad"}.get(
        aspect_of(judged, line), "value"
    )
    texts = []
    for dump, side in ((judged.baseline, "baseline"), (judged.candidate, "candidate")):
        at = int(judged.cell(side, line))
        if column == "requires_grad":
            texts.append(str(dump.cell("requires_grad", at) == 1))
        elif column == "value" and dump.cell("tensor", at):
            texts.append(f"a tensor {dump.cell('shape', at)} {dump.cell('dtype', at)}")
        else:
            texts.append(str(dump.cell(column, at)))
    return texts[0], texts[1]


def _metrics(judged: Judged, line: int) -> dict[str, Any] | None:
    """Return DESIGN's metrics of a line: from its tensors, else from statistics, else the two texts; None one-sided."""
    if int(judged.cell("state", line)) in (BASELINE_ONLY, CANDIDATE_ONLY):
        return None
    empty = dict.fromkeys(("mismatched", "elements", "index", "baseline", "candidate"))
    numbers = {name: float(judged.cell(name, line)) for name in ("max_abs", "max_rel", "cosine", "max_ulp")}
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
    b, c = int(judged.cell("baseline", line)), int(judged.cell("candidate", line))
    pairs = [(float(judged.baseline.cell(name, b)), float(judged.candidate.cell(name, c))) for name in STATISTICS]
    unlike = [(b, c) for b, c in pairs if b != c and not (math.isnan(b) and math.isnan(c))]
    if not unlike:
        return None, None
    return max(unlike[:3], key=lambda pair: math.inf if math.isnan(pair[0] - pair[1]) else abs(pair[0] - pair[1]))
