"""precdiag nan on real dumps: known faults are named exactly, healthy ones are silent about their masks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from test_cli import precdiag

from precdiag.parts import Selection
from precdiag.survey import survey

Real = Callable[[str], Path]
SCHEMA = json.loads((Path(__file__).parent / "data" / "nan.schema.json").read_text())
MASK = "Tensor.masked_fill.0.forward.input.2"


@pytest.mark.parametrize("task", ["statistics", "md5"])
def test_the_log_of_a_negative_is_the_origin_and_the_mask_is_not(real: Real, task: str) -> None:
    found = survey(real("nan") / task)
    assert found.origin is not None and found.exit_code == 1
    assert found.origin.row.name == "Torch.log.0.forward.output.0"
    assert (found.origin.kind, found.origin.value, found.origin.row.step) == ("generated", "nan", 0)
    assert "-0.5" in found.origin.why and "logarithm of a negative" in found.origin.why
    assert found.origin.source is not None and "torch.log" in found.origin.source.code
    assert [each.row.name for each in found.excluded] == [MASK, MASK]  # one a step
    assert "Torch.softmax.0.forward turns it finite" in found.excluded[0].why


def test_xor_says_that_it_cannot_show_it(real: Real) -> None:
    found = survey(real("nan") / "xor")
    assert (found.verdict, found.exit_code, found.origin) == ("not-readable", 2, None)
    assert any("xor checksums cannot show" in note for note in found.notes)
    assert any("Tensor.sum.0.forward.output.0 is nan" in note for note in found.notes)  # a bare 0-dim value


@pytest.mark.parametrize(
    "case", ["identical/ok", "identical/fault", "recompute/fault", "lora_frozen/ok", "lora_frozen/fault"]
)
def test_a_healthy_attention_is_finite_and_its_mask_listed(real: Real, case: str) -> None:
    found = survey(real("cases") / case)
    assert (found.verdict, found.exit_code, found.origin, found.events) == ("finite", 0, None, ())
    assert {each.row.name for each in found.excluded} == {MASK}
    assert len(found.excluded) == len(found.parts) == 3
    assert found.coverage.masked == 2 * 3 and not found.coverage.non_finite


@pytest.mark.parametrize(
    ("case", "step", "row", "kind"),
    [
        ("where_grad/fault", 0, "Torch.sqrt.0.backward.output.0", "generated"),
        ("finite_where_grad/fault", 0, "Torch.sqrt.0.backward.output.0", "generated"),
        ("where_grad/fault", 1, "Module.emb.Embedding.forward.0.parameters.weight", "parameter"),
        ("inplace_nan/fault", 0, "Tensor.__setitem__.0.forward.input.2", "argument"),
        ("finite_inplace_nan/fault", 0, "Tensor.__setitem__.0.forward.input.2", "argument"),
        ("p15_nan_nested", None, "Torch.split.0.forward.output.0.1", "generated"),
        ("p03_nan_npu_only/npu", None, "Functional.layer_norm.0.forward.output.0", "generated"),
    ],
)
def test_the_origin_is_the_planted_one(real: Real, case: str, step: int | None, row: str, kind: str) -> None:
    found = survey(real("cases") / case, Selection(steps=None if step is None else (step,)))
    assert found.origin is not None and found.exit_code == 1
    assert (found.origin.row.name, found.origin.kind, found.origin.value) == (row, kind, "nan")
    assert found.origin.row.step == step


def test_a_nan_of_the_backward_is_said_to_be_one(real: Real) -> None:
    origin = survey(real("cases") / "where_grad/fault", Selection(steps=(0,))).origin
    assert origin is not None
    assert origin.why.startswith("the forward pass is finite and this is the first of the backward: ")
    assert "derivative of sqrt at 0" in origin.why and "where" in origin.next_step


def test_a_bad_parameter_points_to_the_step_before(real: Real) -> None:
    origin = survey(real("cases") / "where_grad/fault", Selection(steps=(1,))).origin
    assert origin is not None
    assert "collect --step 0" in origin.next_step and "checkpoint" in origin.next_step


def test_the_earliest_step_wins(real: Real) -> None:
    found = survey(real("cases") / "where_grad/fault")
    assert found.origin is not None
    assert (found.origin.row.step, found.origin.row.name) == (0, "Torch.sqrt.0.backward.output.0")
    assert [part.origin is not None for part in found.parts] == [True, True, True]


def test_an_earlier_step_that_cannot_be_read_may_hold_the_origin(real: Real, tmp_path: Path) -> None:
    folder = shutil.copytree(real("cases") / "where_grad/fault", tmp_path / "dump")
    broken = next((folder / "step0").rglob("dump.json"))
    broken.write_text(broken.read_text()[:5000])
    found = survey(folder)
    assert (found.verdict, found.exit_code) == ("not-readable", 2)
    assert found.origin is not None and found.origin.kind == "parameter"
    assert any("cut short" in note for note in found.notes)


def test_statuses_and_formats(real: Real, tmp_path: Path) -> None:
    table = precdiag("nan", real("nan") / "statistics")
    assert table.returncode == 1 and table.stderr == ""
    assert max(map(len, table.stdout.splitlines())) <= 80
    for text in ("NON-FINITE", "Torch.log.0.forward.output.0", "the logarithm of a negative number", MASK):
        assert text in table.stdout
    healthy = precdiag("nan", real("cases") / "identical/ok", "--format", "json")
    assert healthy.returncode == 0
    assert json.loads(healthy.stdout)["verdict"] == "finite"
    for case in (real("cases") / "identical/ok", real("nan") / "xor", real("cases") / "where_grad/fault"):
        Draft202012Validator(SCHEMA).validate(json.loads(precdiag("nan", case, "--format", "json").stdout))
    assert precdiag("nan", tmp_path).returncode == 2
    assert precdiag("nan", real("unfinished") / "kill", "--step", "1").returncode == 2


def test_the_document_has_the_keys_of_the_contract(real: Real) -> None:
    run = precdiag("nan", real("nan") / "md5", "--format", "json", "--limit", "3")
    document = json.loads(run.stdout, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    Draft202012Validator(SCHEMA).validate(document)
    assert list(document) == ["schema", "verdict", "origin", "events", "excluded", "coverage", "notes"]
    assert document["schema"] == "precdiag.nan/1"
    keys = {
        "step",
        "rank",
        "order",
        "name",
        "call",
        "slot",
        "phase",
        "kind",
        "value",
        "module",
        "source",
        "stack",
        "why",
    }
    assert keys <= set(document["origin"])
    assert document["origin"]["source"]["line"] == 9
    assert [event["what"] for event in document["events"]] == ["generated", "propagated", "propagated"]
    assert {"step", "rank", "order", "name", "call", "slot", "phase", "kind", "metrics"} <= set(document["events"][0])
    assert document["excluded"][0].keys() >= {"name", "why"}
    assert document["coverage"]["rows"] == sum(each["rows"] for each in document["coverage"]["by_rank"])


def test_of_a_collection_the_one_side_is_taken_and_two_are_refused(real: Real, tmp_path: Path) -> None:
    shutil.copytree(real("nan") / "statistics", tmp_path / "run/candidate/dump")
    run = precdiag("nan", tmp_path / "run", "--format", "json")
    assert json.loads(run.stdout)["origin"]["name"] == "Torch.log.0.forward.output.0"
    (tmp_path / "run/baseline").mkdir()
    run = precdiag("nan", tmp_path / "run")
    assert run.returncode == 2 and "holds two sides" in run.stderr and "Traceback" not in run.stderr


def test_healthy_dumps_of_every_version_task_and_level_are_finite(real: Real) -> None:
    kinds = sorted(path for path in real("dumps").glob("*/*") if path.is_dir())
    assert len(kinds) > 10
    for kind in kinds:
        found = survey(kind / "C")
        expected = ("not-readable", 2) if kind.name.startswith("xor") else ("finite", 0)
        assert (found.verdict, found.exit_code) == expected, kind
