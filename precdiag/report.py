"""Draw results for a terminal, and print them; rich is imported by the report modules alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from precdiag.cause import Cause
from precdiag.compare import PARTS
from precdiag.comparison import DIVERGED, NO_DIVERGENCE, Comparison
from precdiag.config import Given
from precdiag.evidence import BYTES, CHECKSUM, NOTHING, STATISTICS, TABLE, XOR
from precdiag.finding import Row
from precdiag.overview import Outcome, overview, shown_numbers
from precdiag.replaced import Replaced, said
from precdiag.report_blocks import field_grid, labelled, section, tensor_command
from precdiag.report_rounding import rounding_block, rounding_next, smallest_band_text

# Work that takes less than this shows no progress bar.
PATIENCE_SECONDS = 1.0
# How many symptoms and hidden rows the table lists; the JSON lists --limit of them.
ROWS_SHOWN = 5
# How many lines the table of steps and ranks has at most, after folding.
LINES_SHOWN = 16

_HEADLINES = {DIVERGED: ("DIVERGED", "bold red"), NO_DIVERGENCE: ("NO DIVERGENCE", "bold green")}
_STRENGTH = {
    BYTES: "bytes: tensors compared element for element",
    CHECKSUM: "checksum (CRC-32): equal checksums stand for equal bytes",
    STATISTICS: "statistics: equal statistics are not proof; collect md5 or tensor to be sure",
    TABLE: "table: what msprobe printed, to 12 decimals; compare the dumps themselves to be sure",
    XOR: "xor: blind to constants and to order; collect md5 or tensor to be sure",
    NOTHING: "none: no tensor was compared",
}


def show(text: str) -> None:
    """Write a result to stdout. A reader that stopped reading (`| head`) changes nothing about the exit status."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_text(document: dict[str, Any]) -> str:
    """Return a document as indented JSON that any parser takes."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def config_text(rows: Iterable[Given]) -> str:
    """Draw every setting with where it came from."""
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "value", "from"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row.key, "-" if row.value is None else str(row.value), row.origin)
    return rendered(table)


def comparison_text(comparison: Comparison) -> str:
    """Draw a comparison: the first cause, the rows around it, what the band hides, symptoms, coverage, what next."""
    blocks: list[RenderableType] = [_headline(comparison)]
    if comparison.cross_device and comparison.rounding is not None:
        blocks += rounding_block(comparison, comparison.rounding)
    if comparison.cause is not None:
        blocks += [labelled("first cause", _cause_fields(comparison.cause))]
        blocks += [section("rows around it", _rows(comparison.around, marked=comparison.cause.row))]
    if comparison.first_outside is not None:
        blocks += [labelled("first outside the band: a symptom", _row_fields(comparison.first_outside))]
    hidden = [row for part in comparison.parts for row in part.hidden]
    if hidden:
        title = f"hidden by the band: {sum(part.hidden_count for part in comparison.parts)} rows"
        blocks += [section(title, _rows(hidden[:ROWS_SHOWN]))]
    if comparison.symptoms:
        more = comparison.symptom_count
        blocks += [section(f"symptoms: {more} later rows differ", _rows(comparison.symptoms[:ROWS_SHOWN]))]
    regions = [region for part in comparison.parts for region in part.replaced]
    if regions:
        title = f"replaced: {len(regions)} runs of calls stand against others"
        blocks += [section(title, _replaced(sorted(regions, key=lambda region: region.explained)[:ROWS_SHOWN]))]
    if len(comparison.parts) + len(comparison.one_sided) > 1:
        blocks += [section("steps and ranks", _steps_and_ranks(overview(comparison)))]
    blocks += [section("what this rests on", _footing(comparison))]
    return rendered(Group(*blocks))


def shown_rows(comparison: Comparison) -> tuple[Row, ...]:
    """Return the rows that the table of a comparison shows, each once."""
    rows = [] if comparison.cause is None else [comparison.cause.row, *comparison.around]
    rows += [] if comparison.first_outside is None else [comparison.first_outside]
    rows += [row for part in comparison.parts for row in part.hidden][:ROWS_SHOWN]
    return tuple(
        {(row.stage, row.step, row.rank, row.order): row for row in (*rows, *comparison.symptoms[:ROWS_SHOWN])}.values()
    )


@contextlib.contextmanager
def progress_on_stderr() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (label, done, total) that draws a bar on stderr, on a terminal and after a second of work."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    began = time.monotonic()
    tasks: dict[str, Any] = {}

    def update(label: str, done: int, total: int) -> None:
        if time.monotonic() - began < PATIENCE_SECONDS:
            return
        if not tasks:
            bar.start()
        if label not in tasks:
            tasks[label] = bar.add_task(label, total=total, unit="" if label == PARTS else "tensors")
        bar.update(tasks[label], completed=done)

    try:
        yield update
    finally:
        bar.stop()


def rendered(content: RenderableType) -> str:
    """Render for stdout: its width (80 where it is no terminal), coloured only on a terminal without NO_COLOR."""
    terminal = sys.stdout.isatty()
    target = io.StringIO()
    console = Console(file=target, force_terminal=terminal, highlight=False, soft_wrap=False, markup=False, emoji=False)
    console.print(content)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def _headline(comparison: Comparison) -> Text:
    word, style = _HEADLINES.get(comparison.verdict, ("NOT COMPARABLE", "bold yellow"))
    text = Text(word, style=style)
    text.append(f"  {_policy(comparison)}", style="default")
    sides = [("baseline", comparison.baseline), ("candidate", comparison.candidate)]
    if comparison.of_tables:
        sides = [("table", comparison.baseline)]
    for side, path in sides:
        folders = [part.candidate.folder if side == "candidate" else part.baseline.folder for part in comparison.parts]
        kind = "tables" if comparison.of_tables else "step and rank folders"
        used = str(folders[0]) if len(folders) == 1 else f"{path} ({len(folders)} {kind})"
        text.append(f"\n  {side:<10}{used}", style="dim")
    return text


def _policy(comparison: Comparison) -> str:
    policy = comparison.policy
    if policy.mode == "bitwise":
        return "bitwise"
    bounds = (("max abs", policy.max_abs), ("max rel", policy.max_rel), ("max ulp", policy.max_ulp))
    said = [f"{name} <= {bound:g}" for name, bound in bounds if bound is not None]
    said += [f"cosine >= {policy.cosine_min:g}"] if policy.cosine_min is not None else []
    said += [f"error <= {policy.scrutiny.k:g} x the noise of {policy.band_from}"] if policy.band_from else []
    return "within the band " + ", ".join(said)


def _cause_fields(cause: Cause) -> list[tuple[str, str]]:
    row = cause.row
    fields = [("row", row.name), ("kind", row.kind), ("where", place_of(row)), ("why", cause.why)]
    if row.partner is not None:
        fields.insert(1, ("against", f"{row.partner}, paired by {row.how}"))
    if row.module:
        fields.insert(-1, ("module", row.module))
    if cause.source is not None:
        fields.append(("source", str(cause.source)))
    fields += _difference(row)
    if row.result:
        fields.append(("msprobe", f"{row.result} (its own Result, for reference)"))
    if cause.also:
        fields.append(("also", "; ".join(f"rank {other.rank}: {other.name}" for other in cause.also)))
    if cause.behind is not None:
        fields.append(("behind it", f"{cause.behind.name} ({cause.behind.kind})"))
    return [*fields, ("do", cause.next_step)]


def _row_fields(row: Row) -> list[tuple[str, str]]:
    return [("row", row.name), ("differs in", row.kind), ("where", place_of(row)), *_difference(row)]


def place_of(row: Row) -> str:
    """Say where a row stands: stage, step, rank, order."""
    parts = [f"stage {row.stage}"] if row.stage else []
    parts += [f"step {row.step}"] if row.step is not None else []
    parts += [f"rank {row.rank}"] if row.rank is not None else []
    return ", ".join([*parts, f"row {row.order} in the order in which work began"])


def _difference(row: Row) -> list[tuple[str, str]]:
    metrics = row.metrics or {}
    names = (("max abs", "max_abs"), ("max rel", "max_rel"), ("max ulp", "max_ulp"), ("cosine", "cosine"))
    numbers = [f"{label} {metrics[key]:.6g}" for label, key in names if metrics.get(key) is not None]
    if metrics.get("mismatched") is None and not any(metrics.get(key) for _, key in names):
        numbers = []  # statistics that agree say nothing of what a checksum, a shape or an argument shows
    if metrics.get("mismatched") is not None:
        numbers.append(f"{metrics['mismatched']:,} of {metrics['elements']:,} elements")
    fields = [("differs by", ", ".join(numbers))] if numbers else []
    if metrics.get("baseline") is not None or metrics.get("candidate") is not None:
        where = f" at {list(metrics['index'])}" if metrics.get("index") is not None else ""
        fields.append(("values", f"{metrics['baseline']} → {metrics['candidate']}{where}"))
    return fields


def _rows(rows: Sequence[Row], marked: Row | None = None) -> Table:
    """Draw rows one a line; with msprobe's own word where it was asked."""
    asked = any(row.result for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("")
    table.add_column("row", overflow="fold", ratio=1)
    for heading in ("what", "max abs", "max rel", *(["msprobe"] if asked else [])):
        table.add_column(heading, justify="right" if heading.startswith("max") else "left", no_wrap=True)
    for row in rows:
        metrics = row.metrics or {}
        own = marked is not None and (row.order, row.rank, row.step) == (marked.order, marked.rank, marked.step)
        numbers = ["" if row.kind == "equal" else _number(metrics.get(key)) for key in ("max_abs", "max_rel")]
        words = [row.result or ""] if asked else []
        table.add_row("→" if own else "", _named(row), row.kind, *numbers, *words, style="bold" if own else "")
    return table


def _replaced(regions: Sequence[Replaced]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("what", no_wrap=True)
    for heading in ("baseline", "candidate"):
        table.add_column(heading, overflow="fold", ratio=1)
    table.add_column("results", justify="left", no_wrap=True)
    for region in regions:
        rounded = "rounding" if region.explained else "DIFFERENT"
        results = rounded if region.boundary == "different" else region.boundary
        table.add_row(region.name or "-", said(region.baseline), said(region.candidate), results)
    return table


def _named(row: Row) -> str:
    """A row's name, and below it the candidate's where the two were not paired by name."""
    return row.name if row.partner is None else f"{row.name}\n= {row.partner} (by {row.how})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _steps_and_ranks(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("")
    table.add_column("step", overflow="fold")
    table.add_column("rank", overflow="fold", max_width=14)
    for heading in ("compared", "different", "unknown"):
        table.add_column(heading, justify="right")
    table.add_column("first difference", overflow="fold", ratio=1)
    for outcome in outcomes[:LINES_SHOWN]:
        step = f"{outcome.stage} {shown_numbers(outcome.steps)}".strip()
        counts = (outcome.coverage.compared, outcome.coverage.different, outcome.coverage.unknown)
        first = outcome.first or outcome.state.replace("_only", " only")
        marks = ("→" if outcome.is_cause else "", step, shown_numbers(outcome.ranks))
        table.add_row(*marks, *map(str, counts), first, style="bold" if outcome.is_cause else "")
    if (more := len(outcomes) - LINES_SHOWN) > 0:
        table.add_row("", "…", "", "", "", "", f"{more} more lines: by_rank in --format json has them")
    return table


def _footing(comparison: Comparison) -> RenderableType:
    coverage = comparison.coverage
    counts = f"{coverage.compared:,} rows compared: {coverage.equal:,} equal, {coverage.different:,} different"
    rest = (
        (coverage.unknown, "unknown"),
        (coverage.uninitialised, "uninitialised"),
        (coverage.baseline_only, "only in the baseline"),
        (coverage.candidate_only, "only in the candidate"),
        (coverage.filtered, "filtered"),
    )
    counts += "".join(f"; {count:,} {what}" for count, what in rest if count)
    fields = [("coverage", counts), ("evidence", _STRENGTH[comparison.evidence])]
    fields += [("band", each) for each in smallest_band_text(comparison.smallest_band)]
    fields += [("note", note) for note in comparison.notes]
    fields += [("msprobe", _reference(comparison))]
    fields += [("next", step) for step in _next(comparison)]
    return field_grid(fields)


def _reference(comparison: Comparison) -> str:
    if comparison.reference is None and comparison.evidence == TABLE:
        return "its Result, as its table has it, is for reference and decides nothing"
    return comparison.reference or "its Result is not shown (--reference asks for it): it decides nothing here"


def _next(comparison: Comparison) -> list[str]:
    """Return the command to type next, given what was found and how strong the evidence is."""
    if comparison.of_tables:
        return ["precdiag compare BASELINE CANDIDATE with the dumps that msprobe compared: they show more"]
    both = f"{comparison.baseline} {comparison.candidate}"
    if comparison.proposal is not None:
        return [f"precdiag compare {both} {comparison.proposal}"]
    if comparison.one_sided:
        places = [part.place for part in comparison.parts]
        steps = ",".join(dict.fromkeys(str(place.step) for place in places if place.step is not None))
        return [f"precdiag compare {both} --step {steps}"] if steps else []
    if following := rounding_next(comparison):
        return following
    if comparison.cause is None or comparison.evidence >= BYTES:
        return []
    return [tensor_command(comparison.cause.row)]
