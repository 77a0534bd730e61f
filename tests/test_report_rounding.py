"""The block that people read where a run differs between two devices, at 80 columns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import forward, scalar, tensor, write

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.judge import Policy
from precdiag.report import comparison_text

Real = Callable[[str], Path]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(comparison: Comparison) -> str:
    """What the report says, as one line: where a line breaks is not what these tests hold."""
    return " ".join(comparison_text(comparison).split())


def across(real: Real, name: str) -> Comparison:
    folder = real("crossdevice") / name
    return replace(compare(folder.parent / "gpu", folder, Policy()), cross_device=True)


def test_the_fault_stands_above_the_first_cause_with_its_error_and_basis(real: Real) -> None:
    text = shown(across(real, "float32/npu_gelu"))
    assert text.index("BEYOND ROUNDING") < text.index("first cause")
    assert "parameters 35 of 35, integer inputs (tokens, labels, masks) 1 of 1" in text
    assert "onset Module.layers.0.norm1.RMSNorm.forward.0.output.0: differs by rounding, no fault by itself" in text
    assert "row Module.layers.1.act.Act.forward.0.output.0" in text
    assert "4.22 u in → 3.45e+03 u, u = 2^-24 (fp32) basis estimate" in text


def test_a_parameter_that_differs_is_counted(real: Real) -> None:
    text = shown(across(real, "bfloat16/npu_weight"))
    assert "parameters 34 of 35" in text
    assert "error 2.53 u, u = 2^-8 (bf16)" in text


def test_nothing_beyond_rounding_at_half_precision_is_a_finding_with_its_next_command(real: Real) -> None:
    text = shown(across(real, "bfloat16/npu_none"))
    assert "nothing beyond rounding at bf16" in text
    assert "smaller faults cannot be seen: repeat the step in fp32" in text
    assert "float32 on both sides: precdiag collect --task tensor --level mix --step 0" in text
    assert text.startswith("DIVERGED")


def test_nothing_beyond_rounding_in_single_precision_asks_for_no_repetition(real: Real) -> None:
    text = shown(across(real, "float32/npu_none"))
    assert "every row is within what rounding explains at fp32" in text and "repeat the step" not in text


def test_the_profile_marks_the_jump_and_nothing_else(real: Real) -> None:
    lines = comparison_text(across(real, "float32/npu_gelu")).splitlines()
    profile = [line for line in lines if "▪" in line]
    assert [line.split()[0] for line in profile if line.endswith("jump")] == ["layers.1"]
    assert [line.split()[0] for line in profile] == ["layers.0", "layers.1", "layers.2", "layers.3", "norm", "head"]
    assert max(map(len, lines)) <= 80


def test_tf32_is_named_with_the_switches_to_turn_off(real: Real) -> None:
    text = shown(across(real, "float32/npu_tf32"))
    assert "looks like TF32 or HF32 on one side: switch it off (allow_tf32, allow_hf32)" in text


def test_one_device_shows_no_block_but_says_how_to_get_it(real: Real) -> None:
    folder = real("crossdevice") / "bfloat16"
    comparison = compare(folder / "gpu", folder / "npu_none", Policy())
    assert not comparison.cross_device
    text = shown(comparison)
    assert "nothing beyond rounding" not in text
    said = f"next if the sides ran on two devices: precdiag compare {folder / 'gpu'}"
    assert said.replace(" ", "") in text.replace(" ", "")  # a long path is broken where the line ends


def test_a_collection_from_two_kinds_of_device_shows_it_by_itself(real: Real, tmp_path: Path) -> None:
    sides = {}
    for side, dump, device in (("baseline", "gpu", "cuda: NVIDIA A100"), ("candidate", "npu_none", "npu: Ascend910B")):
        shutil.copytree(real("crossdevice") / "bfloat16" / dump, tmp_path / side / "dump")
        sides[side] = {"environment": {"device": device}}
    (tmp_path / "collection.json").write_text(json.dumps({"sides": sides}))
    assert compare(tmp_path / "baseline", tmp_path / "candidate", Policy()).cross_device
    sides["candidate"]["environment"]["device"] = "cuda: NVIDIA H100"
    (tmp_path / "collection.json").write_text(json.dumps({"sides": sides}))
    assert not compare(tmp_path / "baseline", tmp_path / "candidate", Policy()).cross_device


def test_an_operator_of_the_npu_on_one_side_shows_it_by_itself(tmp_path: Path) -> None:
    linear = {"Functional.linear.0.forward": forward([tensor()], [tensor(high=1.01)])}
    fused = {"NPU.npu_rms_norm.0.forward": forward([tensor(), scalar(1.0)], [tensor()])}
    one = write(tmp_path / "one", {"Functional.linear.0.forward": forward([tensor()], [tensor()])})
    other = write(tmp_path / "other", linear | fused)
    assert compare(one, other, Policy()).cross_device


def test_brackets_and_colons_in_a_name_are_no_markup(tmp_path: Path) -> None:
    name = "Module.[red]x[/].:smile:.Lin.forward.0"
    sides = [write(tmp_path / side, {name: forward([tensor(low)], [tensor()])}) for side, low in (("b", -1), ("c", -9))]
    assert f"row {name}.input.0" in shown(compare(*sides, Policy()))
