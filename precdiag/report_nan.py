"""Draw a survey of NaN and Inf for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from precdiag.inspection import Event, Excluded, PartSurvey
from precdiag.nonfinite import GENERATED, KILLED, PROPAGATED
from precdiag.origin import Origin
from precdiag.report import place_of, rendered
from precdiag.report_blocks import labelled, plain_table, section, tensor_command
from precdiag.survey import FINITE, NON_FINITE, Survey

# How many events, exclusions and parts the table lists; the JSON has --limit events and all of the others.
EVENTS_SHOWN, EXCLUDED_SHOWN, PARTS_SHOWN = 6, 5, 12

_HEADLINES = {NON_FINITE: ("NON-FINITE", "bold red"), FINITE: ("FINITE", "bold green")}
_SAID = {GENERATED: "generated", PROPAGATED: "passed on", KILLED: "turned finite"}


def survey_text(survey: Survey) -> str:
    """Draw a survey: the origin, how it spread, what is excluded and why, steps and ranks, what this rests on."""
    blocks: list[RenderableType] = [_headline(survey)]
    if survey.origin is not None:
        blocks.append(labelled("origin", _origin_fields(survey.origin)))
        blocks.append(
            section(f"how it spread: {_counted(survey)}", _events(survey.events[:EVENTS_SHOWN], survey.origin))
        )
    elif survey.against_log:
        blocks.append(labelled("the log disagrees", [("loss", survey.against_log)]))
    if survey.excluded:
        blocks.append(section("excluded: no fault", _excluded(survey.excluded)))
    if len(survey.parts) > 1:
        blocks.append(section("steps and ranks", _parts(survey.parts)))
    blocks.append(labelled("what this rests on", _footing(survey)))
    return rendered(Group(*blocks))


def _headline(survey: Survey) -> Text:
    word, style = _HEADLINES.get(survey.verdict, ("NOT READABLE", "bold yellow"))
    text = Text(word, style=style)
    parts = f" ({len(survey.parts)} step and rank folders)" if len(survey.parts) > 1 else ""
    return text.append(f"\n  dump      {survey.path}{parts}", style="dim")


def _origin_fields(origin: Origin) -> list[tuple[str, str]]:
    row = origin.row
    fields = [("row", row.name), ("kind", origin.kind), ("value", origin.value), ("where", place_of(row))]
    fields += [("module", row.module)] if row.module else []
    fields.append(("why", origin.why))
    if origin.source is not None:
        fields.append(("source", str(origin.source)))
    fields += _elements(row.metrics or {})
    if origin.also:
        fields.append(("also", "; ".join(f"rank {other.rank}: {other.name}" for other in origin.also)))
    return [*fields, ("do", origin.next_step)]


def _elements(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    if metrics.get("non_finite") is None:
        return []
    first = "" if metrics["index"] is None else f", the first at {metrics['index']}"
    fields = [("elements", f"{metrics['non_finite']:,} of {metrics['elements']:,}{first}")]
    fields += [("went in", f"{each['name']} = {each['value']:.6g}") for each in metrics["inputs"]]
    return fields


def _counted(survey: Survey) -> str:
    return ", ".join(f"{word} {survey.counts[what]:,}" for what, word in _SAID.items() if survey.counts.get(what))


def _events(events: Sequence[Event], origin: Origin) -> Table:
    table = plain_table("what", "value", "row", wide="row")
    several = len({(event.row.step, event.row.rank) for event in events}) > 1
    for event in events:
        own = event.row == origin.row
        place = f" (step {event.row.step}, rank {event.row.rank})" if several else ""
        table.add_row(event.what, event.row.kind, event.row.name + place, style="bold" if own else "")
    return table


def _excluded(excluded: Sequence[Excluded]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold", ratio=1)
    by_name: dict[tuple[str, str], int] = {}
    for each in excluded:
        key = each.row.name, each.why
        by_name[key] = by_name.get(key, 0) + 1
    for (name, why), count in list(by_name.items())[:EXCLUDED_SHOWN]:
        grid.add_row(f"  {name}", why + (f" ({count} times)" if count > 1 else ""))
    if len(by_name) > EXCLUDED_SHOWN:
        grid.add_row(f"  and {len(by_name) - EXCLUDED_SHOWN} more", "in the JSON")
    return grid


def _parts(parts: Sequence[PartSurvey]) -> Table:
    table = plain_table()
    for heading in ("step", "rank", "rows", "non-finite"):
        table.add_column(heading, justify="right")
    table.add_column("origin", overflow="fold", ratio=1)
    telling = [part for part in parts if part.origin is not None or part.error is not None]
    for part in (telling or parts)[:PARTS_SHOWN]:
        place, coverage = part.part, part.coverage
        step = f"{place.stage} {place.step}".strip() if place.step is not None else place.stage or "-"
        rank = "-" if place.rank is None else str(place.rank)
        looked = "some rows unknown" if coverage.unknown else "excluded" if coverage.non_finite else "finite"
        said = part.error or (looked if part.origin is None else part.origin.row.name)
        table.add_row(step, rank, f"{coverage.rows:,}", f"{coverage.non_finite:,}", said)
    rest = len(parts) - min(len(telling or parts), PARTS_SHOWN)
    if rest:
        table.add_row("", "", "", "", f"and {rest} more")
    return table


def _footing(survey: Survey) -> list[tuple[str, str]]:
    coverage = survey.coverage
    counts = f"{coverage.rows:,} rows of tensors: {coverage.finite:,} finite, {coverage.non_finite:,} not"
    rest = ((coverage.masked, "masked by intention"), (coverage.uninitialised, "uninitialised"))
    counts += "".join(f"; {count:,} {what}" for count, what in (*rest, (coverage.unknown, "unknown")) if count)
    fields = [("coverage", counts), *(("note", note) for note in survey.notes if note != survey.against_log)]
    return [*fields, *(("next", step) for step in _next(survey))]


def _next(survey: Survey) -> list[str]:
    """Return the command to type next, where tensors would say more."""
    origin = survey.origin
    if origin is None or not origin.is_output or "elements" in (origin.row.metrics or {}):
        return []
    return [tensor_command(origin.row)]
