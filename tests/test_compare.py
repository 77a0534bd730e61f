"""The main job on real dumps: every version, task and level, the false passes, the cases made after bug reports."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import forward, scalar, tensor, write

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.document import EVIDENCE_NAMES, comparison_document
from precdiag.errors import UnreadableError, UsageError
from precdiag.evidence import BYTES, STATISTICS
from precdiag.judge import Policy
from precdiag.parts import Selection
from precdiag.rounding import NOT_REPLAYED

Real = Callable[[str], Path]

VERSIONS = ("1.2.2", "8.1.2", "8.3.3", "26.0.0", "26.2.0")
TASKS = [
    *((version, f"{task}-L1") for version in VERSIONS for task in ("statistics", "md5", "tensor")),
    *(("26.2.0", f"{task}-{level}") for task in ("statistics", "tensor") for level in ("L0", "mix")),
    ("26.2.0", "xor-L1"),
]


def bitwise(baseline: Path, candidate: Path, **selection: tuple[int, ...]) -> Comparison:
    return compare(baseline, candidate, Policy(), Selection(**selection) if selection else None)


def first(comparison: Comparison) -> str | None:
    return None if comparison.cause is None else comparison.cause.row.name


def differing(comparison: Comparison) -> set[str]:
    """The operations of all rows that differ or stand on one side only."""
    document = comparison_document(comparison)
    return {row["call"].split(".")[1] for row in (document["first_cause"], *document["symptoms"]["rows"])}


# -- fixtures/dumps: 40 of 40 pairs


def test_there_are_forty_pairs() -> None:
    assert len(TASKS) * 2 == 40


@pytest.mark.parametrize(("version", "task"), TASKS)
def test_the_same_run_twice_is_no_divergence(real: Real, version: str, task: str) -> None:
    folder = real("dumps") / version / task
    result = bitwise(folder / "A", folder / "B")
    assert (result.verdict, result.exit_code, first(result)) == ("no-divergence", 0, None)
    assert result.coverage.compared == result.coverage.equal > 0


@pytest.mark.parametrize(("version", "task"), TASKS)
def test_the_scaled_weight_is_the_first_cause(real: Real, version: str, task: str) -> None:
    folder = real("dumps") / version / task
    result = bitwise(folder / "A", folder / "C")
    at_l1 = task.endswith("L1")
    row = "Functional.linear.1.forward.input.1" if at_l1 else "Module.1.Linear.forward.0.parameters.weight"
    assert (result.verdict, result.exit_code, first(result)) == ("diverged", 1, row)
    assert result.cause is not None
    assert (result.cause.row.step, result.cause.row.kind) == (0, "parameter")
    evidence = {"statistics": "statistics", "md5": "checksum", "tensor": "bytes", "xor": "xor"}
    assert EVIDENCE_NAMES[result.evidence] == evidence[task.split("-")[0]]
    assert result.cause.source is not None and result.cause.source.file.endswith("train.py")
    assert result.cause.source.line == 15
    if not at_l1:
        assert result.cause.row.module == "1"
    if task.startswith("statistics"):
        assert result.cause.row.metrics is not None
        assert result.cause.row.metrics["max_abs"] == pytest.approx(4.88e-4, rel=1e-3)


def test_two_versions_with_other_checksums_compare_by_statistics(real: Real) -> None:
    old, new = real("dumps") / "1.2.2/md5-L1", real("dumps") / "26.2.0/md5-L1"
    faulty = bitwise(old / "A", new / "C")
    assert first(faulty) == "Functional.linear.1.forward.input.1"
    assert any("dialects" in note for note in faulty.notes)


# -- fixtures/falsepass

COMMON = {"infs", "scalar", "shape", "nanone", "int", "big", "dtype", "i64", "zerob", "onlyA", "onlyC"}


@pytest.mark.parametrize(
    ("task", "expected"),
    [("tensor", COMMON | {"tiny", "bool", "perm", "f64"}), ("statistics", COMMON)],
)
def test_every_call_that_differs_is_reported_and_none_that_is_equal(real: Real, task: str, expected: set[str]) -> None:
    result = bitwise(real("falsepass") / task / "A", real("falsepass") / task / "C")
    assert differing(result) == expected
    assert result.coverage.baseline_only == result.coverage.candidate_only == 2
    notes = " ".join(result.notes)
    assert "NaN or Inf alike on both sides" in notes
    assert ("-0.0 on one side" in notes) == (task == "tensor")


# -- fixtures/cases

EQUAL_CASES = ["identical", "p01_identical", "p04_nan_both", "p05_inf_mask_both", "p09_recompute_counts", "recompute"]
CASES = {
    "gelu_tanh": (0, "Functional.gelu.0.forward.input.approximate", "argument"),
    "tensor_gelu_tanh": (0, "Functional.gelu.0.forward.input.approximate", "argument"),
    "bad_batch": (1, "Functional.cross_entropy.0.forward.output.0", "introduced"),
    "md5_bad_batch": (1, "Functional.cross_entropy.0.forward.input.1", "input"),
    "where_grad": (0, "Tensor.__mul__.0.forward", "structure"),
    "inplace_nan": (0, "Tensor.__setitem__.0.forward", "structure"),
    "lora_frozen": (0, "Module.emb.Embedding.forward.0.parameters.weight", "requires_grad"),
    "bf16": (0, "Module.emb.Embedding.forward.0.parameters.weight", "dtype"),
    "p02_gelu_first_diff": (None, "Functional.gelu.0.forward.output.0", "introduced"),
    "p03_nan_npu_only": (None, "Functional.layer_norm.0.forward.output.0", "non-finite"),
    "p07_scalar_none_bool_zero": (None, "Torch.dropout.0.forward.input.2", "argument"),
    "p11_md5": (None, "Functional.gelu.0.forward.output.0", "introduced"),
}


def case(real: Real, name: str) -> Comparison:
    folder = real("cases") / name
    sides = ("ok", "fault") if (folder / "ok").is_dir() else ("bench", "npu")
    return bitwise(folder / sides[0], folder / sides[1])


@pytest.mark.parametrize("name", EQUAL_CASES)
def test_a_healthy_case_is_no_divergence(real: Real, name: str) -> None:
    result = case(real, name)
    assert (result.verdict, result.exit_code) == ("no-divergence", 0)


@pytest.mark.parametrize(("name", "expected"), CASES.items())
def test_a_faulty_case_names_its_first_cause(real: Real, name: str, expected: tuple[int | None, str, str]) -> None:
    result = case(real, name)
    assert result.exit_code == 1 and result.cause is not None
    assert (result.cause.row.step, result.cause.row.name, result.cause.row.kind) == expected


def test_a_permuted_label_seen_by_statistics_says_that_inputs_may_differ_in_order(real: Real) -> None:
    found = case(real, "bad_batch").cause
    assert found is not None and "may still differ in order" in found.why and "md5" in found.why


def test_recomputed_calls_are_counted_and_said(real: Real) -> None:
    result = case(real, "recompute")
    assert any("5 one-sided calls are activation recomputation" in note for note in result.notes)
    assert result.coverage.candidate_only > 0


def test_recomputed_calls_shift_no_pair(real: Real) -> None:
    """answers.json, p09: 2 extra forward calls; gelu.1.backward pairs with gelu.0.backward."""
    result = case(real, "p09_recompute_counts")
    assert (result.alignment.counts["candidate_only"], result.coverage.baseline_only) == (2, 0)
    assert any("2 one-sided calls are activation recomputation" in note for note in result.notes)
    assert [(pair.baseline, pair.candidate, pair.how) for pair in result.alignment.pairs] == [
        ("Functional.gelu.0.backward", "Functional.gelu.1.backward", "sequence")
    ]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("where_grad", "Tensor.abs.0.forward.input.0"),
        ("inplace_nan", "Module.norm.LayerNorm.forward.0.input.0"),
        ("gelu_tanh", "Functional.gelu.0.forward.output.0"),
    ],
)
def test_the_first_row_that_differs_behind_the_cause_is_the_first_numeric_symptom(
    real: Real, name: str, row: str
) -> None:
    """answers.json; the module that takes the row in begins before the call that answers.json names."""
    values = [symptom for symptom in case(real, name).symptoms if symptom.kind in ("value", "non-finite")]
    assert values[0].name == row


def test_frozen_parameters_leave_nineteen_calls_on_one_side(real: Real) -> None:
    result = case(real, "lora_frozen")
    steps = len(result.parts)
    assert (result.alignment.counts["baseline_only"], result.alignment.counts["candidate_only"]) == (19 * steps, 0)
    assert {row.phase for row in result.symptoms if row.kind == "structure"} <= {"backward", "parameters_grad"}


def test_nan_on_both_sides_is_no_divergence_and_said(real: Real) -> None:
    assert any("NaN or Inf alike on both sides" in note for note in case(real, "p04_nan_both").notes)


def test_an_empty_candidate_is_not_comparable(real: Real) -> None:
    result = case(real, "p12_empty")
    assert (result.verdict, result.exit_code) == ("not-comparable", 2)
    assert any("holds a head and no rows" in note for note in result.notes)


def test_two_processes_pair_although_their_pids_differ(real: Real) -> None:
    result = bitwise(real("cases") / "p17_proc", real("cases") / "p17_proc_b")
    assert (result.verdict, len(result.parts)) == ("no-divergence", 1)


# -- fixtures/ddp and fixtures/unfinished


def test_the_rank_whose_weight_was_scaled_is_named(real: Real) -> None:
    result = bitwise(real("ddp") / "A", real("ddp") / "C")
    assert result.cause is not None
    row = result.cause.row
    assert (row.step, row.rank, row.name, row.kind) == (
        0,
        1,
        "Module.module.0.Linear.forward.0.parameters.weight",
        "parameter",
    )
    assert [(part.place.step, part.place.rank) for part in result.parts] == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_steps_and_ranks_can_be_narrowed(real: Real) -> None:
    result = bitwise(real("ddp") / "A", real("ddp") / "C", steps=(2,), ranks=(0,))
    assert [(part.place.step, part.place.rank) for part in result.parts] == [(2, 0)]
    with pytest.raises(UsageError, match="none of the steps and ranks asked for"):
        bitwise(real("ddp") / "A", real("ddp") / "C", steps=(1,))


@pytest.mark.parametrize("other", ["kill", "raise", "exit", "none"])
def test_nothing_compares_equal_to_a_step_without_rows(real: Real, other: str) -> None:
    head = real("unfinished") / "kill/step1"
    assert bitwise(head, real("unfinished") / other / "step1").exit_code == 2


def test_a_difference_before_an_unreadable_step_is_found_and_said(real: Real) -> None:
    result = bitwise(real("unfinished") / "none", real("unfinished") / "kill")
    assert result.exit_code == 1
    assert any("holds a head and no rows" in note for note in result.notes)


def test_an_unreadable_step_before_the_difference_leaves_the_cause_open(tmp_path: Path) -> None:
    for side, high in (("b", 1.0), ("c", 2.0)):
        (tmp_path / side / "step0/rank0").mkdir(parents=True)
        (tmp_path / side / "step0/rank0/dump.json").write_text('{"data": {}}')
        write(tmp_path / side / "step1/rank0", {"Torch.a.0.forward": forward([], [tensor(high=high)])})
    result = bitwise(tmp_path / "b", tmp_path / "c")
    assert (result.verdict, result.exit_code) == ("not-comparable", 2)
    assert any("an earlier step could not be read" in note for note in result.notes)


# -- pairing steps and ranks

ONE = {"Torch.a.0.forward": forward([scalar(1)], [tensor()])}


def test_what_only_one_side_dumped_forbids_a_pass(tmp_path: Path) -> None:
    for place in ("b/step0/rank0", "b/step1/rank0", "c/step0/rank0"):
        write(tmp_path / place, ONE)
    result = bitwise(tmp_path / "b", tmp_path / "c")
    assert (result.verdict, result.exit_code) == ("not-comparable", 2)
    assert "compared only in part: step 1 rank 0 is only in the baseline" in result.notes
    assert bitwise(tmp_path / "b", tmp_path / "c", steps=(0,)).exit_code == 0


def test_steps_that_are_named_compare_whatever_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "b/step3/proc1", ONE)
    write(tmp_path / "c/step7/rank0", ONE)
    result = bitwise(tmp_path / "b/step3", tmp_path / "c/step7/rank0/dump.json")
    assert result.exit_code == 0
    assert any("as named" in note for note in result.notes)
    with pytest.raises(UnreadableError, match="no step and rank in common"):
        bitwise(tmp_path / "b", tmp_path / "c")


def test_a_copy_without_a_step_folder_compares(tmp_path: Path) -> None:
    write(tmp_path / "b/step0/rank0", ONE)
    write(tmp_path / "copied by hand", ONE)
    assert bitwise(tmp_path / "b", tmp_path / "copied by hand").exit_code == 0


def test_two_processes_in_one_step_are_refused(tmp_path: Path) -> None:
    for place in ("b/step0/proc1", "b/step0/proc2", "c/step0/proc3"):
        write(tmp_path / place, ONE)
    with pytest.raises(UnreadableError, match="two processes dumped it"):
        bitwise(tmp_path / "b", tmp_path / "c")
    assert bitwise(tmp_path / "b/step0/proc1", tmp_path / "c").exit_code == 0


def test_stages_are_a_level_of_their_own(tmp_path: Path) -> None:
    for side in "bc":
        for number in (2, 10):
            for stage in ("actor", "ref"):
                write(tmp_path / side / f"step_{number}/{stage}/step0/rank0", ONE)
    result = compare(tmp_path / "b", tmp_path / "c", Policy(), Selection(stage="actor"))
    assert [part.place.stage for part in result.parts] == ["step_2/actor", "step_10/actor"]
    document = comparison_document(result)
    assert [entry["stage"] for entry in document["coverage"]["by_rank"]] == ["step_2/actor", "step_10/actor"]


# -- evidence and what is unknown


def test_the_same_bytes_summed_by_other_threads_name_no_row(tmp_path: Path) -> None:
    """Mean and Norm of another last digit, as one thread against two give: unknown by statistics, equal by md5."""

    def data(mean: float, **more: str) -> dict[str, object]:
        return {"Torch.a.0.forward": forward([tensor()], [tensor(**more) | {"Mean": mean}])}

    for side, mean in (("b", 0.25), ("c", 0.25 + 2.0**-22)):
        write(tmp_path / side / "statistics", data(mean))
        write(tmp_path / side / "md5", data(mean, md5="0badcafe"))
    weak = bitwise(tmp_path / "b/statistics", tmp_path / "c/statistics")
    assert (weak.exit_code, weak.cause, weak.coverage.unknown) == (2, None, 1)
    assert any("collect md5 or tensor" in note for note in weak.notes)
    assert bitwise(tmp_path / "b/md5", tmp_path / "c/md5").exit_code == 0


def test_a_missing_tensor_file_is_never_a_pass(tmp_path: Path, real: Real) -> None:
    shutil.copytree(real("dumps") / "26.2.0/tensor-L1", tmp_path / "x")
    file = next((tmp_path / "x/B").rglob("Functional.linear.2.forward.output.0.pt"))
    file.unlink()
    result = bitwise(tmp_path / "x/A", tmp_path / "x/B")
    assert (result.verdict, result.exit_code, result.coverage.unknown) == ("not-comparable", 2, 1)
    assert any(file.name in note for note in result.notes)


def test_without_torch_dumps_compare_alike_and_replays_say_what_to_install(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = real("dumps") / "26.2.0"
    whole = bitwise(folder / "tensor-L1/A", folder / "tensor-L1/C")
    monkeypatch.setitem(sys.modules, "torch", None)
    statistics = bitwise(folder / "statistics-L1/A", folder / "statistics-L1/C")
    found = bitwise(folder / "tensor-L1/A", folder / "tensor-L1/C")
    assert (statistics.evidence, found.evidence) == (STATISTICS, BYTES)
    assert (found.cause, found.coverage, found.symptoms) == (whole.cause, whole.coverage, whole.symptoms)
    said = f"{NOT_REPLAYED}: torch is not installed: pip install 'precdiag[tensor]'"
    assert said in found.notes and said not in (*whole.notes, *statistics.notes)


def test_the_document_is_the_same_json_whatever_is_in_it(real: Real) -> None:
    result = bitwise(real("falsepass") / "tensor/A", real("falsepass") / "tensor/C")
    text = json.dumps(comparison_document(result), allow_nan=False)
    assert '"Infinity"' in text
