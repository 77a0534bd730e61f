"""What of two dumps is compared: levels, dumps collected in part, --include, --exclude and --phase, always counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import backward, forward, tensor, write

from precdiag.compare import Calls, compare
from precdiag.comparison import Comparison
from precdiag.errors import UsageError
from precdiag.judge import Policy
from precdiag.view import View

Real = Callable[[str], Path]


def looked(real: Real, left: str, right: str, view: View | None = None) -> Comparison:
    """Compare two of the real dumps of one run: levels L0, L1 and mix; a list, a scope."""
    return compare(real("partial") / left, real("partial") / right, Policy(), calls=Calls(view=view or View()))


@pytest.mark.parametrize(
    ("small", "large", "compared", "note"),
    [
        ("l0", "mix", 31, "level L0, the candidate mix"),
        ("l1", "mix", 44, "level L1, the candidate mix"),
        ("list1", "l1", 24, "8 calls are not in the baseline's dump, which was collected in part"),
        ("scope1", "l1", 10, "11 calls are not in the baseline's dump"),
        ("listmix", "mix", 4, "26 calls are not in the baseline's dump"),
        ("scope0", "l0", 8, "10 calls are not in the baseline's dump"),
    ],
)
def test_the_calls_of_the_smaller_dump_are_compared_and_coverage_says_so(
    real: Real, small: str, large: str, compared: int, note: str
) -> None:
    result = looked(real, small, large)
    assert (result.verdict, result.coverage.compared) == ("no-divergence", compared)
    assert result.coverage.filtered > 0
    assert result.coverage.baseline_only == result.coverage.candidate_only == 0
    assert any(note in text for text in result.notes)
    other = looked(real, large, small)
    assert (other.verdict, other.coverage.compared) == ("no-divergence", compared)


def test_levels_that_record_nothing_alike_are_not_comparable(real: Real) -> None:
    result = looked(real, "l0", "l1")
    assert (result.verdict, result.exit_code) == ("not-comparable", 2)
    assert any("nothing in common" in note for note in result.notes)


def test_a_dump_that_merely_ends_early_is_no_filtered_one(real: Real) -> None:
    result = looked(real, "l1", "prefix")
    assert result.cause is not None and result.cause.row.kind == "structure"
    assert result.coverage.filtered == 0


def test_a_fault_in_a_filtered_dump_is_found_under_its_own_name(real: Real, tmp_path: Path) -> None:
    small = real("partial") / "scope1/step0/rank/dump.json"
    document = json.loads(small.read_text(encoding="utf-8"))
    document["data"]["Functional.linear.2.forward"]["input_args"][1]["md5"] = "00000000"
    (tmp_path / "step0/rank").mkdir(parents=True)
    (tmp_path / "step0/rank/dump.json").write_text(json.dumps(document), encoding="utf-8")
    result = compare(real("partial") / "l1", tmp_path, Policy())
    assert result.cause is not None
    assert (result.cause.row.name, result.cause.row.how) == ("Functional.linear.2.forward.input.1", "name")


def test_one_call_missing_from_one_side_is_a_difference_and_not_filtered(tmp_path: Path) -> None:
    call = forward([tensor()], [tensor()])
    data = {f"Torch.f{at}.0.forward": call for at in range(12)}
    write(tmp_path / "b", data)
    write(tmp_path / "c", {name: entry for name, entry in data.items() if name != "Torch.f5.0.forward"})
    result = compare(tmp_path / "b", tmp_path / "c", Policy())
    assert result.cause is not None and result.cause.row.name == "Torch.f5.0.forward"


def test_a_call_of_the_same_name_elsewhere_does_not_make_a_missing_one_filtered(tmp_path: Path) -> None:
    """Counters name other calls on the two sides: what construct.json knows and dump.json holds was not left out."""
    first, extra = forward([tensor()], [tensor()]), forward([tensor(high=5.0)], [tensor(high=6.0)])
    module = {"Module.m.M.forward.0": first}
    left = {"Torch.a.0.forward": extra, "Torch.a.1.forward": first} | module
    right = {"Torch.a.0.forward": first} | module
    inside = {"construct": {"Torch.a.0.forward": "Module.m.M.forward.0"}, "level": "mix"}
    write(tmp_path / "b", left, **inside)
    write(tmp_path / "c", right, **inside)
    result = compare(tmp_path / "b", tmp_path / "c", Policy())
    assert result.cause is not None and result.cause.row.name == "Torch.a.0.forward"
    assert result.coverage.filtered == 0


@pytest.mark.parametrize(
    ("view", "compared"),
    [
        (View(include=("Module.2",)), 16),
        (View(include=("Module.2",), phase="forward"), 8),
        (View(include=("*linear.1*",)), 8),
        (View(exclude=("Module",)), 14),
        (View(include=("Functional",), exclude=("*gelu*",)), 24),
        (View(phase="parameters_grad"), 6),
    ],
)
def test_what_is_not_asked_for_is_counted_as_filtered(real: Real, view: View, compared: int) -> None:
    result = looked(real, "mix", "mix", view)
    whole = looked(real, "mix", "mix").coverage.compared
    assert (result.verdict, result.coverage.compared) == ("no-divergence", compared)
    assert result.coverage.filtered == whole - compared


def test_a_view_that_leaves_nothing_is_a_usage_error(real: Real) -> None:
    with pytest.raises(UsageError, match="leave no call"):
        looked(real, "mix", "mix", View(include=("Module.7",)))


def test_a_difference_outside_the_view_is_neither_cause_nor_symptom(tmp_path: Path) -> None:
    def data(y: float, g: float) -> dict[str, object]:
        return {
            "Torch.a.0.forward": forward([tensor()], [tensor(high=y)]),
            "Torch.a.0.backward": backward([tensor()], [tensor(high=g)]),
        }

    write(tmp_path / "b", data(1.0, 1.0))
    write(tmp_path / "c", data(2.0, 2.0))
    result = compare(tmp_path / "b", tmp_path / "c", Policy(), calls=Calls(view=View(phase="backward")))
    assert result.cause is not None and result.cause.row.name == "Torch.a.0.backward.output.0"
    assert (result.symptom_count, result.coverage.filtered) == (0, 2)
