"""A localization as a JSON document: the contract `precdiag.localize/1` of the README."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precdiag.acceptance import Against
from precdiag.cause import Cause
from precdiag.culprit import Culprit
from precdiag.curves import LossLog
from precdiag.document import beyond_document, cause_document, plain
from precdiag.document_nan import origin_document
from precdiag.localize import Localization
from precdiag.origin import Origin

SCHEMA = "precdiag.localize/1"


def localization_document(found: Localization) -> dict[str, Any]:
    """Return the document of a localization: plain values, NaN and Infinity as strings."""
    curves = found.curves
    against = curves.found.against_baseline
    document = {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "step": found.step,
        "signals": [asdict(signal) for signal in found.signals],
        "curve": asdict(curves.found.curve),
        "against_baseline": None if against is None else _against(against),
        "dump_steps": list(curves.dump_steps),
        "mapping": {"offset": curves.mapping.offset, "basis": curves.mapping.basis},
        "reproduced": None if curves.repeat is None else curves.repeat.same,
        "first_cause": None if found.seen.culprit is None else culprit_document(found.seen.culprit),
        "stages": [{"name": name, "why": why} for name, why in found.stages],
        "next": list(found.next),
        "notes": [*_not_reproduced(found), *found.notes],
    }
    result: dict[str, Any] = plain(document)
    return result


def _not_reproduced(found: Localization) -> list[str]:
    repeat = found.curves.repeat
    return [f"not reproduced: {repeat.said}"] if repeat is not None and repeat.same is False else []


def culprit_document(culprit: Culprit) -> dict[str, Any]:
    """Return the document of the culprit: compare's first_cause, and which command named it."""
    if isinstance(culprit.found, Cause):
        return {**cause_document(culprit.found), "by": culprit.by}
    if isinstance(culprit.found, Origin):
        return {**origin_document(culprit.found), "by": culprit.by}
    return {**beyond_document(culprit.found), "stack": [], "by": culprit.by}


def series_document(logs: dict[str, LossLog]) -> dict[str, Any]:
    """Return every series of each log, for --list-series."""
    sides = {
        side: {"path": log.path, "format": log.format, "series": [_series(log, name) for name in log.series]}
        for side, log in logs.items()
    }
    return {"schema": "precdiag.series/1", **sides}


def _series(log: LossLog, name: str) -> dict[str, Any]:
    steps = log.series[name].steps
    return {"name": name, "points": len(steps), "first_step": int(steps[0]), "last_step": int(steps[-1])}


def _against(against: Against) -> dict[str, Any]:
    document = asdict(against)
    del document["signals"]
    return document
