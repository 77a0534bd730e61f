"""Steps and ranks fold to the lines that matter; what is missing or unreadable has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import forward, tensor, write

from precdiag.cause import Cause
from precdiag.compare import compare
from precdiag.comparison import Comparison, Coverage, PartResult
from precdiag.conclude import conclude
from precdiag.document import comparison_document
from precdiag.evidence import CHECKSUM
from precdiag.finding import Row
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.overview import listed_numbers, overview, shown_numbers
from precdiag.parts import Alone
from precdiag.report import LINES_SHOWN, comparison_text


def part(step: int, rank: int, first: str | None = None, error: str | None = None, **more: Any) -> PartResult:
    """One step and rank, made without a dump: `first` is the row that differs first."""
    cause = None
    if first is not None:
        row = Row(step, rank, "", 3, first, first, "output.0", "forward", "introduced", None, CHECKSUM)
        cause = Cause(row, None, (), "", "")
    place = Part(Path("x"), step=step, rank=rank)
    return PartResult(place, place, Coverage(compared=10, equal=10), cause, error=error, **more)


def concluded(*parts: PartResult, alone: tuple[Alone, ...] = ()) -> Comparison:
    return conclude(Path("b"), Path("c"), Policy(), 1000, parts, alone, ())


def lines(comparison: Comparison) -> list[tuple[str, str, str, str | None, bool, int]]:
    return [
        (listed_numbers(o.steps), listed_numbers(o.ranks), o.state, o.first, o.is_cause, o.coverage.compared)
        for o in overview(comparison)
    ]


def test_256_ranks_and_100_steps_fold_to_four_lines() -> None:
    def result(step: int, rank: int) -> PartResult:
        first = None if step < 42 or (step == 42 and rank != 7) else "a" if (step, rank) == (42, 7) else "b"
        return part(step, rank, first)

    comparison = concluded(*(result(step, rank) for step in range(100) for rank in range(256)))
    assert lines(comparison) == [
        ("0-41", "0-255", "equal", None, False, 42 * 256 * 10),
        ("42", "7", "different", "a", True, 10),
        ("42", "0-6,8-255", "equal", None, False, 255 * 10),
        ("43-99", "0-255", "different", "b", False, 57 * 256 * 10),
    ]


def test_differences_that_cannot_be_told_apart_are_all_marked() -> None:
    comparison = concluded(part(0, 0, "a"), part(0, 1), part(0, 2, "a"))
    assert lines(comparison)[0] == ("0", "0,2", "different", "a", True, 20)


def test_what_is_missing_unreadable_or_unknown_is_no_equal_line() -> None:
    alone = (Alone(Part(Path("x"), step=0, rank=3), "baseline"), Alone(Part(Path("x"), step=1, rank=0), "candidate"))
    comparison = concluded(part(0, 0), part(0, 1, error="torn"), part(0, 2, blocking=4), alone=alone)
    assert [line[1:4] for line in lines(comparison)] == [
        ("0", "equal", None),
        ("1", "unreadable", "torn"),
        ("2", "unknown", None),
        ("3", "baseline_only", None),
        ("0", "candidate_only", None),
    ]
    text = comparison_text(comparison)
    assert "baseline only" in text and "torn" in text
    by_rank = comparison_document(comparison)["coverage"]["by_rank"]
    assert [entry["state"] for entry in by_rank] == [line[2] for line in lines(comparison)]


def test_an_unreadable_rank_beside_the_one_that_differs_is_said() -> None:
    comparison = concluded(part(0, 0, error="torn"), part(0, 1, "a"))
    assert comparison.exit_code == 1
    assert "step 0 rank 0 could not be read: the first cause may lie there" in comparison.notes


def test_where_every_rank_differs_elsewhere_the_table_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    comparison = concluded(*(part(0, rank, f"call {rank}") for rank in range(40)))
    text = comparison_text(comparison)
    assert f"{40 - LINES_SHOWN} more lines: by_rank in --format json has them" in " ".join(text.split())


@pytest.mark.parametrize(
    ("numbers", "text"), [((0, 2, 3, 4), "0,2-4"), ((7,), "7"), ((None,), "-"), ((5, 4), "4-5"), ((), "-")]
)
def test_numbers_are_listed_as_the_command_line_takes_them(numbers: tuple[int | None, ...], text: str) -> None:
    assert listed_numbers(numbers) == text


def test_the_table_shows_steps_ranks_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for side in "bc":
        for rank in range(4):
            if (side, rank) != ("c", 3):
                high = 2.0 if (side, rank) == ("c", 1) else 1.0
                write(tmp_path / side / f"step0/rank{rank}", {"Torch.a.0.forward": forward([], [tensor(high=high)])})
    text = comparison_text(compare(tmp_path / "b", tmp_path / "c", Policy()))
    table = text[text.index("steps and ranks") :].splitlines()[1:5]
    assert [line.split() for line in table] == [
        ["step", "rank", "compared", "different", "unknown", "first", "difference"],
        ["→", "0", "1", "1", "1", "0", "Torch.a.0.forward.output.0"],
        ["0", "0,2", "2", "0", "0", "equal"],
        ["0", "3", "0", "0", "0", "baseline", "only"],
    ]


def test_many_scattered_ranks_are_shown_by_the_first_of_them_and_their_number() -> None:
    assert shown_numbers(range(0, 256, 2)) == "0,2,4,6,8,10,12,… (128)"
    assert shown_numbers(range(256)) == "0-255"
