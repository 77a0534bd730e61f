"""Coarse to fine: from nothing but two commands to the call, within limits, to be gone on with."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import forward, tensor, write
from replay import place, replaying
from test_cli import precdiag
from test_localize import CHAINS, line_of
from trainings import FAULTS, SCRIPT, command

from precdiag import campaign
from precdiag.collect import collect
from precdiag.collection import SideCommand
from precdiag.errors import PrecdiagError, UnreadableError, UsageError
from precdiag.localize import Localization
from precdiag.search import search
from precdiag.session import Request, write_session
from precdiag.settings import CollectSettings, LocalizeSettings
from precdiag.sides import Given

Asked = list[tuple[Request, tuple[str, ...]]]


def quiet(label: str, done: int, total: int) -> None:
    """No progress is shown."""


def settings(folder: Path, **more: Any) -> LocalizeSettings:
    return LocalizeSettings(out=str(folder), **more)


def collecting(**sides: str) -> CollectSettings:
    """The configuration with each side's command."""
    return CollectSettings.model_validate(
        {side: {"command": text} for side, text in sides.items()} | {"parallel": True}
    )


def two(fault: str) -> CollectSettings:
    return collecting(baseline=f"{sys.executable} {SCRIPT} none", candidate=f"{sys.executable} {SCRIPT} {fault}")


@pytest.fixture
def asked(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What was asked for of the small transformer's runs, which are replayed."""
    requests: Asked = []
    monkeypatch.setattr(campaign, "collect", replaying(lambda side: trained / side.words[2], requests))
    return requests


# -- for real


def test_the_two_commands_alone_lead_to_the_call_and_a_finished_stage_is_not_run_again(tmp_path: Path) -> None:
    sides = {"baseline": {"command": f"{sys.executable} {SCRIPT} none"}, "parallel": True}
    sides["candidate"] = {"command": f"{sys.executable} {SCRIPT} batch"}
    (tmp_path / "precdiag.yaml").write_text(json.dumps({"collect": sides}))
    run = precdiag("localize", "--run", "--out", "s", "--format", "json", cwd=tmp_path)
    found = json.loads(run.stdout)
    assert run.returncode == 1, run.stderr
    assert [stage["name"] for stage in found["stages"]] == ["01-curves", "02-window", "03-tensor"]
    cause = found["first_cause"]
    assert (found["verdict"], found["step"], found["reproduced"]) == ("diverged", 2, True)
    assert (cause["step"], cause["kind"], cause["call"]) == (1, "input", "Module.words.Embedding.forward.0")
    assert cause["source"]["line"] == line_of("x = self.words(words)")
    assert cause["metrics"]["mismatched"] > 0 and found["next"] == []
    said = [line for line in run.stderr.splitlines() if "precdiag collect" in line]
    assert len(said) == 3 and "--task tensor" in said[2] and "(baseline, candidate)" in said[0]
    shutil.rmtree(tmp_path / "s/03-tensor/candidate")
    again = precdiag("localize", "--continue", "s", "--format", "json", cwd=tmp_path)
    said = [line for line in again.stderr.splitlines() if "precdiag collect" in line]
    assert len(said) == 1 and "03-tensor" in said[0] and said[0].endswith("(candidate)")
    assert json.loads(again.stdout)["first_cause"] == cause


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "batch"])
def test_every_other_planted_fault_is_reached_with_real_processes_too(tmp_path: Path, fault: str) -> None:
    found = search(Given(), settings(tmp_path / "s"), two(fault), quiet)
    verdict, step, dump_step, kind, call, line = CHAINS[fault]
    assert found.seen.culprit is not None and found.seen.culprit.source is not None
    assert (found.verdict, found.step, found.exit_code) == (verdict, step, 1)
    row = found.seen.culprit.row
    assert (row.step, found.seen.culprit.kind, row.call) == (dump_step, kind, call)
    assert found.seen.culprit.source.line == line_of(line)
    assert found.curves.repeat is None or found.curves.repeat.same is True


def test_a_run_of_which_every_step_is_there_is_not_waited_for(tmp_path: Path) -> None:
    script = SideCommand((sys.executable, str(SCRIPT.with_name("train.py")), "plain", "1000000"))
    left = collect(tmp_path / "x", Request(steps=(0, 2)), {"candidate": script}, quiet=True, no_longer=True)
    side = left.sides[0]
    assert (left.status, side.verified, side.ended.why) == (0, True, "ended when every step was there")
    assert [(step.step, step.state) for step in side.proof.steps] == [(0, "complete"), (2, "complete")]


def test_a_signal_is_no_finding() -> None:
    ended = SimpleNamespace(why="ended by signal 2", status=130)
    with pytest.raises(PrecdiagError, match="interrupted") as error:
        campaign.pass_signal_on(SimpleNamespace(sides=[SimpleNamespace(ended=ended)]), "precdiag …")  # type: ignore[arg-type]
    assert error.value.exit_code == 130


# -- replayed


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_reached_from_the_two_commands(tmp_path: Path, asked: Asked, fault: str) -> None:
    found = search(Given(), settings(tmp_path / "s"), two(fault), quiet)
    verdict, step, dump_step, kind, call, line = CHAINS[fault]
    assert found.seen.culprit is not None and found.seen.culprit.source is not None
    assert (found.verdict, found.step) == (verdict, step)
    row = found.seen.culprit.row
    assert (row.step, found.seen.culprit.kind, row.call) == (dump_step, kind, call)
    assert found.seen.culprit.source.line == line_of(line)
    assert asked[0][0].steps == (0,) and asked[0][0].summary == "md5"
    assert len(asked) <= 3 and sum(len(request.steps) for request, _ in asked) <= 4


def test_logs_that_are_there_are_not_made_again(trained: Path, tmp_path: Path, asked: Asked) -> None:
    logs = Given(candidate_log=trained / "optimizer/log.txt", baseline_log=trained / "none/log.txt")
    found = search(logs, settings(tmp_path / "s"), two("optimizer"), quiet)
    assert [request.steps for request, _ in asked] == [(0, 5, 6)]
    assert found.seen.culprit is not None and found.seen.culprit.row.step == 5
    assert found.curves.repeat is not None and found.curves.repeat.same is True


def test_a_healthy_pair_costs_one_stage(tmp_path: Path, asked: Asked) -> None:
    found = search(Given(), settings(tmp_path / "s"), two("none"), quiet)
    assert (found.verdict, found.exit_code, len(asked)) == ("healthy", 0, 1)


def test_one_side_alone_leads_to_its_nan(tmp_path: Path, asked: Asked) -> None:
    alone = collecting(candidate=f"{sys.executable} {SCRIPT} backward")
    found = search(Given(), settings(tmp_path / "s"), alone, quiet)
    assert found.seen.culprit is not None and found.seen.culprit.by == "nan"
    assert found.seen.culprit.row.call == "Tensor.__mul__.1.forward"
    assert {sides for _, sides in asked} == {("candidate",)}


def test_two_devices_are_searched_from_modules_down(tmp_path: Path, asked: Asked) -> None:
    found = search(Given(), settings(tmp_path / "s", cross_device=True), two("other:scale"), quiet)
    assert [(request.level, request.task, request.list) for request, _ in asked[:2]] == [
        ("L0", "statistics", ()),
        ("mix", "statistics", ("Module.blocks.1.up.Linear.forward.0",)),
    ]
    assert found.seen.culprit is not None and found.seen.culprit.by == "beyond rounding"
    assert (found.seen.culprit.row.module, found.seen.culprit.kind) == ("blocks.1.up", "parameter")
    assert (found.verdict, found.step) == ("diverged", 1)
    assert asked[-1][0].task == "tensor" and asked[-1][0].steps == (0,)


def test_a_healthy_port_to_another_device_is_healthy_and_float32_is_tried_where_it_is_known(
    tmp_path: Path, asked: Asked, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(Given(), settings(tmp_path / "s", cross_device=True), two("other:none"), quiet)
    assert (found.verdict, found.seen.culprit, len(asked)) == ("healthy", None, 1)
    assert any("by no more than rounding" in note for note in found.notes)
    ran: list[tuple[str, ...]] = []

    def source(side: SideCommand) -> Path:
        ran.append(side.words[3:])
        return trained / side.words[2]

    monkeypatch.setattr(campaign, "collect", replaying(source, asked))
    finer = settings(tmp_path / "t", cross_device=True, float32="--dtype float32")
    search(Given(), finer, two("other:none"), quiet)
    assert ran == [(), (), ("--dtype", "float32"), ("--dtype", "float32")]


def test_a_side_that_cannot_be_launched_here_is_waited_for(trained: Path, tmp_path: Path, asked: Asked) -> None:
    logs = Given(candidate_log=trained / "batch/log.txt", baseline_log=trained / "none/log.txt")
    here = collecting(candidate=f"{sys.executable} {SCRIPT} batch")
    found = search(logs, settings(tmp_path / "s"), here, quiet)
    assert (found.verdict, found.seen.culprit) == ("diverged", None)
    assert found.next[0].startswith(f"precdiag collect --out {tmp_path}/s/01-window --side baseline --step 0-1 ")
    assert found.next[1] == f"precdiag localize --continue {tmp_path}/s"
    for stage, request in (("01-window", asked[0][0]), ("02-tensor", None)):
        if request is None:
            assert "02-tensor --side baseline" in found.next[0]
            request = asked[-1][0]
        place(trained / "none", tmp_path / "s" / stage / "baseline", request, "baseline")
        found = search(Given(), settings(tmp_path / "s"), CollectSettings(parallel=True), quiet, go_on=tmp_path / "s")
        assert found.seen.culprit is not None and found.seen.culprit.kind == "input"
    assert found.next == () and [name for name, _ in found.stages] == ["01-window", "02-tensor"]


def test_a_frozen_dump_is_met_by_what_it_holds(trained: Path, tmp_path: Path, asked: Asked) -> None:
    given = Given(
        candidate_log=trained / "batch/log.txt",
        baseline_log=trained / "none/log.txt",
        baseline=trained / "none/dump/step1",
    )
    found = search(given, settings(tmp_path / "s"), collecting(candidate=f"{sys.executable} {SCRIPT} batch"), quiet)
    request, sides = asked[0]
    assert (request.steps, request.level, request.summary, sides) == ((1,), "mix", "md5", ("candidate",))
    assert found.seen.culprit is not None and found.seen.culprit.kind == "input"
    assert "--side baseline" in found.next[0]  # its tensors are asked for


def test_a_side_collected_with_another_request_is_refused(trained: Path, tmp_path: Path, asked: Asked) -> None:
    logs = Given(candidate_log=trained / "batch/log.txt", baseline_log=trained / "none/log.txt")
    here = collecting(candidate=f"{sys.executable} {SCRIPT} batch")
    search(logs, settings(tmp_path / "s"), here, quiet)
    place(trained / "none", tmp_path / "s/01-window/baseline", Request(steps=(0, 1), level="L0"), "baseline")
    with pytest.raises(UsageError, match="collected with level L0, and the stage asks for mix"):
        search(logs, settings(tmp_path / "s"), here, quiet)


# -- closing in on a step


STEPS, FAULT, SHOWN = 400, 137, 390


def steps_by_hand(folder: Path, bad: bool) -> Path:
    """A run of 400 steps whose weight differs from step 137 on, which the loss shows from 390 on."""
    for step in range(STEPS):
        weight = tensor(high=2.0 if bad and step >= FAULT else 1.0, grad=True)
        data = {
            "Module.a.Linear.forward.0": forward([tensor()], [tensor(high=weight["Max"])], {"weight": weight}),
            "Torch.update.0.forward": forward([tensor()], [tensor(high=2.0 if bad and step >= FAULT - 1 else 1.0)]),
        }
        write(folder / f"dump/step{step}/rank0", data, level="mix")
    losses = [5 * 0.999**n * (1.5 if bad and n >= SHOWN else 1) for n in range(STEPS)]
    lines = [json.dumps({"step": n, "loss": loss}) for n, loss in enumerate(losses, 1)]
    (folder / "log.txt").write_text("\n".join(lines) + "\n")
    steps = [{"step": step, "rank": 0, "iteration": None, "state": "complete", "calls": 2} for step in range(STEPS)]
    (folder / "receipts").mkdir()
    receipt = {"started": 0.0, "state": "attached", "rank": 0, "world_size": 1, "steps": steps, "device": "cpu"}
    receipt |= {
        "attempt": 0,
        "node": None,
        "notes": [],
        "beside": [],
        "iterations": STEPS,
        "evaluations": 0,
        "finished": True,
        "environment": {},
    }
    (folder / "receipts/0.json").write_text(json.dumps(receipt))
    return folder


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    steps_by_hand(folder / "good", False)
    steps_by_hand(folder / "bad", True)
    return folder


def test_a_fault_long_before_the_curves_show_it_is_closed_in_on(
    long_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: Asked = []
    monkeypatch.setattr(campaign, "collect", replaying(lambda side: long_runs / side.words[-1], requests))
    found = search(Given(), settings(tmp_path / "s"), collecting(baseline="run good", candidate="run bad"), quiet)
    assert found.seen.culprit is not None
    row = found.seen.culprit.row
    assert (row.step, row.call) == (FAULT - 1, "Torch.update.0.forward")
    names = [name.partition("-")[2] for name, _ in found.stages]
    assert names[:2] == ["curves", "window"] and names[-2:] == ["step", "tensor"]
    narrow = [request for request, _ in requests if len(request.steps) > 2]
    assert 2 <= len(narrow) <= 3 and all(len(request.steps) <= 8 for request in narrow)
    assert narrow[0].level == "L0"


# -- limits and errors


def test_the_limits_end_a_search_with_what_was_found_and_how_to_go_on(
    trained: Path, tmp_path: Path, asked: Asked
) -> None:
    found = search(Given(), settings(tmp_path / "s", max_bytes=100_000), two("optimizer"), quiet)
    assert (found.verdict, found.step, len(asked)) == ("diverged", 7, 1)
    assert any("--max-bytes 100,000 is used up" in note for note in found.notes)
    assert found.next == (f"precdiag localize --continue {tmp_path}/s --max-bytes 200000",)
    assert asked[0][0].max_bytes == 50_000
    more = search(
        Given(), settings(tmp_path / "s", max_bytes=10**9), CollectSettings(parallel=True), quiet, go_on=tmp_path / "s"
    )
    assert more.seen.culprit is not None and len(asked) == 2
    with pytest.raises(PrecdiagError, match="--timeout is over"):
        search(Given(), settings(tmp_path / "t", timeout=1e-9), two("optimizer"), quiet)


def test_a_run_that_leaves_no_evidence_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(folder: Path, request: Request, commands: dict[str, SideCommand], **_: Any) -> SimpleNamespace:
        for side in commands:
            write_session(folder / side, request, side=side, identity="x")
        return SimpleNamespace(sides=())

    monkeypatch.setattr(campaign, "collect", nothing)
    with pytest.raises(PrecdiagError, match="01-curves: the baseline left no whole evidence: nothing started"):
        search(Given(), settings(tmp_path / "s"), two("rate"), quiet)


def test_another_search_in_the_folder_is_not_overwritten(tmp_path: Path, asked: Asked) -> None:
    search(Given(), settings(tmp_path / "s"), two("rate"), quiet)
    with pytest.raises(UsageError, match="holds a search of other commands"):
        search(Given(), settings(tmp_path / "s"), two("weight"), quiet)
    assert len(asked) == 1


def test_a_command_that_is_not_there_is_no_look_at_all(tmp_path: Path) -> None:
    words = ["localize", "--run", "--out", "s"]
    sides = {"PRECDIAG_COLLECT_BASELINE_COMMAND": "no-such-trainer", "PRECDIAG_COLLECT_CANDIDATE_COMMAND": "neither"}
    run = precdiag(*words, cwd=tmp_path, env=sides)
    assert run.returncode == 2 and "no-such-trainer: command not found" in run.stderr and run.stdout == ""


def test_nothing_to_run_and_nothing_to_go_on_with_are_errors(tmp_path: Path) -> None:
    run = precdiag("localize", "--run", cwd=tmp_path)
    assert (
        run.returncode == 2
        and "nothing says what to run" in run.stderr
        and not (tmp_path / "precdiag-localize").exists()
    )
    with pytest.raises(UnreadableError, match="no search to go on with"):
        search(Given(), settings(tmp_path), CollectSettings(parallel=True), quiet, go_on=tmp_path)
    (tmp_path / "localize.json").write_text("{}")
    with pytest.raises(UnreadableError, match="not what precdiag localize --run wrote"):
        search(Given(), settings(tmp_path), CollectSettings(parallel=True), quiet, go_on=tmp_path)


def test_a_collection_gives_the_commands_too(trained: Path, tmp_path: Path, asked: Asked) -> None:
    folder = tmp_path / "c"
    for side, fault in (("baseline", "none"), ("candidate", "optimizer")):
        place(trained / fault, folder / side, Request(level="mix", summary="md5"), side)
    sides = {
        side: {"command": list(command(fault).words), "cwd": str(tmp_path)}
        for side, fault in (("baseline", "none"), ("candidate", "optimizer"))
    }
    (folder / "collection.json").write_text(json.dumps({"sides": sides}))
    found: Localization = search(Given(folder), settings(tmp_path / "s"), CollectSettings(parallel=True), quiet)
    assert found.seen.culprit is not None and found.seen.culprit.row.step == 5
    assert [request.steps for request, _ in asked] == [(5, 6)]


@pytest.mark.parametrize("place", ["mine", "mine/below"])
def test_a_file_where_the_search_would_go_is_left_alone(tmp_path: Path, asked: Asked, place: str) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(PrecdiagError, match=r"is there, and no search|cannot write to"):
        search(Given(), settings(tmp_path / place), two("rate"), quiet)
    assert asked == [] and (tmp_path / "mine").read_text() == "mine"


def test_stages_of_no_known_search_are_not_overwritten(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "01-curves" / "candidate").mkdir(parents=True)
    with pytest.raises(UsageError, match="is there, and no search"):
        search(Given(), settings(tmp_path), two("rate"), quiet)
    assert asked == []


def test_a_quotation_that_does_not_end_is_said_before_anything_runs(tmp_path: Path, asked: Asked) -> None:
    with pytest.raises(PrecdiagError, match="train 'a: no closing quotation"):
        search(Given(), settings(tmp_path / "s"), collecting(candidate="train 'a"), quiet)
    with pytest.raises(PrecdiagError, match="no closing quotation"):
        search(Given(), settings(tmp_path / "s", float32="--fp32 'a"), two("rate"), quiet)
    assert asked == []


def test_a_side_that_fails_is_named_with_its_status_and_its_output(tmp_path: Path) -> None:
    fails = collecting(candidate=f"{sys.executable} -c 'print(\"no data\"); raise SystemExit(3)'")
    with pytest.raises(PrecdiagError, match="the candidate ended with status 3 and left no whole evidence") as error:
        search(Given(), settings(tmp_path / "s"), fails, quiet)
    assert str(error.value).endswith(f"what it printed is in {tmp_path}/s/01-curves/candidate/log.txt")
    assert (tmp_path / "s/01-curves/candidate/log.txt").read_text() == "no data\n"
