"""Where the hook finds a step in an untouched script, what it records of it, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import DATA, PLAIN_CALLS, ROOT, SCRIPTS, Run, calls, shape, states, train, warm

from precdiag.collection import SideResult
from precdiag.receipts import read_receipts
from precdiag.rerun import first_difference
from precdiag.session import Request, write_session

DEMO = str(ROOT / "precdiag" / "demo_script.py")
LEVELS, TASKS = ("L0", "L1", "mix"), ("statistics", "tensor")

# shape, level, calls of each of the steps. Counted by hand: a linear at L1 is a forward and a backward row, ReLU too,
# pow and sum as well; SGD makes one add_ a parameter.
STEPS = [
    ("batch_between_steps", "L1", [14, 14, 14]),
    ("two_optimizers", "L1", [24, 24, 24]),
    ("gan", "L1", [72, 72, 72]),
    ("scaler_skips", "L1", [17, 15, 17, 17]),
    ("own_overflow_check", "L1", [14, 10, 14]),
    ("frozen_encoder", "L0", [8, 8, 8]),
    ("evaluation", "L1", [14, 14, 14]),
    ("accumulation", "L1", [34, 34, 34]),
    ("inference", "L1", [3, 3, 3]),
    ("rehearsed", "L1", [14, 14, 14]),
    ("second_loss", "L1", [22, 22, 22]),
]

# Each with the number that its log shows for the first iteration, where it can be known.
FRAMEWORKS = [("transformers", 30001), ("accelerate", None), ("deepspeed", 30001), ("megatron", 30001)]

STUBS = {"PYTHONPATH": str(DATA / "stubs")}


def framework(name: str, **request: object) -> Run:
    return Run((str(SCRIPTS / "frameworks.py"), name), request, STUBS)


# One step more than there are is asked for: it must be missing, or there were more steps than iterations.
RUNS = {
    **{s: shape(s, len(n), level=level, steps=tuple(range(len(n) + 1))) for s, level, n in STEPS},
    **{name: framework(name, steps=(0, 1, 2, 3)) for name, _ in FRAMEWORKS},
    "iter": framework("megatron", steps=(), iterations=(30002,)),
    "iter-unknown": shape("plain", steps=(), iterations=(1,)),
    "compiled": shape("compiled", steps=(0, 1, 2)),
    "at-call": shape("accumulation", 1, steps=(0, 1, 2), step_at="call"),
    "at-optimizer": shape("accumulation", 1, steps=(0, 1, 2), step_at="optimizer"),
    "second": shape("nested", 1, level="L0", model="1"),
    "two-models": shape("two_optimizers", 1, level="L0"),
    "inference-L0": shape("inference", 1, level="L0"),
    "no-such-model": shape("plain", 1, level="L0", model="encoder"),
    "manual": shape("by_hand", env={"PYTHONPATH": str(ROOT)}, step_at="manual", steps=(1,), level="L0"),
    **{
        f"demo-{level}-{task}": Run((DEMO, "--width=64"), {"steps": (0, 1), "level": level, "task": task})
        for level in LEVELS
        for task in TASKS
    },
    "forked": shape("forked", steps=(0, 1)),
    "md5-a": shape("in_place", 1, summary="md5"),
    "md5-b": shape("in_place", 1, summary="md5"),
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SideResult]:
    return warm(tmp_path_factory, "steps", runs)


def runs(folder: Path) -> dict[str, Run]:
    foreign = shape("own_debugger", env={"TEST_OUT": str(folder / "theirs")})
    ranks = shape("forked_ranks", env={"TEST_STORE": str(folder / "store")}, steps=(0, 2), ranks=(1,))
    sharded = shape("sharded", env={"TEST_STORE": str(folder / "sharded-store")}, steps=(0, 1, 2))
    return {**RUNS, "foreign": foreign, "ranks": ranks, "sharded": sharded}


@pytest.mark.parametrize(("name", "counts"), [(name, counts) for name, _, counts in STEPS])
def test_a_step_is_the_frameworks_iteration(name: str, counts: list[int], sides: dict[str, SideResult]) -> None:
    side = sides[name]
    assert side.ended.status == 0
    assert [step.calls for step in side.proof.steps] == [*counts, 0]
    assert states(side) == ["complete"] * len(counts) + ["missing"]
    between = [name for name in calls(side, 1) if "softmax" in name or "cumsum" in name or "ones" in name]
    assert between == []


def test_what_is_called_before_the_model_is_said(sides: dict[str, SideResult]) -> None:
    assert "called before the model, not recorded: Sequential" in sides["frozen_encoder"].proof.notes


def test_a_compiled_model_is_collected_as_far_as_msprobe_sees_and_that_is_said(sides: dict[str, SideResult]) -> None:
    side = sides["compiled"]
    assert side.verified, side.proof.reason
    assert calls(side, 0) == calls(side, 2)
    assert any(note.startswith("the model is compiled") for note in side.proof.notes)


def test_a_sharded_model_is_collected_and_what_a_parameter_is_there_is_said(sides: dict[str, SideResult]) -> None:
    side = sides["sharded"]
    assert side.verified, side.proof.reason or (side.folder / "log.txt").read_text()
    assert calls(side, 0) == calls(side, 2)
    assert any("sharded (FSDP)" in note for note in side.proof.notes)
    assert not [each for each in side.proof.receipts[0]["steps"][0]["parameters"].values() if "unknown" in each]


def test_step_at_says_what_ends_a_step(sides: dict[str, SideResult]) -> None:
    assert states(sides["at-call"]) == ["complete"] * 3
    assert states(sides["at-optimizer"]) == ["complete", "missing", "missing"]


def test_model_narrows_what_is_hooked(sides: dict[str, SideResult]) -> None:
    assert sides["second"].verified, sides["second"].proof.reason
    forward = [name for name in calls(sides["second"], 0) if ".forward." in name]
    assert forward == ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0", "Module.2.Linear.forward.0"]


def test_two_models_are_hooked_as_a_list_and_inference_hooks_what_it_calls(sides: dict[str, SideResult]) -> None:
    def forward(name: str) -> list[str]:
        return [each.partition("Module.")[2] for each in calls(sides[name], 0) if ".forward." in each]

    both, one = forward("two-models"), forward("inference-L0")
    assert one == ["0.Linear.forward.0", "1.ReLU.forward.0", "2.Linear.forward.0"]
    assert both == [f"{place}.{name}" for place in (0, 1) for name in one]


def test_a_model_that_is_not_there_is_named_and_the_script_runs_on(sides: dict[str, SideResult]) -> None:
    side = sides["no-such-model"]
    assert side.ended.status == 0
    assert side.proof.reason == "RuntimeError: --model encoder: Sequential has no such submodule"
    assert "loss" in (side.folder / "log.txt").read_text()


@pytest.mark.parametrize(("name", "number"), FRAMEWORKS)
def test_a_skipped_iteration_of_a_framework_ends(name: str, number: int | None, sides: dict[str, SideResult]) -> None:
    assert [step.calls for step in sides[name].proof.steps] == [14, 12, 14, 0]
    assert sides[name].proof.steps[0].iteration == number
    assert sides[name].proof.receipts[0].get("offset") == number


def test_a_step_is_selected_by_the_logs_own_number(sides: dict[str, SideResult]) -> None:
    side = sides["iter"]
    assert side.verified, side.proof.reason
    assert [(step.step, step.iteration, step.calls) for step in side.proof.steps] == [(1, 30002, 12)]
    assert side.proof.receipts[0]["offset"] == 30001


def test_the_logs_number_of_a_plain_script_is_not_guessed(sides: dict[str, SideResult]) -> None:
    side = sides["iter-unknown"]
    assert not side.verified
    assert any("cannot be known" in note for note in side.proof.notes)


def test_the_hook_stands_back_from_a_debugger_of_the_scripts_own(sides: dict[str, SideResult]) -> None:
    side = sides["foreign"]
    assert side.verified, side.proof.reason
    assert side.proof.dump == side.folder.parent / "theirs"
    assert states(side) == ["complete", "complete"]
    assert not list((side.folder / "dump").iterdir())
    assert any("own PrecisionDebugger" in note for note in side.proof.notes)


def test_a_forked_child_starts_again_and_keeps_the_parents_dump(sides: dict[str, SideResult]) -> None:
    side = sides["forked"]
    assert side.verified, side.proof.reason
    assert [step.calls for step in side.proof.steps] == [PLAIN_CALLS] * 4
    assert len(list(side.proof.dump.glob("step0/proc*"))) == 2


def test_one_rank_of_two(sides: dict[str, SideResult]) -> None:
    side = sides["ranks"]
    assert side.verified, side.proof.reason
    assert [(step.step, step.rank) for step in side.proof.steps] == [(0, 1), (2, 1)]
    assert [path.name for path in side.proof.dump.glob("step0/*")] == ["rank1"]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The demo's training instrumented by hand, at every level and task: name to folder."""
    root = tmp_path_factory.mktemp("hand")
    folders = {f"demo-{level}-{task}": root / f"{level}-{task}" for level in LEVELS for task in TASKS}
    for (level, task), folder in zip(((lv, t) for lv in LEVELS for t in TASKS), folders.values(), strict=True):
        request = Request(steps=(0, 1), level=level, task=task)  # type: ignore[arg-type]
        write_session(folder, request, side="hand", identity="x")
    words = [sys.executable, str(SCRIPTS / "by_hand.py"), "64", *(str(f / "msprobe.json") for f in folders.values())]
    subprocess.run(words, check=True, capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folders


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("task", TASKS)
def test_untouched_and_hand_instrumented_dumps_are_identical(
    level: str, task: str, sides: dict[str, SideResult], by_hand: dict[str, Path]
) -> None:
    side, hand = sides[f"demo-{level}-{task}"], by_hand[f"demo-{level}-{task}"]
    assert side.verified, side.proof.reason
    assert first_difference(hand / "dump", side.proof.dump) is None
    for step in (0, 1):
        (ours,) = side.proof.dump.glob(f"step{step}/*/stack.json")
        (theirs,) = (hand / "dump").glob(f"step{step}/*/stack.json")
        assert source_lines(ours) == source_lines(theirs)
        assert (ours.parent / "construct.json").read_text() == (theirs.parent / "construct.json").read_text()


def source_lines(stack: Path) -> list[tuple[list[str], list[str]]]:
    """The calls and the source text of every frame inside main(), as the two scripts are not the same file."""
    found = []
    for names, frames in json.loads(stack.read_text()).values():
        inner = [place for place, frame in enumerate(frames) if ", in main," in frame]
        found.append((names, [frame.split("\n")[1] for frame in frames[: inner[0] + 1 if inner else None]]))
    return found


def test_checksums_of_tensors_written_in_place_are_those_of_the_call(sides: dict[str, SideResult]) -> None:
    one, two = sides["md5-a"], sides["md5-b"]
    assert one.verified and two.verified
    assert first_difference(one.proof.dump, two.proof.dump) is None
    assert len(calls(one, 0)) > 100


def test_step_at_manual_takes_its_settings_from_collect(sides: dict[str, SideResult]) -> None:
    side = sides["manual"]
    assert side.verified, side.proof.reason
    assert "Module.0.Linear.forward.0" in calls(side, 1)


def test_a_script_says_itself_where_a_step_is_and_a_second_start_is_refused(tmp_path: Path) -> None:
    environ = {"TEST_OUT": str(tmp_path / "mine"), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(train("by_hand"), env=environ, capture_output=True, text=True, timeout=180, check=True)
    dumps = sorted((tmp_path / "mine/dump").glob("*/*/dump.json"))
    assert [path.parent.parent.name for path in dumps] == ["step0", "step1", "step2"]
    (receipt,) = read_receipts(tmp_path / "mine")
    assert [step["state"] for step in receipt["steps"]] == ["complete"] * 3
    assert "refused: collection into" in run.stdout
    assert "one PrecisionDebugger per process" in run.stdout.replace("\n", " ")
