"""The blocks that every report is drawn from: a titled section, a grid of named values."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from precdiag.finding import Row


def section(title: str, content: RenderableType) -> Group:
    """Draw a title in a rule over what belongs to it."""
    return Group(Text(""), Rule(Text(title, style="bold"), align="left", style="dim"), content)


def labelled(title: str, fields: Sequence[tuple[str, str]]) -> Group:
    """Draw a section of named values, one a line."""
    return section(title, field_grid(fields))


def field_grid(fields: Sequence[tuple[str, str]]) -> Table:
    """Draw named values one below the other; the one named `row` is bold."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True, min_width=10)
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(f"  {name}", Text(value, style="bold" if name == "row" else ""))
    return grid


def plain_table(*headings: str, right: Sequence[str] = (), wide: str = "") -> Table:
    """Return an empty table without lines; the columns in `right` are numbers, the one named `wide` takes the room."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in headings:
        if heading == wide:
            table.add_column(heading, overflow="fold", ratio=1)
        else:
            table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    return table


def tensor_command(row: Row) -> str:
    """Return the command that collects the tensors of a row's call, for a report to end with."""
    return f"precdiag collect --task tensor --step {row.step or 0} --list {row.call} --out DIR …"
