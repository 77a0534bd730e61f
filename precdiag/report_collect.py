"""Draw a collection, and a doctor's findings, for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from precdiag.collection import Collection, SideResult
from precdiag.doctor import Check
from precdiag.environment import Difference, SwitchRow
from precdiag.report import rendered

# Differences that cannot change numbers are counted beyond this many; collection.json has them all.
PLAIN_DIFFERENCES_SHOWN = 5

_STYLE = {"complete": "green", "ok": "green", "warn": "yellow", "fail": "bold red"}


def collection_text(collection: Collection) -> str:
    """Draw each side's steps, why a side fails, what differs between the sides, and what to type next."""
    blocks: list[RenderableType] = []
    for side in collection.sides:
        blocks += [_side_headline(side), *([_steps(side)] if side.proof.steps else [])]
        if side.proof.reason is not None:
            blocks.append(Text(f"  {side.proof.reason}" + (f"\n  {side.proof.hint}" if side.proof.hint else "")))
        blocks += [Text(f"  {note}", style="dim") for note in side.proof.notes]
    differing = [each for each in collection.differences if each.kind != "switch"]
    if differing:
        blocks += [Text("\ndiffers between the sides", style="bold"), _differences(differing)]
    if collection.switches:
        blocks += [Text("\nnumerical switches", style="bold"), _switches(collection.switches)]
    blocks += [Text(f"\n{line}") for line in (*(f"{c.check}: {c.text}" for c in collection.checks), *collection.notes)]
    if collection.status == 0 and collection.pair:
        blocks.append(Text(f"\nnext: precdiag compare {collection.folder}", style="bold"))
    return rendered(Group(*blocks))


def doctor_text(checks: Sequence[Check]) -> str:
    """Draw one line a check, and what to do under those that are not ok."""
    table = Table.grid(padding=(0, 2))
    for check in checks:
        what = check.found + (f"\n→ {check.do}" if check.do and check.state != "ok" else "")
        table.add_row(Text(check.state, style=_STYLE[check.state]), check.name, Text(what))
    return rendered(table)


def _side_headline(side: SideResult) -> Text:
    word, style = ("verified", "bold green") if side.verified else ("NOT VERIFIED", "bold red")
    text = Text(f"{side.side}: ")
    text.append(word, style=style)
    if side.ended.status:
        text.append(f", status {side.ended.status}" + (f", {side.ended.why}" if side.ended.why else ""))
    return text


def _steps(side: SideResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("  step", "rank", "calls"):
        table.add_column(heading, justify="right")
    table.add_column("state", overflow="fold")
    for step in side.proof.steps:
        state = step.state + (f": {step.why}" if step.why else "")
        number = "-" if step.step is None else str(step.step)
        number += "" if step.iteration is None else f" (iteration {step.iteration})"
        rank = "-" if step.rank is None else str(step.rank)
        table.add_row(number, rank, f"{step.calls:,}", Text(state, style=_STYLE.get(step.state, "red")))
    return table


def _switches(switches: Sequence[SwitchRow]) -> Table:
    """Draw the switches, those that differ first and marked."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("  switch", "baseline", "candidate"):
        table.add_column(heading, overflow="fold")
    for row in switches:
        name = Text(f"{'≠' if row.differs else ' '} {row.name}")
        if row.differs:
            name.append(f"\n    {row.what}", style="not bold")
        table.add_row(name, _text(row.baseline), _text(row.candidate), style="bold" if row.differs else "dim")
    return table


def _differences(differences: Sequence[Difference]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("  what", "baseline", "candidate"):
        table.add_column(heading, overflow="fold", ratio=1)
    plain = [each for each in differences if not each.numbers]
    for each in [each for each in differences if each.numbers] + plain[:PLAIN_DIFFERENCES_SHOWN]:
        style = "bold" if each.numbers else "dim"
        table.add_row(f"  {each.label}", _text(each.baseline), _text(each.candidate), style=style)
    if len(plain) > PLAIN_DIFFERENCES_SHOWN:
        table.add_row(f"  and {len(plain) - PLAIN_DIFFERENCES_SHOWN} more, in collection.json", "", "", style="dim")
    return table


def _text(value: object) -> str:
    if value is None:
        return "-"
    return shlex.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
