"""From a curve to the line: real runs with planted faults, the map of steps, what to type next, the command itself."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import falling, log
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from test_cli import precdiag
from trainings import FAULTS, SCRIPT, command, pair

from precdiag.advice import collect_command, integers_text, side_command
from precdiag.collection import SideCommand
from precdiag.errors import UnreadableError, UsageError
from precdiag.iterations import repeats, step_map
from precdiag.localize import localize
from precdiag.nextstep import advise, spread
from precdiag.session import Request
from precdiag.settings import CollectSettings, LocalizeSettings, parse_integers
from precdiag.sides import Given, find_sides

Real = Callable[[str], Path]
LOGS = Path(__file__).parent / "data" / "loss_logs"
SCHEMA = json.loads((Path(__file__).parent / "data" / "localize.schema.json").read_text())


def document(*words: object, status: int = 1, **more: Any) -> dict[str, Any]:
    """Run localize, hold its status and its contract, and return the JSON."""
    run = precdiag("localize", *words, "--format", "json", **more)
    assert run.returncode == status, run.stderr
    found: dict[str, Any] = json.loads(run.stdout, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    Draft202012Validator(SCHEMA).validate(found)
    return found


def line_of(text: str) -> int:
    """The number of the only line of the script that holds a text."""
    lines = [n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1
    return lines[0]


# -- real runs


# What each fault is: the verdict, the log's step, then the culprit's dump step, kind, call and the line it stands on.
CHAINS = {
    "activation": ("diverged", 1, 0, "argument", "Functional.gelu.1.forward", "F.gelu(hidden, approximate="),
    "weight": ("diverged", 1, 0, "parameter", "Module.blocks.1.up.Linear.forward.0", "self.up(self.norm2(x))"),
    "batch": ("diverged", 2, 1, "input", "Module.words.Embedding.forward.0", "x = self.words(words)"),
    "backward": ("nan", 6, 5, "argument", "Tensor.__mul__.1.forward", 'grad * float("nan")'),
    "rate": ("diverged", 2, 0, "argument", "Tensor.mul_.0.forward", "optimizer.step()"),
    "optimizer": ("diverged", 7, 5, "argument", "Tensor.lerp_.0.forward", "optimizer.step()"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_named_with_its_step_and_line(trained: Path, tmp_path: Path, fault: str) -> None:
    found = localize(find_sides(Given(pair(trained, fault, tmp_path / "x"))), LocalizeSettings())
    verdict, step, dump_step, kind, call, line = CHAINS[fault]
    assert found.seen.culprit is not None
    row, source = found.seen.culprit.row, found.seen.culprit.source
    assert (found.verdict, found.step) == (verdict, step)
    assert (row.step, found.seen.culprit.kind, row.call) == (dump_step, kind, call)
    assert source is not None and Path(source.file).name == SCRIPT.name and source.line == line_of(line)
    assert found.exit_code == 1


def test_the_same_run_twice_is_healthy(trained: Path, tmp_path: Path) -> None:
    folder = pair(trained, "none", tmp_path / "x")
    found = localize(find_sides(Given(folder)), LocalizeSettings())
    assert (found.verdict, found.exit_code, found.seen.culprit) == ("healthy", 0, None)
    assert found.seen.comparison is not None and found.seen.comparison.coverage.equal > 1000


def test_one_side_alone_names_where_its_nan_was_made(trained: Path) -> None:
    found = localize(
        find_sides(Given(candidate_log=trained / "backward/log.txt", candidate=trained / "backward/dump")),
        LocalizeSettings(),
    )
    assert (found.verdict, found.step) == ("nan", 6)
    assert found.seen.culprit is not None and found.seen.culprit.by == "nan"
    assert found.seen.culprit.row.call == "Tensor.__mul__.1.forward"


def test_the_table_ends_the_chain_with_the_source_line_within_80_columns(trained: Path, tmp_path: Path) -> None:
    run = precdiag("localize", pair(trained, "optimizer", tmp_path / "x"))
    above, _, following = run.stdout.partition("\nnext\n")
    assert max(map(len, above.splitlines()[3:])) <= 80
    text = " ".join(above.split())
    for said in (
        "DIVERGED from step 7 of the log",
        "step dump step 5, iteration 6 of the log",
        "call Tensor.lerp_.0.forward.input.2",
        f"transformer.py:{line_of('optimizer.step()')} optimizer.step()",
        "look at steps 6 to 7: together until then: the backward and the update of the step before",
    ):
        assert said in text
    assert following == ""  # tensors could prove no more than an argument that differs
    following = document(pair(trained, "weight", tmp_path / "y"))["next"][0]
    assert "--task tensor" in following and "Module.blocks.1.up.Linear.forward.0" in following


def test_dumps_of_other_steps_give_the_cost_of_the_next_collection(trained: Path, tmp_path: Path) -> None:
    folder = pair(trained, "optimizer", tmp_path / "x")
    logs = folder / "candidate/log.txt", folder / "baseline/log.txt"
    sides = find_sides(Given(None, *logs, candidate=folder / "candidate/dump/step7"))
    found = advise(localize(sides, LocalizeSettings()), CollectSettings(), None)
    assert found.seen.culprit is None and found.seen.missing == (5, 6)
    assert "--step 0,5-6 --level mix --summary md5" in found.next[0]
    assert any("the next collection costs about 353 calls and" in note for note in found.notes)


def test_a_difference_that_an_earlier_step_left_asks_for_the_steps_before(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    for side, fault in (("baseline", "none"), ("candidate", "optimizer")):
        for step in (0, 6, 7):
            shutil.copytree(trained / fault / "dump" / f"step{step}", folder / side / "dump" / f"step{step}")
        shutil.copy(trained / fault / "log.txt", folder / side / "log.txt")
    found = advise(
        localize(find_sides(Given(folder), cross_device=False), LocalizeSettings()), CollectSettings(), folder
    )
    assert found.seen.carried and found.seen.culprit is not None and found.seen.culprit.row.step == 6
    assert "--step 0-5 " in found.next[0]


def test_a_rerun_that_does_not_repeat_the_log_is_said_before_any_cause(trained: Path, tmp_path: Path) -> None:
    folder = pair(trained, "optimizer", tmp_path / "x")
    words = [folder, "--candidate-log", trained / "backward/log.txt", "--baseline-log", trained / "none/log.txt"]
    found = document(*words)
    assert found["reproduced"] is False
    assert found["notes"][0].startswith("not reproduced: the candidate's grad_norm at 6 was nan, and is 1.21472 in")
    text = precdiag("localize", *words).stdout
    assert 0 < text.index("NOT REPRODUCED") < text.index("from the symptom to the line")
    assert document(folder, "--candidate-log", trained / "optimizer/log.txt")["reproduced"] is True


def test_two_devices_need_more_than_rounding(trained: Path, tmp_path: Path) -> None:
    folder = pair(trained, "weight", tmp_path / "x")
    assert document(folder)["verdict"] == "diverged"
    found = localize(find_sides(Given(folder), cross_device=True), LocalizeSettings())
    assert found.seen.culprit is None or found.seen.culprit.by == "beyond rounding"


def test_the_rank_that_began_it_is_named(real: Real, tmp_path: Path) -> None:
    loss = falling(5, noise=0)
    for name, factor in (("good", 1.0), ("bad", 1.5)):
        lines = [json.dumps({"step": n, "loss": x * factor}) for n, x in enumerate(loss, 1)]
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    ddp = real("ddp")
    words = ["--candidate-log", tmp_path / "bad", "--baseline-log", tmp_path / "good", "--same-device"]
    found = document(*words, "--candidate", ddp / "C", "--baseline", ddp / "A")
    cause = found["first_cause"]
    assert (found["verdict"], found["step"]) == ("diverged", 1)
    assert (cause["step"], cause["rank"], cause["kind"]) == (0, 1, "parameter")


# -- logs alone


@pytest.mark.parametrize(
    ("name", "status", "verdict", "step"),
    [
        ("megatron_nan_field_vanishes.log", 1, "nan", 12),
        ("megatron_restart.log", 0, "healthy", None),
        ("deepspeed_overflow.log", 2, "no-data", None),
        ("one_point.csv", 2, "too-short", None),
        ("empty.log", 2, "no-data", None),
    ],
)
def test_the_status_follows_the_verdict(name: str, status: int, verdict: str, step: int | None) -> None:
    found = document("--candidate-log", LOGS / name, status=status)
    assert (found["verdict"], found["step"]) == (verdict, step)


def test_without_dumps_the_command_to_collect_is_ready(tmp_path: Path) -> None:
    (tmp_path / "precdiag.yaml").write_text(
        "collect: {baseline: {command: python a.py}, candidate: {command: python b.py}}"
    )
    words = ["--candidate-log", LOGS / "pair_npu_drifts_from_35.log", "--baseline-log", LOGS / "pair_bench.log"]
    found = document(*words, cwd=tmp_path)
    assert found["next"][0] == "precdiag collect --out precdiag-run --step iter:1,35-36 --level mix --summary md5"
    (tmp_path / "precdiag.yaml").unlink()
    found = document(*words, "--cross-device", cwd=tmp_path)
    assert "--step iter:1,35-36 --level L0 --baseline" in found["next"][0]
    found = document(*words, "--same-device", cwd=tmp_path)
    assert "--step iter:35-36 " in found["next"][0]
    found = document(*words, "--step-offset", "31", cwd=tmp_path)
    assert "--step 0,4-5 " in found["next"][0] and found["mapping"] == {"offset": 31, "basis": "option"}


def test_every_series_is_listed() -> None:
    run = precdiag("localize", "--candidate-log", LOGS / "verl_ray.log", "--list-series", "--format", "json")
    names = {each["name"] for each in json.loads(run.stdout)["candidate"]["series"]}
    assert run.returncode == 0 and {"actor/pg_loss", "actor/grad_norm"} <= names
    text = precdiag("localize", "--candidate-log", LOGS / "verl_ray.log", "--list-series").stdout
    assert "actor/grad_norm" in text and "verl" in text


def test_another_series_can_be_judged_and_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress((LOGS / "megatron_spike_recovers.log").read_bytes()))
    found = document("--candidate-log", packed, "--series", "grad norm")
    assert (found["verdict"], found["step"], found["curve"]["series"]) == ("spike", 15, "grad norm")
    run = precdiag("localize", "--candidate-log", packed, "--series", "nothing")
    assert run.returncode == 2 and "it has: " in run.stderr and run.stdout == ""


def test_thresholds_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "precdiag.yaml").write_text("localize: {max_relative: 0.5}")
    words = ["--candidate-log", LOGS / "pair_npu_drifts_from_35.log", "--baseline-log", LOGS / "pair_bench.log"]
    assert document(*words, cwd=tmp_path, status=0)["verdict"] == "healthy"
    run = precdiag("localize", *words, "--show-config", cwd=tmp_path)
    assert "localize.max_relative" in run.stdout and "precdiag.yaml:1" in run.stdout


@pytest.mark.parametrize(
    "words", [[], ["--baseline-log", LOGS / "pair_bench.log"], ["."], ["--candidate-log", "nowhere.log"]]
)
def test_nothing_to_judge_is_a_usage_error(tmp_path: Path, words: list[object]) -> None:
    run = precdiag("localize", *words, cwd=tmp_path)
    assert run.returncode == 2 and run.stdout == "" and "Traceback" not in run.stderr
    assert run.stderr.startswith("precdiag: ") and len(run.stderr.splitlines()) <= 2


def test_the_plot_marks_the_step_and_is_left_out_where_nobody_looks() -> None:
    words = ["--candidate-log", LOGS / "megatron_spike_recovers.log"]
    shown = precdiag("localize", *words, "--plot").stdout
    assert "lm loss, step 15 marked" in shown and "\x1b" not in shown
    assert "marked" not in precdiag("localize", *words).stdout


def test_without_plotext_a_wanted_plot_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plotext.py").write_text("raise ImportError('hidden')")
    run = precdiag(
        "localize", "--candidate-log", LOGS / "megatron_spike_recovers.log", "--plot", env={"PYTHONPATH": str(tmp_path)}
    )
    assert run.returncode == 2 and run.stderr == "precdiag: --plot needs plotext\n  pip install 'precdiag[plot]'\n"


def test_a_terminal_shows_the_plot_and_says_in_one_line_what_it_lacks(tmp_path: Path) -> None:
    words = f'"{sys.executable}" -m precdiag localize --candidate-log {LOGS / "megatron_spike_recovers.log"}'
    environ = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}
    shown = []
    for more in ({}, {"PYTHONPATH": str(tmp_path)}):
        run = subprocess.run(
            ["script", "-qec", words, "/dev/null"], capture_output=True, text=True, env=environ | more, check=False
        )
        shown.append(run.stdout)
        (tmp_path / "plotext.py").write_text("raise ImportError('hidden')")
    assert "lm loss, step 15 marked" in shown[0] and "no plot" not in shown[0]
    assert "no plot: --plot needs plotext, pip install 'precdiag[plot]'" in shown[1]


# -- which step is which


def test_steps_are_mapped_by_receipts_else_from_the_start_of_the_log() -> None:
    receipt = {"steps": [{"step": 2, "iteration": None}, {"step": 3, "iteration": 30004}]}
    found = step_map(log([1, 2, 3]), [receipt])
    assert (found.offset, found.basis, found.dump_step(30004)) == (30001, "receipts", 3)
    assert step_map(log([1, 2, 3]), [receipt], given=7).offset == 7
    for first, stride, offset in (
        (1, 1, 1),
        (0, 1, 0),
        (30001, 1, 30001),
        (10, 10, 1),
        (30010, 10, 30001),
        (0, 10, 0),
        (1, 10, 1),
    ):
        found = step_map(log([3, 2, 1], first=first, stride=stride))
        assert (found.offset, found.basis) == (offset, "assumed"), (first, stride)


def test_a_repeat_is_the_same_value_or_the_same_failure() -> None:
    before = log([3.0, 2.0, float("nan")])
    assert repeats("candidate", before, log([3.0, 2.001, float("inf")]), 2, "loss", 0.01).same is True
    assert repeats("candidate", before, log([3.0, 2.5, 1.0]), 2, "loss", 0.01).same is False
    assert repeats("candidate", before, log([3.0, 2.0, 1.0]), 3, "loss", 0.01).same is False
    assert repeats("candidate", before, log([3.0, 2.0, float("inf")]), 3, "loss", 0.01).same is True
    assert repeats("candidate", before, log([3.0, 2.0]), 3, "loss", 0.01).same is None


def test_steps_before_the_dumped_process_cannot_be_looked_at(tmp_path: Path) -> None:
    loss = falling(40)
    (tmp_path / "log").write_text("".join(json.dumps({"step": n, "loss": x}) + "\n" for n, x in enumerate(loss, 1)))
    (tmp_path / "bad").write_text("".join(json.dumps({"step": n, "loss": x * 2}) + "\n" for n, x in enumerate(loss, 1)))
    sides = find_sides(Given(candidate_log=tmp_path / "bad", baseline_log=tmp_path / "log"))
    found = localize(sides, LocalizeSettings(step_offset=30))
    assert (found.verdict, found.step) == ("diverged", 1)
    assert any("before dump step 0" in note for note in found.notes)


# -- what to type next


@given(st.sets(st.integers(0, 200), min_size=1, max_size=30))
def test_written_steps_are_read_back(steps: set[int]) -> None:
    assert parse_integers(integers_text(steps)) == tuple(sorted(steps))


@given(st.integers(-1, 5000), st.integers(1, 5000), st.integers(2, 16))
def test_steps_are_spread_between_what_is_equal_and_what_differs(low: int, width: int, most: int) -> None:
    chosen = spread(low, low + width, most)
    assert list(chosen) == sorted(set(chosen)) and len(chosen) == min(width - 1, most)
    assert all(low < step < low + width for step in chosen)
    edges = np.diff([low, *chosen, low + width])
    assert edges.max() - edges.min() <= 1  # evenly


def test_a_command_says_what_runs_and_where(tmp_path: Path) -> None:
    request = Request(steps=(4, 5), level="mix", summary="md5", list=("a", "b"))
    here = SideCommand(("python", "train.py", "--name", "a b"))
    there = SideCommand(("/bin/sh", "-c", "cd x && python t.py"), tmp_path, {"A": "1 2"})
    line = collect_command(request, "out", {"baseline": here, "candidate": there})
    assert line == (
        f"A='1 2' PRECDIAG_COLLECT_CANDIDATE_CWD={tmp_path} precdiag collect --out out --step 4-5 --level mix "
        "--summary md5 --list a,b --baseline 'python train.py --name '\"'\"'a b'\"'\"'' "
        "--candidate 'cd x && python t.py'"
    )
    line = side_command(request, "out", "baseline", here)
    assert line.endswith(
        "--side baseline --step 4-5 --level mix --summary md5 --list a,b -- python train.py --name 'a b'"
    )


# -- where things lie


def test_a_folder_without_a_candidate_is_no_collection(tmp_path: Path) -> None:
    (tmp_path / "baseline").mkdir()
    with pytest.raises(UnreadableError, match="no candidate/ in it"):
        find_sides(Given(tmp_path))
    with pytest.raises(UsageError, match="no log"):
        find_sides(Given(candidate=tmp_path))


def test_devices_are_those_of_the_receipts(trained: Path, tmp_path: Path) -> None:
    folder = pair(trained, "weight", tmp_path / "x")
    assert find_sides(Given(folder)).cross_device is False
    assert find_sides(Given(folder), cross_device=True).cross_device is True
    assert find_sides(Given(candidate_log=folder / "candidate/log.txt")).cross_device is None
    assert command("none").words[-1] == "none"
