"""collect --update-stats: what an optimizer's step did to each parameter, and what compare says of an update by it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from collecting import SCRIPTS, Run, warm

from precdiag.collection import SideResult
from precdiag.compare import Comparison, compare
from precdiag.judge import Policy
from precdiag.updates import first_difference as first_of_update

SCRIPT = str(SCRIPTS / "updates.py")
SIDES = {
    "adamw": ("AdamW",),
    "adamw-decay": ("AdamW", "decay=0.2"),
    "adamw-lr": ("AdamW", "lr=0.02"),
    "sgd": ("SGD",),
    "sgd-lr": ("SGD", "lr=0.02"),
    "sgd-lr-of-last": ("SGD", "last=0.02"),
    "clipped": ("SGD", "clip=0.05"),
    "clipped-more": ("SGD", "clip=0.01"),
    "not-clipped": ("SGD", "clip=1000"),
    "scaled": ("SGD", "scale=1024.0"),
    "skipped": ("SGD", "scale=1024.0", "overflow=1"),
    "bad": ("SGD", "bad=1"),
    "master": ("SGD", "main_grad=1"),
}
PLAIN = ("adamw", "clipped", "scaled")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SideResult]:
    def runs(folder: Path) -> dict[str, Run]:
        def run(words: tuple[str, ...], level: str, on: bool) -> Run:
            return Run((SCRIPT, *words), {"steps": (0, 1), "level": level, "update_stats": on})

        found = {name: run(words, "L0", True) for name, words in SIDES.items()}
        for name in PLAIN:
            found |= {f"{name}-{on}": run(SIDES[name], "mix", on == "on") for on in ("on", "off")}
        return found | {"sgd-off": run(("SGD",), "L0", False), "sgd-lr-off": run(("SGD", "lr=0.02"), "L0", False)}

    return warm(tmp_path_factory, "updates", runs)


def written(side: SideResult, step: int) -> dict[str, Any]:
    (file,) = (side.folder / "receipts" / "updates").glob(f"step{step}.*.json")
    found = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (found["schema"], found["step"]) == ("precdiag.updates/1", step)
    parameters: dict[str, Any] = found["parameters"]
    assert list(parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    return parameters


def compared(folder: Path, sides: dict[str, SideResult], baseline: str, candidate: str) -> Comparison:
    """Compare two runs as the two sides of one collection."""
    entries = {}
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        shutil.copytree(sides[side].folder, folder / name)
        entries[name] = {"verified": True}
    (folder / "collection.json").write_text(json.dumps({"sides": entries}))
    found = compare(folder / "baseline", folder / "candidate", Policy())
    assert found.cause is not None
    assert (found.cause.row.kind, found.cause.row.step) == ("update", 1)
    return found


def told(found: Comparison) -> str:
    (note,) = (note for note in found.notes if note.startswith("optimizer of"))
    return note


@pytest.mark.parametrize("name", PLAIN)
def test_the_dump_is_the_same_with_and_without_update_statistics(name: str, sides: dict[str, SideResult]) -> None:
    on, off = sides[f"{name}-on"], sides[f"{name}-off"]
    assert on.verified and off.verified
    assert not (off.folder / "receipts" / "updates").exists()
    for step in (0, 1):
        assert written(on, step)
        (one,), (two,) = ((side.proof.dump).glob(f"step{step}/*") for side in (on, off))
        for file in ("dump.json", "stack.json", "construct.json"):
            left, right = (json.loads((each / file).read_text()) for each in (one, two))
            left.pop("dump_data_dir", None)
            right.pop("dump_data_dir", None)
            assert left == right


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        ("adamw", "adamw-lr", "of 0.weight the learning rate differs first: 0.01 → 0.02"),
        ("sgd", "sgd-lr", "of 0.weight the learning rate differs first: 0.01 → 0.02"),
        ("sgd", "sgd-lr-of-last", "of 2.weight the learning rate differs first: 0.01 → 0.02"),
        ("adamw", "adamw-decay", "of 0.weight the parameter after differs first: "),
    ],
)
def test_a_note_names_what_differs_first(
    baseline: str, candidate: str, said: str, sides: dict[str, SideResult], tmp_path: Path
) -> None:
    found = compared(tmp_path, sides, baseline, candidate)
    assert told(found).startswith(f"optimizer of step 0: {said}")
    assert ("weight decay" in told(found)) == ("decay" in candidate)
    assert found.cause is not None
    assert "--update-stats" not in found.cause.next_step


def test_a_gradient_clipped_otherwise_is_named_as_such(sides: dict[str, SideResult], tmp_path: Path) -> None:
    found = compared(tmp_path, sides, "clipped", "clipped-more")
    assert "of 0.weight the clip factor differs first" in told(found)
    one, two, three = (written(sides[name], 0)["0.weight"] for name in ("clipped", "clipped-more", "not-clipped"))
    raw = written(sides["sgd"], 0)["0.weight"]
    assert raw["clip_factor"] is None and three["clip_factor"] == 1.0
    assert 0 < one["clip_factor"] < 1
    assert two["clip_factor"] == pytest.approx(one["clip_factor"] / 5, rel=1e-5)
    assert one["gradient"] == two["gradient"] == raw["gradient"]  # as they were before they were clipped


def test_a_record_holds_norms_before_and_after(sides: dict[str, SideResult]) -> None:
    first, second = (written(sides["adamw"], step)["0.weight"] for step in (0, 1))
    assert first["state_before"] == {}
    assert first["state_after"] == second["state_before"]
    assert set(first["state_after"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert first["state_after"]["exp_avg"] == pytest.approx(0.1 * first["gradient"], rel=1e-5)
    assert first["parameter_before"] != first["parameter_after"] == second["parameter_before"]
    assert (first["loss_scale"], first["clip_factor"], first["master_before"]) == (1.0, None, None)


def test_main_gradient_and_master_are_taken_where_they_are(sides: dict[str, SideResult]) -> None:
    record = written(sides["master"], 0)["0.weight"]
    assert record["gradient"] == pytest.approx(3.0 * math.sqrt(32))
    assert record["master_before"] == pytest.approx(2 * record["parameter_before"])


def test_a_scaler_gives_the_loss_scale_and_its_skipped_step_is_told(
    sides: dict[str, SideResult], tmp_path: Path
) -> None:
    assert written(sides["scaled"], 0)["0.weight"]["loss_scale"] == 1024.0
    found = compared(tmp_path, sides, "scaled", "skipped")
    assert told(found).startswith("optimizer of the step before, candidate: no step of it was recorded: skipped")


def test_numbers_that_are_none_are_strings(sides: dict[str, SideResult]) -> None:
    record = written(sides["bad"], 0)["0.weight"]
    assert (record["gradient"], record["parameter_after"]) == ("nan", "nan")


def test_without_update_statistics_compare_says_how_to_get_them(sides: dict[str, SideResult], tmp_path: Path) -> None:
    found = compared(tmp_path, sides, "sgd-off", "sgd-lr-off")
    assert found.cause is not None
    assert "--update-stats" in found.cause.next_step
    assert not any(note.startswith("optimizer of") for note in found.notes)


def test_the_first_quantity_is_told_in_the_order_of_the_update() -> None:
    one = {"gradient": 1.0, "clip_factor": None, "loss_scale": 2.0, "learning_rate": 0.1, "parameter_after": "nan"}
    assert first_of_update(one, one | {"clip_factor": 1.0}) is None
    for name, value in (("loss_scale", 4.0), ("clip_factor", 0.5), ("gradient", "inf")):
        found = first_of_update(one, one | {name: value, "learning_rate": 0.2, "parameter_after": 1.0})
        assert found is not None and found.quantity == name
    state = [{"state_before": {"exp_avg": 1.0}}, {"state_before": {}, "learning_rate": 1.0}]
    found = first_of_update(state[0] | {"learning_rate": 1.0}, state[1])
    assert found is not None and str(found) == "the state before (exp_avg) differs first: 1 → none"
