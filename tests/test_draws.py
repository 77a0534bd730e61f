"""Random draws and choices are no faults, and do not hide one: real dumps of a model with dropout and experts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.judge import Policy, Scrutiny
from precdiag.report import comparison_text

SCRIPT = Path(__file__).parent / "data" / "scripts" / "draws.py"
DROPOUT = "Functional.dropout.0.forward.output.0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("draws")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), "baseline", "seed", "seed_weight", "seed_scaled", "tie"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def against(runs: Path, variant: str, policy: Policy = Policy()) -> Comparison:  # noqa: B008 - a frozen value
    return compare(runs / "baseline", runs / variant, policy)


def beyond(comparison: Comparison) -> tuple[str, str, str] | None:
    assert comparison.rounding is not None
    found = comparison.rounding.beyond
    return None if found is None else (found.row.name, found.row.kind, found.basis)


def test_other_random_numbers_are_named_random_with_what_to_do_and_nothing_behind_them(runs: Path) -> None:
    comparison = against(runs, "seed")
    assert comparison.cause is not None and comparison.rounding is not None
    assert (comparison.cause.row.name, comparison.cause.row.kind) == (DROPOUT, "random")
    assert "align the generators" in comparison.cause.next_step and "p = 0" in comparison.cause.next_step
    assert [row.name for row in comparison.rounding.random] == [DROPOUT]
    assert beyond(comparison) is None and comparison.cause.behind is None


def test_a_weight_that_is_off_behind_dropout_is_named_too(runs: Path) -> None:
    comparison = against(runs, "seed_weight")
    assert comparison.cause is not None and comparison.cause.row.kind == "random"
    assert beyond(comparison) == ("Functional.linear.5.forward.input.1", "parameter", "estimate")
    assert comparison.cause.behind is not None
    assert comparison.cause.behind.name == "Functional.linear.5.forward.input.1"


def test_a_call_that_computes_wrongly_behind_dropout_is_found_by_replay_alone(runs: Path) -> None:
    assert beyond(against(runs, "seed_scaled")) == ("Functional.gelu.0.forward.output.0", "introduced", "arbiter")
    assert beyond(against(runs, "seed_scaled", Policy(scrutiny=Scrutiny(arbiter=False)))) is None


def test_a_near_tie_chosen_the_other_way_is_routing_and_no_fault(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    comparison = against(runs, "tie")
    assert comparison.rounding is not None and beyond(comparison) is None
    assert [row.name for row in comparison.rounding.routing] == ["Torch.topk.0.forward.output.1"]
    text = " ".join(comparison_text(replace(comparison, cross_device=True)).split())
    assert "experts not comparable beyond here" in text
