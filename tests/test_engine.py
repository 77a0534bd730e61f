"""msprobe as the engine: the real 26.2 agrees with the native comparison; a stand-in shows how others are called."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import tables
from handmade import forward, scalar, tensor, write
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import StandIn

from precdiag import installed, modes
from precdiag.align import pair
from precdiag.cli import app
from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.dump import read_dump
from precdiag.engine import Engine, laid_on
from precdiag.errors import PrecdiagError
from precdiag.evidence import TABLE
from precdiag.hook import injected
from precdiag.installed import Msprobe, find_msprobe
from precdiag.judge import Judged, Policy, judge
from precdiag.judge_table import judge_table
from precdiag.layout import Part, open_run
from precdiag.parts import Selection
from precdiag.table import table_of
from precdiag.tablefile import find_tables, read_cells

Real = Callable[[str], Path]

TASKS = [
    *(f"{task}-{level}" for task in ("statistics", "tensor") for level in ("L0", "L1", "mix")),
    "md5-L1",
    "xor-L1",
]
STEP = Selection(steps=(0,))


def verdicts(judged: Judged) -> dict[str, int]:
    return {judged.name(at): int(state) for at, state in enumerate(judged.rows["state"])}


def seen(comparison: Comparison) -> tuple[object, ...]:
    """What a comparison comes to, but for its evidence, its numbers and its notes."""
    cause = comparison.cause
    found = None if cause is None else (cause.row.name, cause.row.kind, cause.row.order, cause.row.module, cause.source)
    names = [(row.name, row.kind) for row in comparison.symptoms]
    return comparison.verdict, comparison.exit_code, comparison.coverage, found, names


# -- the real msprobe


def numbers(comparison: Comparison) -> dict[str, float | None]:
    """The largest absolute error of every row that differs, by its operation."""
    assert comparison.cause is not None
    rows = (comparison.cause.row, *comparison.symptoms)
    return {row.call.split(".")[1]: (row.metrics or {}).get("max_abs") for row in rows}


def by_msprobe(baseline: Path, candidate: Path) -> Comparison:
    found = find_msprobe()
    assert found.takes_folders
    with Engine(found, Policy()) as judging:
        return compare(baseline, candidate, Policy(), STEP, judging=judging)


@pytest.mark.parametrize("task", TASKS)
def test_msprobes_own_comparison_judged_agrees_with_the_native_one(real: Real, task: str) -> None:
    sides = [real("dumps") / "26.2.0" / task / side for side in "AC"]
    theirs, ours = by_msprobe(*sides), compare(*sides, Policy(), STEP)
    assert seen(theirs) == seen(ours)
    assert (theirs.evidence, theirs.exit_code) == (TABLE, 1)


def test_where_msprobes_numbers_differ_is_explained_and_the_verdicts_agree_all_the_same(real: Real) -> None:
    """12 decimals hide `tiny` and `f64`; EucDist bounds them, exactly where one element differs."""
    sides = [real("falsepass") / "tensor" / side for side in "AC"]
    theirs, ours = by_msprobe(*sides), compare(*sides, Policy(), STEP)
    assert seen(theirs) == seen(ours)
    left, right = numbers(theirs), numbers(ours)
    assert {name for name in right if left[name] != right[name]} == {"f64"}
    assert left["f64"] is not None and right["f64"] is not None and right["f64"] < left["f64"] < 5e-13


# -- verdicts on the dumps' own rows


@pytest.mark.parametrize("task", ["statistics-mix", "tensor-mix", "md5-L1"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_permuting_a_tables_rows_changes_nothing_when_the_dumps_are_at_hand(real: Real, task: str, seed: int) -> None:
    (file,) = find_tables([real("tables") / "26.2.0" / task / "A_vs_C"])
    dumps = [read_dump(open_run(real("dumps") / "26.2.0" / task / side).parts[0]) for side in "AC"]
    cells = read_cells(file)
    rows = list(range(len(cells)))
    random.Random(seed).shuffle(rows)
    judged = laid_on(judge_table(table_of(cells.iloc[rows].reset_index(drop=True), file.part), Policy()), *dumps)
    native = judge(*dumps, pair(*dumps), Policy())
    assert list(verdicts(judged).items()) == list(verdicts(native).items())


def dumps_and_table(folder: Path, sides: tuple[dict[str, object], dict[str, object]], *lines: tables.Line) -> Judged:
    cells = pd.DataFrame(list(lines)).astype(str)
    cells.columns = [name.lower() for name in cells.columns]
    judged = judge_table(table_of(cells, Part(folder)), Policy())
    b, c = (write(folder / side, data) for side, data in zip("bc", sides, strict=True))
    return laid_on(judged, read_dump(Part(b)), read_dump(Part(c)))


def test_what_the_table_leaves_out_is_taken_from_the_dumps(tmp_path: Path) -> None:
    """A call that only the baseline made, and a row whose types msprobe does not pair."""
    call = forward([tensor(), tensor(dtype="torch.int64"), scalar(1)], [tensor()])
    other = forward([tensor(), tensor(dtype="torch.float32"), None], [tensor()])
    sides = {"Torch.a.0.forward": forward([tensor()], []), "Torch.b.0.forward": call}, {"Torch.b.0.forward": other}
    name = "Torch.b.0.forward"
    lines = [tables.statistics(f"{name}.{slot}") for slot in ("input.0", "input.1", "input.2", "output.0")]
    for at in (1, 2):
        lines[at] = {**lines[at], "Bench Name": "N/A", "Bench Dtype": "N/A"}
    judged = dumps_and_table(tmp_path, sides, *lines)
    assert verdicts(judged) == {
        "Torch.a.0.forward.input.0": 4,
        **{
            f"{name}.{slot}": int(slot in ("input.1", "input.2"))
            for slot in ("input.0", "input.1", "input.2", "output.0")
        },
    }
    assert judged.rows["aspects"].tolist() == [0, 0, 2, 4, 0]


def test_what_msprobe_leaves_without_a_partner_differs_only_where_the_dumps_do(tmp_path: Path) -> None:
    """1.2.2 pairs nothing of a call in which one shape differs."""
    name = "Torch.b.0.forward"
    sides = (
        {name: forward([tensor(), scalar(1)], [tensor(shape=[8])])},
        {name: forward([tensor(), scalar(1)], [tensor(shape=[1, 8])])},
    )
    alone = {"Bench Name": "N/A", "Bench Dtype": "N/A"}
    lines = [{**tables.statistics(f"{name}.{slot}"), **alone} for slot in ("input.0", "input.1", "output.0")]
    judged = dumps_and_table(tmp_path, sides, *lines)
    assert verdicts(judged) == {f"{name}.input.0": 2, f"{name}.input.1": 0, f"{name}.output.0": 1}
    assert judged.rows["blocking"].tolist() == [True, False, False]


def test_a_table_of_other_dumps_is_refused(tmp_path: Path) -> None:
    data = {"Torch.b.0.forward": forward([tensor()], [])}
    with pytest.raises(PrecdiagError, match=r"names Torch\.z\.0\.forward\.input\.0, which .* does not hold"):
        dumps_and_table(tmp_path, (data, data), tables.statistics("Torch.z.0.forward.input.0"))


# -- the command line, by a stand-in that writes down how it was called

DATA = {"Functional.linear.0.forward": forward([], [tensor()]), "Functional.linear.1.forward": forward([], [tensor()])}
LINES = [tables.statistics(f"Functional.linear.{at}.forward.output.0") for at in (0, 1)]
FAULT = [
    LINES[0],
    tables.statistics("Functional.linear.1.forward.output.0", (2.0, -1.0, 0.0, 2.0), (1.0, -1.0, 0.0, 2.0)),
]


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    folder = tmp_path / "bin"
    folder.mkdir()
    yield StandIn(folder)


def run(msprobe: Msprobe, baseline: Path, candidate: Path, selection: Selection | None = None) -> Comparison:
    with Engine(msprobe, Policy(), whole_steps=selection is None) as judging:
        return compare(baseline, candidate, Policy(), selection, judging=judging)


def two_runs(folder: Path, *places: str) -> tuple[Path, Path]:
    for side in "bc":
        for place in places:
            write(
                folder / side / place, DATA, stack={"0": [["Functional.linear.0.forward"], ["File t.py, line 1, in f"]]}
            )
    return folder / "b", folder / "c"


def test_26_is_run_once_on_each_step_folder_and_never_on_the_root(tmp_path: Path, stand_in: StandIn) -> None:
    runs = two_runs(tmp_path, "step0/rank0", "step0/rank1", "step2/rank0", "step2/rank1")
    result = run(stand_in.leaves(_rank0=LINES, _rank1=FAULT), *runs)
    words = [words for words, _ in stand_in.calls()]
    for step, each in zip((0, 2), words, strict=True):
        assert each[:5] == ["compare", "-tp", str(runs[1] / f"step{step}"), "-gp", str(runs[0] / f"step{step}")]
        assert each[5] == "-o" and len(each) == 7
    assert result.cause is not None
    assert (result.cause.row.step, result.cause.row.rank, result.coverage.compared) == (0, 1, 8)


def test_one_rank_of_many_is_compared_alone(tmp_path: Path, stand_in: StandIn) -> None:
    runs = two_runs(tmp_path, "step0/rank0", "step0/rank1")
    assert run(stand_in.leaves(**{"": FAULT}), *runs, Selection(ranks=(1,))).exit_code == 1
    ((words, _),) = stand_in.calls()
    assert words[2::2][:2] == [str(side / "step0/rank1/dump.json") for side in reversed(runs)]


@pytest.mark.parametrize("version", ["1.2.2", "8.1.2", "8.3.3"])
def test_older_versions_are_told_by_a_file(tmp_path: Path, stand_in: StandIn, version: str) -> None:
    runs = two_runs(tmp_path, "step0/rank")
    found = stand_in.leaves(**{"": FAULT})
    result = run(Msprobe(found.command, version), *runs)
    assert result.cause is not None and result.cause.row.name == "Functional.linear.1.forward.output.0"
    ((words, told),) = stand_in.calls()
    assert words[:4] == ["-f", "pytorch", "compare", "-i"] and words[5] == "-o" and words[7:] == ["-s"]
    folders = {"npu_path": runs[1] / "step0/rank/dump.json", "bench_path": runs[0] / "step0/rank/dump.json"}
    assert told == {
        **{key: str(path) for key, path in folders.items()},
        "stack_path": str(runs[1] / "step0/rank/stack.json"),
        "is_print_compare_log": False,
    }


def test_the_exit_status_proves_nothing(tmp_path: Path, stand_in: StandIn) -> None:
    runs = two_runs(tmp_path, "step0/rank0")
    failed = run(stand_in.leaves(0), *runs)
    assert (failed.verdict, failed.exit_code) == ("not-comparable", 2)
    assert any("left no table" in note and "it went wrong" in note for note in failed.notes)
    assert run(stand_in.leaves(1, _rank0=FAULT), *runs).exit_code == 1
    assert run(stand_in.leaves(1, _rank0=LINES), *runs).exit_code == 0
    other = run(stand_in.leaves(0, _rank0=LINES[:1]), *runs)
    assert (other.verdict, other.exit_code, other.coverage.unknown) == ("not-comparable", 2, 1)
    assert any("both dumps have it" in note for note in other.notes)


def test_a_path_that_msprobe_refuses_is_named(tmp_path: Path, stand_in: StandIn) -> None:
    runs = two_runs(tmp_path / "a b", "step0/rank0")
    result = run(stand_in.leaves(_rank0=LINES), *runs)
    assert result.exit_code == 2
    assert any("msprobe refuses" in note and "' ' (U+0020)" in note for note in result.notes)


# -- which msprobe


def test_pypis_unrelated_msprobe_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: StandIn
) -> None:
    monkeypatch.setattr(
        injected("_precdiag_probe"), "package_problem", lambda: "msprobe is not installed: pip install it"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrecdiagError, match="msprobe is not installed") as raised:
        find_msprobe()
    assert raised.value.hint == "pip install mindstudio-probe"
    stand_in.leaves()
    monkeypatch.setenv("PATH", str(stand_in.folder))
    assert find_msprobe().command == (str(stand_in.folder / "msprobe"),)
    monkeypatch.setattr(installed, "_VERSION", "raise SystemExit(1)")
    with pytest.raises(PrecdiagError, match="another tool of that name"):
        find_msprobe()


# -- the option


def test_the_option_lets_msprobe_measure_and_says_so(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = two_runs(tmp_path, "step0/rank0")
    found = stand_in.leaves(_rank0=FAULT)
    monkeypatch.setattr(modes, "find_msprobe", lambda: found)
    with pytest.raises(SystemExit) as ended:
        app(["compare", *map(str, runs), "--engine", "msprobe", "--format", "json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (ended.value.code, document["evidence"], len(stand_in.calls())) == (1, "table", 1)
    assert document["first_cause"]["name"] == "Functional.linear.1.forward.output.0"
    assert document["first_cause"]["msprobe_result"] == "pass"
    assert "msprobe 26.2.0 compares" in printed.err
