"""A comparison as a JSON document: the contract `precdiag.compare/1` of the README."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from precdiag.alignment import Alignment
from precdiag.cause import Cause
from precdiag.comparison import Comparison
from precdiag.evidence import BYTES, CHECKSUM, NOTHING, STATISTICS, TABLE, XOR
from precdiag.finding import Row
from precdiag.growth import Jump
from precdiag.judge import Policy
from precdiag.layout import part_order
from precdiag.overview import DIFFERENT, missing, outcome_of
from precdiag.replaced import Replaced
from precdiag.rounding import Beyond

EVIDENCE_NAMES = {
    NOTHING: None,
    TABLE: "table",
    XOR: "xor",
    STATISTICS: "statistics",
    CHECKSUM: "checksum",
    BYTES: "bytes",
}


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the document of a comparison: plain values, NaN and Infinity as strings."""
    parts = comparison.parts
    band = None
    if comparison.policy.mode == "band":
        outside = comparison.first_outside
        band = {
            "first_outside": None if outside is None else row_document(outside),
            "hidden": [row_document(row) for part in parts for row in part.hidden],
        }
    rounding = comparison.rounding
    symptoms = [row_document(row) for row in comparison.symptoms]
    document = {
        "schema": "precdiag.compare/1",
        "verdict": comparison.verdict,
        "evidence": EVIDENCE_NAMES[comparison.evidence],
        "policy": _policy(comparison.policy),
        "baseline": {"path": str(comparison.baseline), "used": [str(part.baseline.folder) for part in parts]},
        "candidate": {"path": str(comparison.candidate), "used": [str(part.candidate.folder) for part in parts]},
        "first_cause": None if comparison.cause is None else cause_document(comparison.cause),
        "band": band,
        "symptoms": {"count": comparison.symptom_count, "rows": symptoms},
        "coverage": {**asdict(comparison.coverage), "by_rank": _by_rank(comparison)},
        "alignment": _alignment(comparison.alignment),
        "beyond_rounding": None if rounding is None or rounding.beyond is None else beyond_document(rounding.beyond),
        "jumps": [] if rounding is None else [_jump(jump) for jump in rounding.jumps],
        "profile": [] if rounding is None else [asdict(level) for level in rounding.profile],
        "smallest_band": asdict(comparison.smallest_band),
        "replaced": [_replaced(region) for part in parts for region in part.replaced],
        "notes": [*comparison.notes, *([] if comparison.reference is None else [f"msprobe: {comparison.reference}"])],
    }
    contract: dict[str, Any] = plain(document)
    return contract


def cause_document(cause: Cause) -> dict[str, Any]:
    """Return the document of a first cause."""
    return {
        **row_document(cause.row),
        "module": cause.row.module,
        "source": None if cause.source is None else asdict(cause.source),
        "stack": list(cause.stack),
        "why": cause.why,
        "msprobe_result": cause.row.result,
        "also": [{"step": row.step, "rank": row.rank, "name": row.name} for row in cause.also],
    }


def row_document(row: Row) -> dict[str, Any]:
    """Return the document of one row: first_cause's keys from step to phase, kind and metrics."""
    keys = ("step", "rank", "stage", "order", "name", "call", "slot", "phase", "kind", "metrics", "how", "partner")
    return {key: getattr(row, key) for key in keys}


def _alignment(alignment: Alignment) -> dict[str, Any]:
    stopped = (
        None if alignment.stopped is None else dict(zip(("baseline", "candidate"), alignment.stopped, strict=True))
    )
    return {"calls": alignment.counts, "pairs": [asdict(pair) for pair in alignment.pairs], "stopped": stopped}


def _replaced(region: Replaced) -> dict[str, Any]:
    """A replaced region: the calls inside it, whether its results agree, and their errors as at `_beyond`."""
    keys = ("name", "baseline", "candidate", "boundary", "explained", "e_in", "e_out", "note")
    return {key: getattr(region, key) for key in keys}


def _by_rank(comparison: Comparison) -> list[dict[str, Any]]:
    """One entry a step and rank, those that one side alone has included."""
    compared = [(part.place, outcome_of(part), part.error) for part in comparison.parts]
    alone = [(each.part, missing(each), None) for each in comparison.one_sided]
    entries = sorted((*compared, *alone), key=lambda entry: part_order(entry[0]))
    return [
        {"stage": place.stage, "step": place.step, "rank": place.rank, "state": outcome.state}
        | {"first_difference": outcome.first if outcome.state == DIFFERENT else None}
        | asdict(outcome.coverage)
        | {"error": error}
        for place, outcome, error in entries
    ]


def _policy(policy: Policy) -> dict[str, Any]:
    bounds = {key: value for key, value in asdict(policy).items() if key not in ("scrutiny", "band_from")}
    band_from = None if policy.band_from is None else str(policy.band_from)
    return {"mode": policy.mode, **bounds, "band_from": band_from, "k": policy.scrutiny.k if band_from else None}


def beyond_document(found: Beyond) -> dict[str, Any]:
    """The first row beyond rounding: errors are relative to the baseline's norm, u is the roundoff they compare to."""
    return {
        **row_document(found.row),
        "module": found.row.module,
        "source": None if found.source is None else asdict(found.source),
        **{key: getattr(found, key) for key in ("why", "e_in", "e_out", "u", "basis")},
        "arbiter": None if found.ruling is None else asdict(found.ruling),
    }


def _jump(jump: Jump) -> dict[str, Any]:
    ruling = None if jump.ruling is None else asdict(jump.ruling)
    return {**row_document(jump.row), "e_in": jump.e_in, "e_out": jump.e_out, "u": jump.u, "arbiter": ruling}


def plain(value: Any) -> Any:
    """Replace what JSON has no form for: non-finite floats and complex numbers become strings."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, complex) else value
