"""The pipeline of `precdiag compare TABLE…`: msprobe's result tables → one Comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from precdiag.comparison import Comparison, PartResult
from precdiag.conclude import behind, conclude, conclude_part
from precdiag.errors import UnreadableError, UsageError
from precdiag.judge import Policy
from precdiag.judge_table import judge_table, limits_of
from precdiag.parts import Selection, listed
from precdiag.table import read_table
from precdiag.tablefile import TableFile, find_tables


def compare_tables(
    paths: Sequence[Path], policy: Policy, selection: Selection | None = None, limit: int = 1000
) -> Comparison:
    """Judge the result tables that the paths name, one a step and rank, and name the first cause.

    Both sides of the comparison are the table: Bench the baseline, NPU the candidate. Raises UnreadableError where
    there is no table, UsageError where the selection or the band asks for what is not there.
    """
    results: list[PartResult] = []
    for file in _selected(find_tables(paths), selection):
        results.append(behind(results, _result(file, policy, limit)))
    where = paths[0] if len(paths) == 1 else results[0].baseline.folder
    return replace(conclude(where, where, policy, limit, tuple(results), (), ()), of_tables=True)


def _result(file: TableFile, policy: Policy, limit: int) -> PartResult:
    try:
        table = read_table(file)
    except UnreadableError as error:
        return PartResult(file.part, file.part, error=str(error))
    judged = judge_table(table, policy)
    judged = replace(judged, notes=(*judged.notes, *limits_of(table)))
    return conclude_part(judged, policy, limit)


def _selected(files: tuple[TableFile, ...], selection: Selection | None) -> list[TableFile]:
    chosen = [file for file in files if selection is None or selection.admits(file.part)]
    if not chosen:
        there = listed(file.part.label for file in files)
        raise UsageError("none of the steps and ranks asked for is in these tables", hint=f"they hold {there}")
    return chosen
