"""msprobe's result tables as input: every version's dialect, what people's spreadsheets do to them, what they hide."""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import tables
from handmade import forward, tensor, write
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from precdiag.align import pair
from precdiag.compare_tables import compare_tables
from precdiag.comparison import Comparison
from precdiag.document import comparison_document
from precdiag.dump import read_dump
from precdiag.errors import PrecdiagError, UnreadableError, UsageError
from precdiag.evidence import BASELINE_ONLY, TABLE
from precdiag.judge import Judged, Policy, judge
from precdiag.judge_table import judge_table
from precdiag.layout import Part, open_run
from precdiag.parts import Selection
from precdiag.table import read_table, table_of
from precdiag.tablefile import find_tables, holds_tables, read_cells

Real = Callable[[str], Path]
SCHEMA = json.loads((Path(__file__).parent / "data" / "compare.schema.json").read_text())

VERSIONS = ("1.2.2", "8.1.2", "8.3.3", "26.0.0", "26.2.0")
TASKS = [
    *((version, f"{task}-L1") for version in VERSIONS for task in ("statistics", "md5", "tensor")),
    *(("26.2.0", f"{task}-{level}") for task in ("statistics", "tensor") for level in ("L0", "mix")),
    ("26.2.0", "xor-L1"),
]


def bitwise(*paths: Path) -> Comparison:
    return compare_tables(paths, Policy())


def first(comparison: Comparison) -> str | None:
    return None if comparison.cause is None else comparison.cause.row.name


def differing(comparison: Comparison) -> set[str]:
    """The operations of all rows that differ or stand on one side only."""
    document = comparison_document(comparison)
    return {row["call"].split(".")[1] for row in (document["first_cause"], *document["symptoms"]["rows"])}


# -- fixtures/tables: 40 of 40


def test_there_are_forty_tables(real: Real) -> None:
    assert len(TASKS) * 2 == len([*real("tables").glob("[0-9]*/*/*/*")]) == 40


@pytest.mark.parametrize(("version", "task"), TASKS)
def test_the_table_of_the_same_run_twice_is_no_divergence(real: Real, version: str, task: str) -> None:
    result = bitwise(real("tables") / version / task / "A_vs_B")
    assert (result.verdict, result.exit_code, first(result), result.evidence) == ("no-divergence", 0, None, TABLE)
    assert result.coverage.compared == result.coverage.equal > 0


@pytest.mark.parametrize(("version", "task"), TASKS)
def test_the_first_cause_of_a_table_is_the_scaled_weight(real: Real, version: str, task: str) -> None:
    result = bitwise(real("tables") / version / task / "A_vs_C")
    at_l0 = task.endswith("L0")
    row = "Module.1.Linear.forward.0.parameters.weight" if at_l0 else "Functional.linear.1.forward.input.1"
    assert (result.verdict, result.exit_code, first(result)) == ("diverged", 1, row)
    assert result.cause is not None and result.cause.row.kind == "parameter"
    assert result.cause.source is not None and result.cause.source.line == 15
    assert any("sorted by name" in note for note in result.notes) == version.startswith("8.")
    assert any("only the baseline made has no row" in note for note in result.notes)
    if task.startswith("statistics"):
        assert result.cause.row.metrics is not None
        assert result.cause.row.metrics["max_abs"] == pytest.approx(4.88e-4, rel=1e-3)


def verdicts(judged: Judged) -> dict[str, int]:
    return {judged.name(at): int(state) for at, state in enumerate(judged.rows["state"])}


@pytest.mark.parametrize(("version", "task"), TASKS)
def test_every_row_of_a_table_is_judged_as_the_dumps_are(real: Real, version: str, task: str) -> None:
    (file,) = find_tables([real("tables") / version / task / "A_vs_C"])
    dumps = [read_dump(open_run(real("dumps") / version / task / side).parts[0]) for side in "AC"]
    native = judge(*dumps, pair(*dumps), Policy())
    assert verdicts(judge_table(read_table(file), Policy())) == verdicts(native)


# -- fixtures/falsepass

SEEN = {"infs", "scalar", "shape", "nanone", "int", "big", "dtype", "i64", "zerob", "onlyC"}


@pytest.mark.parametrize(
    ("task", "expected"), [("tensor", SEEN | {"tiny", "bool", "perm", "f64"}), ("statistics", SEEN)]
)
def test_what_msprobe_calls_pass_is_found_in_its_own_table(real: Real, task: str, expected: set[str]) -> None:
    """All but the call that only the baseline made, of which the table shows nothing; negzero and nanboth are equal."""
    result = bitwise(real("tables") / "falsepass" / task)
    assert differing(result) == expected
    assert result.coverage.candidate_only == 2
    assert any("NaN or Inf alike on both sides" in note for note in result.notes)


def test_a_difference_below_twelve_decimals_has_a_bound_and_inf_against_minus_inf_no_end(real: Real) -> None:
    result = comparison_document(bitwise(real("tables") / "falsepass/tensor"))
    rows = {row["call"].split(".")[1]: row for row in (result["first_cause"], *result["symptoms"]["rows"])}
    assert rows["tiny"]["metrics"]["max_abs"] == 4.440892098500626e-16
    assert rows["infs"]["metrics"]["max_abs"] == "Infinity"
    assert rows["zerob"]["metrics"]["max_rel"] == "Infinity"
    assert rows["infs"]["kind"] == "value" and rows["nanone"]["kind"] == "non-finite"
    assert {rows[name]["kind"] for name in ("shape", "dtype")} == {"shape", "dtype"}


# -- cells


def judged_line(*lines: tables.Line) -> Judged:
    cells = pd.DataFrame(list(lines)).astype(str)
    cells.columns = [name.lower() for name in cells.columns]
    return judge_table(table_of(cells, Part(Path("compare_result.csv"))), Policy())


def state(*lines: tables.Line) -> str:
    return ("equal", "different", "unknown", "excluded", "baseline", "candidate")[
        int(judged_line(*lines).rows["state"].iloc[-1])
    ]


NAME = "Torch.a.0.forward.output.0"


@pytest.mark.parametrize("cell", ["0", "0.0", "0.0%", "N/A", "Nan", "nan%", "unsupported", "", "None", "0%", "0,0"])
def test_a_metric_that_says_nothing_or_zero_leaves_a_row_equal(cell: str) -> None:
    assert state({**tables.statistics(NAME), "MaxRelativeErr": cell, "Max diff": cell}) == "equal"


@pytest.mark.parametrize("cell", ["1e-300", "1.1049723756906076%", "inf", " inf", "-inf\t", "Diff", "4,4e-4", "-0.5"])
def test_any_metric_that_says_different_makes_a_row_different(cell: str) -> None:
    for column in ("Max diff", "Min diff", "Mean diff", "L2norm diff"):
        assert state({**tables.statistics(NAME), column: cell}) == "different"


def test_the_relative_error_of_minus_zero_against_zero_is_no_difference() -> None:
    line = {**tables.statistics(NAME, (1.0, -0.0, 0.5, 1.0), (1.0, 0.0, 0.5, 1.0)), "MinRelativeErr": "inf"}
    assert state(line) == "equal"


@pytest.mark.parametrize(
    "metrics",
    [
        (0.999, 0.0, 0.0, 0.0, 1.0, 1.0),
        (1.0, 1e-300, 0.0, 0.0, 1.0, 1.0),
        (1.0, 0.0, 1e-12, 0.0, 1.0, 1.0),
        (1.0, "unsupported", 0.0, 1.1e-7, 1.0, 1.0),
        (1.0, 0.0, 0.0, 0.0, 0.999, 1.0),
        (1.0, 0.0, 0.0, 0.0, 1.0, 0.999),
        (0.999999, "N/A", "N/A", "N/A", "N/A", "N/A"),
        (1.0, 0.0, " inf", 0.0, 1.0, 1.0),
    ],
)
def test_every_tensor_metric_is_read(metrics: tuple[tables.Cell, ...]) -> None:
    assert state(tables.tensors(NAME, metrics)) == "different"


def test_the_cosine_of_equal_tensors_may_be_rounded() -> None:
    assert state(tables.tensors(NAME, (0.999999, 0.0, 0.0, 0.0, 1.0, 1.0))) == "equal"


def test_equal_tensors_settle_a_mean_that_only_rounds_and_statistics_do_not() -> None:
    npu, bench = (1.0, -1.0, 0.25, 2.0), (1.0, -1.0, 0.25 + 2.0**-24, 2.0)
    assert state(tables.statistics(NAME, npu, bench)) == "unknown"
    assert state({**tables.tensors(NAME), **tables.line(NAME, npu, bench)}) == "equal"


def test_a_result_word_decides_nothing() -> None:
    words = ("pass", "error", "Yes", "No", "Different", "")
    for make, expected in ((tables.tensors, "equal"), (tables.statistics, "equal")):
        assert {state({**make(NAME), "Result": word, "Err_message": word}) for word in words} == {expected}
    other = tables.statistics(NAME, (1.0, -1.0, 0.0, 2.0), (1.5, -1.0, 0.0, 2.0))
    assert {state({**other, "Result": word}) for word in words} == {"different"}


SILENT = ("N/A",) * 6
NANS = ("Nan",) * 4


def test_nan_at_other_places_is_different_although_both_sides_have_nan() -> None:
    assert state({**tables.tensors(NAME, SILENT), **tables.line(NAME, NANS)}) == "different"
    assert state({**tables.tensors(NAME, SILENT)}) == "unknown"


def test_a_tensor_that_msprobe_could_not_read_is_unknown_unless_its_statistics_differ() -> None:
    files = {"Data_name": "['x.pt', 'x.pt']"}
    unread = {**tables.tensors(NAME, ("unsupported",) * 6), **files}
    assert state(unread) == "unknown"
    assert state({**unread, "Bench max": 3.0}) == "different"
    assert state({**unread, "Data_name": "['-1', '-1']"}) == "equal"


def test_a_row_about_which_nothing_is_said_is_unknown() -> None:
    silent = {
        key: ("N/A" if key in (*tables.TENSOR, *tables.SIDES) else cell) for key, cell in tables.tensors(NAME).items()
    }
    assert state(silent) == "unknown"
    assert state({**silent, "NPU Tensor Shape": "[0, 4]", "Bench Tensor Shape": "[0, 4]"}) == "equal"


@pytest.mark.parametrize("none", ["None", "N/A", "<class 'NoneType'>"])
@pytest.mark.parametrize("cell", ["None", "N/A", "nan\t", ""])
def test_none_against_none_is_equal(none: str, cell: str) -> None:
    shape = "[]" if none.startswith("<") else none
    line = dict.fromkeys((*tables.SIDES, *tables.TENSOR), cell) | {"Result": "pass"}
    line |= {"NPU Dtype": none, "Bench Dtype": none, "NPU Tensor Shape": shape, "Bench Tensor Shape": shape}
    assert state({"NPU Name": NAME, "Bench Name": NAME, **line}) == "equal"
    assert state({"NPU Name": NAME, "Bench Name": NAME, **line, "Bench Dtype": "torch.float32"}) == "different"


def argument(kind: str, npu: tables.Cell, bench: tables.Cell) -> tables.Line:
    classes = dict.fromkeys(("NPU Dtype", "Bench Dtype"), f"<class '{kind}'>")
    name = "Torch.a.0.forward.input.1"
    return {**tables.tensors(name, ("unsupported",) * 6), **tables.line(name, (npu,) * 4, (bench,) * 4), **classes}


def test_arguments_are_compared_by_what_stands_as_their_maximum() -> None:
    assert state(argument("float", 0.1, 0.2)) == "different"
    assert state(argument("float", 0.1, 0.1)) == "equal"
    assert state(argument("float", -0.0, "0")) == "equal"
    assert state(argument("int", "2", "2.0")) == "equal"
    assert state(argument("bool", "True", "TRUE")) == "equal"
    assert state(argument("str", "tanh", "none")) == "different"
    assert state(argument("str", "npu:0", "cuda:0")) == "equal"


def checksum(npu: tables.Cell, bench: tables.Cell) -> tables.Line:
    line = {key: cell for key, cell in tables.line(NAME).items() if key not in tables.SIDES}
    return {**line, "NPU MD5": npu, "BENCH MD5": bench, "Result": "pass"}


def test_checksums_decide_and_a_spreadsheet_that_ate_their_zeros_is_seen_through() -> None:
    assert state(checksum("0a1b2c3d", "0a1b2c3d")) == "equal"
    assert state(checksum("0a1b2c3d", "0a1b2c3e")) == "different"
    assert state(checksum("00000000", "0")) == "equal"
    assert state(checksum("00123456", "123456.0")) == "equal"
    assert state(checksum("1e+20", "1e+20")) == "unknown"
    assert state(checksum("0x82ec7a938aed7e29", "0x82ec7a938aed7e28")) == "different"
    whole = checksum("0x82ec7a938aed7e29", "0x82ec7a938aed7e29")
    scalar = {"NPU Name": "Torch.b.0.forward.output.0", "Bench Name": "Torch.b.0.forward.output.0"}
    assert state(whole, {**checksum("0.5", "0.5"), **scalar}) == "equal"
    assert state(whole, {**checksum("0.5", "0.25"), **scalar}) == "different"


def test_integers_beyond_double_precision_are_compared_by_their_digits() -> None:
    line = {**tables.statistics(NAME), **dict.fromkeys(("NPU Dtype", "Bench Dtype"), "torch.int64")}
    big = {
        "NPU max": "1152921504606846978",
        "Bench max": "1152921504606846977",
        "NPU mean": "None",
        "Bench mean": "None",
    }
    assert state({**line, **big}) == "different"
    assert state({**line, **big, "Bench max": "1152921504606846978"}) == "equal"


def test_rows_without_a_partner_are_structure() -> None:
    alone = {**tables.statistics("Torch.b.0.forward.output.0"), "Bench Name": "N/A", "Bench Dtype": "N/A"}
    assert state(tables.statistics(NAME), alone) == "candidate"
    judged = judged_line(
        tables.statistics(NAME), {**alone, "NPU Name": "N/A", "Bench Name": "Torch.b.0.forward.output.0"}
    )
    assert int(judged.rows["state"].iloc[1]) == BASELINE_ONLY


# -- files


STEP = [tables.statistics(f"Functional.linear.{at}.forward.output.0") for at in range(3)]
FAULT = [
    *STEP[:1],
    tables.statistics("Functional.linear.1.forward.output.0", (2.0, -1.0, 0.0, 2.0), (1.0, -1.0, 0.0, 2.0)),
    *STEP[2:],
]
CAUSE = "Functional.linear.1.forward.output.0"


def test_columns_are_looked_up_by_name(tmp_path: Path) -> None:
    shuffled = [dict(sorted({**row, "Something New": "x"}.items())) for row in FAULT]
    renamed = [
        {("accuracy  reached OR not" if key == "Result" else key.upper()): cell for key, cell in row.items()}
        for row in shuffled
    ]
    assert first(bitwise(tables.write_csv(tmp_path / "compare_result_1.csv", renamed))) == CAUSE


@pytest.mark.parametrize(
    "how", [{"encoding": "utf-8-sig"}, {"delimiter": ";"}, {"delimiter": "\t"}, {"encoding": "gb18030"}]
)
def test_a_csv_that_a_spreadsheet_saved_again_reads_the_same(tmp_path: Path, how: dict[str, str]) -> None:
    rows = [{**row, "NPU_Stack_Info": "['File 训练.py, line 7, in f, \\n y = op(x)']"} for row in FAULT]
    result = bitwise(tables.write_csv(tmp_path / "compare_result_1.csv", rows, **how))
    assert first(result) == CAUSE
    assert result.cause is not None and result.cause.source is not None
    assert result.cause.source.file == "训练.py"


def test_an_xlsx_with_changed_types_reads_the_same(tmp_path: Path) -> None:
    """Percent texts became ratios, flags TRUE, integers floats."""
    typed = [
        {**row, "MaxRelativeErr": 0.011, "Requires_grad Consistent": True, "NPU max": float(row["NPU max"])}
        for row in FAULT
    ]
    typed[0] = {**typed[0], "MaxRelativeErr": 0}
    typed[2] = {**typed[2], "MaxRelativeErr": 0}
    result = bitwise(tables.write_xlsx(tmp_path / "saved again.xlsx", {"Sheet1": typed}))
    assert first(result) == CAUSE
    assert result.coverage.different == 1


def test_a_sliced_table_is_one_table(tmp_path: Path) -> None:
    rows = [tables.statistics(f"Functional.linear.{at}.forward.output.0") for at in range(11)]
    rows[10] = tables.statistics("Functional.linear.10.forward.output.0", (2.0, -1.0, 0.0, 2.0), (1.0, -1.0, 0.0, 2.0))
    for at, row in enumerate(rows):
        tables.write_csv(tmp_path / f"csv/compare_result_rank0_1_part_{at + 1}.csv", [row])
    sheets = {f"part_{at}": [row] for at, row in enumerate(rows)}
    tables.write_xlsx(tmp_path / "xlsx/compare_result_rank0_1.xlsx", {"notes": [{"a": "b"}], **sheets})
    for folder in ("csv", "xlsx"):
        result = bitwise(tmp_path / folder)
        assert (len(result.parts), result.coverage.compared) == (1, 11)
        assert result.cause is not None and (result.cause.row.order, result.cause.row.rank) == (10, 0)


def test_one_table_a_rank_is_compared_as_ranks_are(tmp_path: Path) -> None:
    for step in (0, 2):
        for rank in (0, 1, 10):
            rows = FAULT if (step, rank) == (2, 1) else STEP
            tables.write_csv(tmp_path / f"step{step}/compare_result_rank{rank}_2026.csv", rows)
    result = bitwise(tmp_path)
    assert [(part.place.step, part.place.rank) for part in result.parts] == [(s, r) for s in (0, 2) for r in (0, 1, 10)]
    assert result.cause is not None and (result.cause.row.step, result.cause.row.rank) == (2, 1)
    some = [tmp_path / f"step0/compare_result_rank{rank}_2026.csv" for rank in (10, 0)]
    assert [part.place.rank for part in bitwise(*some).parts] == [0, 10]
    assert compare_tables([tmp_path], Policy(), Selection(steps=(0,))).exit_code == 0
    with pytest.raises(UsageError, match="none of the steps"):
        compare_tables([tmp_path], Policy(), Selection(steps=(1,)))


def test_a_table_beside_dumps_does_not_take_their_place(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        write(tmp_path / side / "step0/rank0", {"Torch.a.0.forward": forward([], [tensor()])})
        tables.write_csv(tmp_path / side / "step0/compare_result_rank0_1.csv", STEP)
        assert not holds_tables(tmp_path / side)
    assert not holds_tables(tmp_path)
    tables.write_csv(tmp_path / "out/step0/rank0/compare_result_1.csv", STEP)
    assert holds_tables(tmp_path / "out") and not holds_tables(tmp_path / "nowhere")
    assert [part.place.rank for part in bitwise(tmp_path / "out").parts] == [0]


def test_two_tables_of_one_rank_are_refused(tmp_path: Path) -> None:
    for time in (1, 2):
        tables.write_csv(tmp_path / f"compare_result_rank0_{time}.csv", STEP)
    with pytest.raises(UnreadableError, match="both tables of step - rank 0"):
        bitwise(tmp_path)


def test_what_is_no_whole_table_is_never_a_pass(tmp_path: Path) -> None:
    whole = tables.write_csv(tmp_path / "whole.csv", STEP).read_text()
    for name, text in {
        "cut.csv": whole[: whole.rindex(",")],
        "quoted.csv": whole + '"Functional',
        "header.csv": whole.partition("\n")[0] + "\n",
        "other.csv": "a,b\n1,2\n",
        "empty.csv": "",
        "twice.csv": whole + whole.splitlines()[1] + "\n",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        result = bitwise(path)
        assert (result.verdict, result.exit_code) == ("not-comparable", 2), name
        assert any(str(path) in note for note in result.notes)
    for name in ("not.xlsx", "binary.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00PK")
        assert bitwise(tmp_path / name).exit_code == 2
    assert bitwise(tmp_path / "nowhere.csv").exit_code == 2


def test_without_calamine_an_xlsx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tables.write_xlsx(tmp_path / "compare_result_1.xlsx", {"Sheet1": STEP})
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(PrecdiagError, match="python-calamine") as raised:
        bitwise(path)
    assert "pip install 'precdiag[table]'" in (raised.value.hint or "")


# -- bands


def test_a_band_on_a_table_follows_its_numbers(real: Real) -> None:
    folder = real("tables") / "26.2.0"
    for task, wide, narrow in (("statistics-L1", 5.0, 1e-3), ("tensor-L1", 100.0, 1e-3)):
        assert compare_tables([folder / task / "A_vs_C"], Policy(max_rel=wide)).exit_code == 0
        outside = compare_tables([folder / task / "A_vs_C"], Policy(max_rel=narrow))
        assert outside.exit_code == 1 and outside.first_outside is not None
    assert compare_tables([folder / "tensor-L1/A_vs_C"], Policy(cosine_min=0.9999)).exit_code == 1
    for task, policy in (
        ("md5-L1", Policy(max_rel=1.0)),
        ("statistics-L1", Policy(cosine_min=0.9)),
        ("tensor-L1", Policy(max_ulp=1)),
    ):
        with pytest.raises(UsageError):
            compare_tables([folder / task / "A_vs_C"], policy)


# -- order


@pytest.mark.parametrize("task", ["statistics-L1", "md5-L1", "tensor-L1", "statistics-mix", "xor-L1"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_table_sorted_by_hand_names_a_first_cause_that_does_not_depend_on_how(
    real: Real, task: str, seed: int
) -> None:
    (file,) = find_tables([real("tables") / "26.2.0" / task / "A_vs_C"])
    cells = read_cells(file)
    rows = list(range(len(cells)))
    random.Random(seed).shuffle(rows)
    table = table_of(cells.iloc[rows].reset_index(drop=True), file.part)
    assert not table.ordered
    judged = judge_table(table, Policy())
    different = judged.rows.index[judged.rows["state"] == 1]
    weight = "Module.1.Linear.forward.0.parameters.weight"
    assert judged.name(int(different[0])) in ("Functional.linear.1.forward.input.1", weight)


def test_a_sorted_table_is_read_forward_first_and_by_counters_not_by_letters(tmp_path: Path) -> None:
    names = [
        f"Functional.linear.{at}.{way}.{io}.0"
        for at in range(11)
        for way in ("forward", "backward")
        for io in ("input", "output")
    ]
    lines = [tables.statistics(name, (float(at), -1.0, 0.0, 2.0)) for at, name in enumerate(names)]
    table = table_of(
        pd.DataFrame(sorted(lines, key=lambda row: str(row["NPU Name"]))).astype(str).rename(columns=str.lower),
        Part(tmp_path),
    )
    order = [str(name) for name in table.cells["npu name"]]
    forward = [f"Functional.linear.{at}.forward.{io}.0" for at in range(11) for io in ("input", "output")]
    backward = [f"Functional.linear.{at}.backward.{io}.0" for at in reversed(range(11)) for io in ("input", "output")]
    assert order == forward + backward


def test_data_flow_orders_operations_that_were_sorted_by_their_letters() -> None:
    """Torch.z feeds Functional.a; sorted by name the symptom would come first."""
    good, bad = (1.0, -1.0, 0.0, 2.0), (1.5, -1.0, 0.0, 2.0)
    made = [
        tables.statistics("Functional.a.0.backward.input.0", (9.0, -1.0, 0.0, 2.0)),
        tables.statistics("Functional.a.0.forward.input.0", bad, good),
        tables.statistics("Functional.a.0.forward.output.0", (3.5, -1.0, 0.0, 2.0), (3.0, -1.0, 0.0, 2.0)),
        tables.statistics("Torch.z.0.forward.input.0", (7.0, -1.0, 0.0, 2.0)),
        tables.statistics("Torch.z.0.forward.output.0", bad, good),
    ]
    judged = judged_line(*made)
    assert [judged.name(at).split(".")[1] for at in range(5)] == ["z", "z", "a", "a", "a"]


# -- the command


def test_the_command_takes_tables_and_says_what_they_cannot_show(
    real: Real, capsys: pytest.CaptureFixture[str]
) -> None:
    from precdiag.cli import app

    folder = real("tables") / "26.2.0/tensor-L1/A_vs_C"
    with pytest.raises(SystemExit) as ended:
        app(["compare", str(folder), "--format", "json"])
    assert ended.value.code == 1
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(document)
    assert document["evidence"] == "table"
    assert document["first_cause"]["name"] == "Functional.linear.1.forward.input.1"
    with pytest.raises(SystemExit) as ended:
        app(["compare", str(folder)])
    assert ended.value.code == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 decimals" in printed and "only the baseline made has no row" in printed


@pytest.mark.parametrize("kept", [2, 5, 12])
def test_a_row_that_ends_early_is_no_row_of_equal_arguments(
    tmp_path: Path, real: Callable[[str], Path], kept: int
) -> None:
    (file,) = find_tables([real("tables") / "26.2.0/statistics-L1/A_vs_B"])
    rows = list(csv.reader(file.files[0].read_text(encoding="utf-8-sig").splitlines()))
    at, name = next((at, row[0]) for at, row in enumerate(rows) if "torch.float32" in row)
    rows[at] = rows[at][:kept]
    with (path := tmp_path / file.files[0].name).open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    with pytest.raises(UnreadableError, match=f"{name} has cells missing"):
        read_cells(find_tables([path])[0])
