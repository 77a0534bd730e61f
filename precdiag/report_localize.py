"""Draw a localization for a terminal: the verdict, the chain to the source line, the numbers, what to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from precdiag.culprit import Culprit
from precdiag.curves import LossLog
from precdiag.localize import EXIT, Localization
from precdiag.report import rendered
from precdiag.report_blocks import field_grid, labelled, plain_table, section
from precdiag.rounding import Beyond

SIGNALS_SHOWN = 8
_METRICS = ("max_abs", "max_rel", "max_ulp")
HEADLINES = {
    "nan": "NAN",
    "spike": "SPIKE",
    "non-convergence": "NO CONVERGENCE",
    "broken-grad": "BROKEN GRADIENT",
    "diverged": "DIVERGED",
    "healthy": "HEALTHY",
    "too-short": "TOO SHORT",
    "no-data": "NO DATA",
    "incomplete": "INCOMPLETE",
}


def localization_text(found: Localization, plot: str = "") -> str:
    """Draw a localization. Commands stand at the end, unfolded, ready to be copied."""
    blocks: list[RenderableType] = [_headline(found), _files(found)]
    repeat = found.curves.repeat
    if repeat is not None and repeat.same is False:
        blocks.append(Text(f"\nNOT REPRODUCED  {repeat.said}", style="bold yellow"))
    if found.signals:
        blocks.append(section("signals, the first to move above", _signals(found)))
    if found.seen.culprit is not None:
        blocks.append(labelled("from the symptom to the line", _chain(found, found.seen.culprit)))
    blocks.append(labelled("what this rests on", _footing(found)))
    text = rendered(Group(*blocks))
    if plot:
        text += "\n" + plot
    if found.next:
        text += "\nnext\n" + "".join(f"  {command}\n" for command in found.next)
    return text


def series_text(logs: Mapping[str, LossLog]) -> str:
    """Draw every series of each log, for --list-series."""
    table = plain_table()
    table.add_column("series", overflow="fold")
    for heading in ("points", "first step", "last step", "first", "last"):
        table.add_column(heading, justify="right")
    blocks: list[RenderableType] = []
    for side, log in logs.items():
        blocks.append(Text(f"{side}: {log.path} ({log.format or 'no known format'})"))
        blocks += [Text(f"  {note}", style="dim") for note in log.notes]
        for name, each in log.series.items():
            ends = (f"{each.values[0]:.6g}", f"{each.values[-1]:.6g}")
            table.add_row(name, f"{len(each.steps):,}", str(each.steps[0]), str(each.steps[-1]), *ends)
        blocks.append(table)
    return rendered(Group(*blocks))


def _headline(found: Localization) -> Text:
    style = {0: "bold green", 1: "bold red"}.get(found.exit_code, "bold yellow")
    text = Text(HEADLINES[found.verdict], style=style)
    where = "" if found.step is None else f"  from step {found.step} of the log"
    text.append(where, style="default")
    return text


def _files(found: Localization) -> Table:
    curve, baseline = found.curves.found.curve, found.curves.baseline
    shape = f"{curve.points:,} points"
    if curve.first_step is not None:
        shape = f"{curve.series}, {shape}, steps {curve.first_step} to {curve.last_step}"
    files = [("candidate", f"{curve.path} ({curve.format or 'no known format'}: {shape})")]
    if baseline is not None:
        files.append(("baseline", f"{baseline.path} ({baseline.format or 'no known format'})"))
    return field_grid(files)


def _signals(found: Localization) -> Table:
    table = plain_table()
    table.add_column("step", justify="right")
    table.add_column("series", overflow="fold", max_width=24)
    table.add_column("what", overflow="fold", ratio=1)
    for each in found.signals[:SIGNALS_SHOWN]:
        own = each.step == found.step and found.verdict not in EXIT
        table.add_row(_text(each.step), each.series, each.what, style="bold" if own else "")
    if len(found.signals) > SIGNALS_SHOWN:
        table.add_row("", "", f"and {len(found.signals) - SIGNALS_SHOWN} more, in the JSON")
    return table


def _chain(found: Localization, culprit: Culprit) -> list[tuple[str, str]]:
    row, source = culprit.row, culprit.source
    symptom = next((each for each in found.signals if each.step == found.step), None)
    chain = [] if symptom is None else [("symptom", f"{symptom.series}: {symptom.what}")]
    if row.step is not None:
        chain.append(("step", f"dump step {row.step}, iteration {found.curves.mapping.iteration(row.step)} of the log"))
    chain += [("rank", str(row.rank))] if row.rank is not None else []
    chain += [("module", row.module)] if row.module is not None else []
    chain += [("call", row.name), ("kind", culprit.kind), ("why", culprit.why)]
    if source is not None:
        chain.append(("source", str(source)))
    apart = [f"{name.replace('_', ' ')} {value:.6g}" for name in _METRICS if (value := (row.metrics or {}).get(name))]
    chain += [("differs by", ", ".join(apart))] if apart else []
    also = () if isinstance(culprit.found, Beyond) else culprit.found.also
    chain += [("also", ", ".join(f"{each.name} on rank {each.rank}" for each in also))] if also else []
    return [*chain, ("do", culprit.next_step)]


def _footing(found: Localization) -> list[tuple[str, str]]:
    against = found.curves.found.against_baseline
    lines = []
    if against is not None:
        word = {True: "accepted", False: "not accepted", None: "not decided"}[against.accepted]
        lines.append(("acceptance", f"{word}: {against.why}"))
        lines.append(("compared", _compared(against.steps_compared, against.first_different, against.first_outside)))
    if found.stages:
        lines.append(("collected", "; ".join(f"{name}: {why}" for name, why in found.stages)))
    if found.step is not None:
        lines.append(("look at", f"{_steps(found.curves.choice.steps)}{found.curves.choice.why}"))
    return lines + [("note", note) for note in found.notes]


def _compared(steps: int, different: int | None, outside: int | None) -> str:
    first = "equal throughout" if different is None else f"first differs at {different}"
    return f"{steps:,} common steps, {first}" + ("" if outside is None else f", outside the bound at {outside}")


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    named = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    return f"step{'s' if len(steps) > 1 else ''} {named}: "


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)
