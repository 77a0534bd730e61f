"""msprobe's own Result beside precdiag's verdict: the same word as in its full table, and no say in anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tables
from handmade import forward, tensor, write
from standin import StandIn

from precdiag import reference
from precdiag.cli import app
from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.document import comparison_document
from precdiag.errors import PrecdiagError
from precdiag.finding import Row
from precdiag.installed import Msprobe
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.parts import Selection
from precdiag.reference import trim, with_reference
from precdiag.report import comparison_text, shown_rows
from precdiag.table import read_table
from precdiag.tablefile import find_tables

Real = Callable[[str], Path]

NAME = "Functional.linear.1.forward.output.0"
GOOD = {"Functional.linear.0.forward": forward([], [tensor()]), "Functional.linear.1.forward": forward([], [tensor()])}
BAD = {**GOOD, "Functional.linear.1.forward": forward([], [tensor(high=2.0)])}


def pair_of(folder: Path, *ranks: int) -> Comparison:
    for side, data in (("b", GOOD), ("c", BAD)):
        for rank in ranks or (0,):
            write(folder / side / f"step0/rank{rank}", data)
    return compare(folder / "b", folder / "c", Policy())


def word(result: str) -> tables.Line:
    return {**tables.statistics(NAME), "Result": result}


# -- the real msprobe


@pytest.mark.parametrize(
    ("pair", "table"),
    [("dumps/26.2.0/tensor-mix", "26.2.0/tensor-mix/A_vs_C"), ("falsepass/tensor", "falsepass/tensor")],
)
def test_on_a_trimmed_pair_msprobe_says_what_it_says_in_its_full_table(real: Real, pair: str, table: str) -> None:
    name, _, inside = pair.partition("/")
    folder = real(name) / inside
    found = compare(folder / "A", folder / "C", Policy(), Selection(steps=(0,)))
    asked = with_reference(found, [*shown_rows(found), *found.symptoms])
    (file,) = find_tables([real("tables") / table])
    full = read_table(file)
    results = full.results()
    assert results is not None
    words = dict(zip(full.cells["npu name"].astype(str), results, strict=True))
    rows = [row for row in (*asked.around, *asked.symptoms) if row.how]
    assert {row.name: row.result for row in rows} == {row.name: words[row.name] for row in rows}
    assert len(rows) > 10 and asked.cause is not None and asked.cause.row.result == "pass"
    assert "for reference" in (asked.reference or "")


# -- it decides nothing


def without(comparison: Comparison) -> dict[str, object]:
    document = comparison_document(comparison)
    document["first_cause"].pop("msprobe_result")
    document["notes"] = [note for note in document["notes"] if not note.startswith("msprobe: ")]
    return document


@pytest.mark.parametrize("result", ["pass", "warning", "error", "Yes", "No", "Different"])
def test_whatever_it_says_nothing_moves(tmp_path: Path, result: str) -> None:
    found = pair_of(tmp_path)
    stand_in = StandIn(tmp_path).leaves(_rank0=[word(result)])
    asked = with_reference(found, shown_rows(found), lambda: stand_in)
    assert asked.cause is not None and asked.cause.row.result == result
    assert comparison_document(asked)["first_cause"]["msprobe_result"] == result
    assert without(asked) == without(found)
    assert (asked.verdict, asked.exit_code) == (found.verdict, found.exit_code) == ("diverged", 1)
    drawn = comparison_text(asked)
    assert f"{result} (its own Result, for reference)" in drawn


def test_a_result_in_a_table_moves_nothing_either(tmp_path: Path) -> None:
    from precdiag.compare_tables import compare_tables

    bad = tables.statistics(NAME, (2.0, -1.0, 0.0, 2.0), (1.0, -1.0, 0.0, 2.0))
    documents = []
    for result in ("pass", "error"):
        path = tables.write_csv(tmp_path / "compare_result_1.csv", [{**bad, "Result": result}])
        found = compare_tables([path], Policy())
        assert comparison_document(found)["first_cause"]["msprobe_result"] == result
        documents.append(without(found))
    assert documents[0] == documents[1]


# -- one run, whatever was shown


def test_ranks_are_asked_in_one_run_and_keep_their_own_words(tmp_path: Path) -> None:
    found = pair_of(tmp_path, 0, 3)
    stand_in = StandIn(tmp_path)
    msprobe = stand_in.leaves(_rank0=[word("pass")], _rank1=[word("error")])
    asked = with_reference(found, [*shown_rows(found), *found.symptoms], lambda: msprobe)
    assert len(stand_in.calls()) == 1
    assert asked.cause is not None
    rows = {row.rank: row.result for row in (asked.cause.row, *asked.cause.also, *asked.symptoms)}
    assert rows == {0: "pass", 3: "error"}


def test_older_versions_are_asked_rank_by_rank(tmp_path: Path) -> None:
    found = pair_of(tmp_path, 0, 3)
    stand_in = StandIn(tmp_path)
    msprobe = Msprobe(stand_in.leaves(**{"": [word("Warning")]}).command, "8.1.2")
    asked = with_reference(found, [*shown_rows(found), *found.symptoms], lambda: msprobe)
    assert [words[:3] for words, _ in stand_in.calls()] == [["-f", "pytorch", "compare"]] * 2
    assert asked.cause is not None and asked.cause.row.result == "Warning"


# -- blank, with the reason


def absent() -> Msprobe:
    raise PrecdiagError("msprobe is not installed")


def test_without_msprobe_the_word_is_blank_and_says_why(tmp_path: Path) -> None:
    found = pair_of(tmp_path)
    asked = with_reference(found, shown_rows(found), absent)
    assert asked.reference == "its Result is blank: msprobe is not installed"
    document = comparison_document(asked)
    assert document["first_cause"]["msprobe_result"] is None
    assert "msprobe: its Result is blank: msprobe is not installed" in document["notes"]
    assert without(asked) == without(found)


def test_an_msprobe_that_leaves_nothing_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    found = pair_of(tmp_path)
    asked = with_reference(found, shown_rows(found), lambda: StandIn(tmp_path).leaves())
    assert "left no table" in (asked.reference or "") and "it went wrong" in (asked.reference or "")
    assert asked.exit_code == 1


def test_a_row_that_msprobe_would_pair_otherwise_stays_blank(tmp_path: Path) -> None:
    write(tmp_path / "b", {"Functional.linear.0.forward": forward([], [tensor()])})
    write(tmp_path / "c", {"Functional.linear.4.forward": forward([], [tensor(high=2.0)])})
    found = compare(tmp_path / "b", tmp_path / "c", Policy())
    assert found.cause is not None and found.cause.row.partner is not None
    asked = with_reference(found, shown_rows(found), absent)
    assert asked.reference == "its Result is blank: no row shown has a partner of the same name"


# -- the trimmed dump


def test_a_trimmed_dump_holds_the_calls_asked_for_and_links_their_tensors(real: Real, tmp_path: Path) -> None:
    source = next((real("dumps") / "26.2.0/tensor-L1/A/step0").iterdir())
    trim(Part(source), {"Functional.linear.1.forward"}, tmp_path / "rank0")
    document = json.loads((tmp_path / "rank0/dump.json").read_text())
    whole = json.loads((source / "dump.json").read_text())
    assert document["data"] == {"Functional.linear.1.forward": whole["data"]["Functional.linear.1.forward"]}
    assert (document["task"], document["level"]) == (whole["task"], whole["level"])
    linked = sorted(path.name for path in (tmp_path / "rank0/dump_tensor_data").iterdir())
    assert linked == [f"Functional.linear.1.forward.{slot}.pt" for slot in ("input.0", "input.1", "output.0")]
    assert all(path.is_symlink() for path in (tmp_path / "rank0/dump_tensor_data").iterdir())


def test_a_path_that_msprobe_refuses_is_linked_so_that_it_sees_none_of_it(tmp_path: Path) -> None:
    source = tmp_path / "a b"
    call = forward([], [tensor(data_name="x.pt"), tensor(data_name="../secret.pt"), tensor(data_name="gone.pt")])
    write(source, {"Torch.a.0.forward": call}, task="tensor")
    (source / "dump_tensor_data").mkdir()
    (source / "dump_tensor_data/x.pt").write_bytes(b"x")
    trim(Part(source), {"Torch.a.0.forward"}, tmp_path / "rank0")
    (linked,) = (tmp_path / "rank0/dump_tensor_data").iterdir()
    assert linked.name == "x.pt" and linked.read_bytes() == b"x"
    assert Path(os.path.realpath(linked)).parent == tmp_path.resolve() / "rank0/dump_tensor_data"


# -- when it is asked


@pytest.mark.parametrize(
    ("words", "terminal", "rows"),
    [
        ([], False, 0),
        ([], True, 2),
        (["--no-reference"], True, 0),
        (["--reference"], False, 2),
        (["--format", "json"], True, 0),
        (["--format", "json", "--reference"], False, 1),
    ],
)
def test_it_is_asked_where_somebody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], terminal: bool, rows: int
) -> None:
    pair_of(tmp_path)
    asked: list[int] = [0]

    def ask(comparison: Comparison, shown: Sequence[Row]) -> Comparison:
        asked[0] = len(shown)
        return comparison

    monkeypatch.setattr(reference, "with_reference", ask)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with pytest.raises(SystemExit) as ended:
        app(["compare", str(tmp_path / "b"), str(tmp_path / "c"), *words])
    assert ended.value.code == 1
    assert asked == [rows]
