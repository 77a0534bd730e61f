"""A survey of NaN and Inf as a JSON document: the contract `precdiag.nan/1` of the README."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precdiag.document import plain, row_document
from precdiag.inspection import PartSurvey
from precdiag.origin import Origin
from precdiag.survey import Survey


def survey_document(survey: Survey) -> dict[str, Any]:
    """Return the document of a survey: plain values, NaN and Infinity as strings."""
    document: dict[str, Any] = plain(
        {
            "schema": "precdiag.nan/1",
            "verdict": survey.verdict,
            "origin": None if survey.origin is None else origin_document(survey.origin),
            "events": [{**row_document(event.row), "what": event.what} for event in survey.events],
            "excluded": [
                {"step": each.row.step, "rank": each.row.rank, "name": each.row.name, "why": each.why}
                for each in survey.excluded
            ],
            "coverage": {**asdict(survey.coverage), "by_rank": [_by_rank(part) for part in survey.parts]},
            "notes": list(survey.notes),
        }
    )
    return document


def origin_document(origin: Origin) -> dict[str, Any]:
    """Return the document of an origin."""
    return {
        **row_document(origin.row),
        "kind": origin.kind,
        "value": origin.value,
        "module": origin.row.module,
        "source": None if origin.source is None else asdict(origin.source),
        "stack": list(origin.stack),
        "why": origin.why,
        "suspects": list(origin.suspects),
        "also": [{"step": row.step, "rank": row.rank, "name": row.name} for row in origin.also],
    }


def _by_rank(part: PartSurvey) -> dict[str, Any]:
    place = {"stage": part.part.stage, "step": part.part.step, "rank": part.part.rank}
    origin = None if part.origin is None else part.origin.row.name
    return place | {"origin": origin} | asdict(part.coverage) | {"error": part.error}
