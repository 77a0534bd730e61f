"""precdiag collect: how each run ends, with the status and the sentence that a user needs; what it leaves and tells."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from collecting import TRAIN, Run, both_sides, document, interpreter_without, once, one_side, shape, train, warm

from precdiag.collection import SideResult
from precdiag.errors import PrecdiagError, UsageError
from precdiag.launch import split_command
from precdiag.proof import NOT_STARTED

PYTHON = sys.executable
IDLE = (PYTHON, "-c", "pass")  # a command that imports no torch: enough where only the launch matters


def precdiag(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> Any:
    """Run the command in a process of its own."""
    environ = {**os.environ, "COLUMNS": "80", **(env or {})}
    words = (PYTHON, "-m", "precdiag", *words)
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=environ, check=False, timeout=240
    )


# How a run can end: the run, its own status, the state of each step, the sentence.
ENDINGS = {
    "complete": (shape("plain", steps=(0, 1, 2)), 0, ["complete"] * 3, None),
    "killed": (
        shape("killed", steps=(0, 1)),
        137,
        ["complete", "unfinished"],
        "killed inside a step: step 1 is unfinished (the process ended inside this step)",
    ),
    "raises": (
        shape("raises", steps=(0, 1, 2)),
        1,
        ["complete", "unfinished", "missing"],
        "step 1 is unfinished: the process ended inside this step",
    ),
    "exits": (
        shape("exits", steps=(0, 1)),
        0,
        ["complete", "unfinished"],
        "step 1 is unfinished: the process ended inside this step",
    ),
    "leaves": (shape("leaves", steps=(0, 2)), 0, ["complete", "complete"], None),
    "not-reached": (
        shape("plain", steps=(7,)),
        0,
        ["missing"],
        "attached but no step reached: step 7 was asked for, the run had 3 iterations",
    ),
    "reached-in-part": (shape("plain", steps=(2, 7)), 0, ["complete", "missing"], "step 7 is missing: never reached"),
    "rank-filter": (
        shape("plain", ranks=(0,)),
        0,
        ["missing"],
        "rank filter: a single process has no rank, so --rank 0 leaves it out",
    ),
    "nothing-called": (
        shape("nothing_called"),
        0,
        [],
        "started but never attached: torch was imported, but no module of an optimizer (or any) was called",
    ),
    "empty": (
        shape("plain", list=("Torch.nothing.0.forward",)),
        0,
        ["empty"],
        "step 0 is empty: no call was recorded: scope, list or level leave nothing",
    ),
    "too-large": (shape("plain", steps=(0, 1, 2), max_bytes=10), 0, ["complete", "missing", "missing"], None),
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SideResult]:
    return warm(tmp_path_factory, "endings", lambda _: {name: run for name, (run, *_) in ENDINGS.items()})


@pytest.mark.parametrize("name", ENDINGS)
def test_each_ending_is_told_apart(name: str, endings: dict[str, SideResult]) -> None:
    _, status, states, reason = ENDINGS[name]
    side = endings[name]
    assert side.ended.status == status
    assert [step.state for step in side.proof.steps] == states
    if reason is not None:
        assert side.proof.reason == reason
    assert side.verified == (set(states) == {"complete"})


def test_a_dump_over_max_bytes_stops_and_says_so(endings: dict[str, SideResult]) -> None:
    assert any("over --max-bytes 10" in note for note in endings["too-large"].proof.notes)


def test_calls_said_but_not_on_disk_are_not_complete(endings: dict[str, SideResult], tmp_path: Path) -> None:
    from precdiag.proof import prove

    copy = tmp_path / "copy"
    shutil.copytree(endings["complete"].folder, copy)
    (first,) = copy.glob("dump/step0/*/dump.json")
    data = json.loads(first.read_text())
    data["data"].popitem()
    first.write_text(json.dumps(data))
    (second,) = copy.glob("dump/step1/*/dump.json")
    second.unlink()
    assert [(s.state, s.why) for s in prove(copy).steps] == [
        ("unfinished", "dump.json holds 13 calls of 14"),
        ("missing", "the process reported the step, but its dump.json is not there"),
        ("complete", None),
    ]


def test_a_command_that_trains_nothing_ends_125_naming_what_happened(tmp_path: Path) -> None:
    run = precdiag("collect", "--out", tmp_path / "run", "--", *IDLE)
    assert run.returncode == 125
    assert "NOT VERIFIED" in run.stdout
    assert "started but never attached: torch was never imported" in run.stdout
    again = precdiag("collect", "--out", tmp_path / "run", "--force", "--format", "json", "--", *IDLE)
    found = json.loads(again.stdout)
    assert again.returncode == 125
    assert (found["schema"], found["verified"]) == ("precdiag.collect/1", False)
    assert found["sides"]["candidate"]["reason"].startswith("started but never attached")


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["sh", "-c", "exit 3"], 3, "status 3"),
        (["sh", "-c", "kill -9 $$"], 137, "status 137"),
        (["no-such-command"], 127, "no-such-command: command not found"),
        (["{tmp}/plain.txt"], 126, "plain.txt is not executable"),
        (["{tmp}/garbage"], 126, "garbage: Exec format error"),
        (["sleep", "60"], 143, "ended after --timeout 0.5 s"),
    ],
    ids=["own status", "signal", "not found", "not executable", "not a program", "timeout"],
)
def test_status_of_a_command_that_fails(words: list[str], status: int, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("x")
    (tmp_path / "garbage").write_bytes(b"\x00\x01")
    (tmp_path / "garbage").chmod(0o755)
    words = [word.format(tmp=tmp_path) for word in words]
    run = precdiag("collect", "--out", tmp_path / "run", "--timeout", "0.5", "--", *words)
    assert run.returncode == status
    assert sentence in " ".join((run.stdout + run.stderr).split())
    assert "Traceback" not in run.stderr


def test_sigkill_inside_a_step_is_137_and_what_was_collected_is_told(tmp_path: Path) -> None:
    run = precdiag("collect", "--out", tmp_path / "run", "--step", "0,1", "--quiet", "--", *train("killed"))
    assert run.returncode == 137
    assert "killed inside a step: step 1 is unfinished" in run.stdout
    assert "step 0 collected, 14 calls" in run.stderr
    assert "loss" not in run.stderr
    assert "step 0 loss" in (tmp_path / "run/candidate/log.txt").read_text()


@pytest.mark.parametrize("folder", ["with space", "a=b", "plus+", "at@", "ünd"])
def test_a_path_that_msprobe_refuses_is_named_before_anything_runs(folder: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        one_side(tmp_path / folder, "sh", "-c", f"touch {tmp_path}/ran")
    refused = next(character for character in folder if character in " =+@ü")
    assert f"{refused!r} (U+{ord(refused):04X})" in str(caught.value)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_125(tmp_path: Path) -> None:
    run = precdiag("collect", "--out", "/sys/precdiag-run", "--", *IDLE)
    assert run.returncode == 125
    assert run.stderr.startswith("precdiag: cannot write to /sys/precdiag-run")


def test_too_little_room_is_125_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(2**30, 2**30, 2**20))
    with pytest.raises(PrecdiagError, match="1 MiB free, 64 MiB needed") as caught:
        one_side(tmp_path / "run", "sh", "-c", f"touch {tmp_path}/ran")
    assert caught.value.exit_code == 125
    assert not (tmp_path / "ran").exists()


def test_a_disk_that_fills_up_is_no_complete_step_and_the_training_goes_on(tmp_path: Path) -> None:
    # no file may grow beyond 32 KiB: the log stays below, the dump does not
    words = ("bash", "-c", f"ulimit -f 32; exec {PYTHON} {TRAIN} in_place 2")
    side = one_side(tmp_path / "run", *words, steps=(0, 1))
    assert side.ended.status == 0, (side.folder / "log.txt").read_text()
    assert not side.verified
    assert side.proof.reason is not None
    assert "complete" not in {step.state for step in side.proof.steps}


@pytest.mark.parametrize("kind", ["none", "scanner", "stranger"])
def test_a_wrong_msprobe_is_said_before_the_first_step(kind: str, tmp_path: Path) -> None:
    python, env = PYTHON, {}
    if kind == "none":
        python = interpreter_without(tmp_path / "venv", "msprobe", "mindstudio")
    else:
        package = tmp_path / "there" / "msprobe"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        env = {"PYTHONPATH": str(package.parent)}
    if kind == "stranger":
        (package / "pytorch").mkdir()
        code = "class PrecisionDebugger:\n    def __init__(self, **given):\n        self.service = None\n"
        (package / "pytorch" / "__init__.py").write_text(code)
    side = one_side(tmp_path / "run", python, TRAIN, "plain", env=env)
    said = {
        "none": f"msprobe is not installed for {python}: pip install mindstudio-probe",
        "scanner": f"the installed `msprobe` ({tmp_path}/there/msprobe/__init__.py) is PyPI's network scanner",
        "stranger": "has another interface than the versions known here",
    }[kind]
    assert side.ended.status == 0
    assert side.proof.reason is not None
    assert said in side.proof.reason
    log = (side.folder / "log.txt").read_text()
    assert -1 < log.index(said) < log.index("step 0 loss")


def test_ctrl_c_ends_the_whole_process_group_and_what_was_collected_is_reported(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    words = [
        PYTHON,
        "-m",
        "precdiag",
        "collect",
        "--out",
        str(tmp_path / "run"),
        "--step",
        "0,1",
        "--",
        *train("hangs"),
    ]
    # files, not pipes: a process left running would hold a pipe open, and the test would wait instead of failing
    with out.open("wb") as stdout, err.open("wb") as stderr:
        run = subprocess.Popen(words, stdout=stdout, stderr=stderr)
        log = tmp_path / "run/candidate/log.txt"
        wait_for(lambda: log.exists() and b"waiting" in log.read_bytes())
        run.send_signal(signal.SIGINT)
        status = run.wait(timeout=60)
    assert status == 130
    assert "ended by signal 2" in out.read_text()
    assert "0     -     14  complete" in out.read_text()
    assert "unfinished" in out.read_text()
    assert running_in(tmp_path / "run") == []


def test_sigterm_is_passed_on_and_nothing_is_left_running(tmp_path: Path) -> None:
    script = f"setsid sleep 300 & touch {tmp_path}/up; sleep 300"
    words = [PYTHON, "-m", "precdiag", "collect", "--out", str(tmp_path / "run"), "--", "bash", "-c", script]
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(words, stdout=out, stderr=out)
        wait_for((tmp_path / "up").exists)
        run.terminate()
        status = run.wait(timeout=60)
    assert status == 143
    assert running_in(tmp_path / "run") == []


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def running_in(folder: Path) -> list[str]:
    """The processes whose environment names `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_a_folder_that_holds_a_collection_is_refused_without_force(tmp_path: Path) -> None:
    one_side(tmp_path / "run", *IDLE)
    with pytest.raises(UsageError, match="holds a collection"):
        one_side(tmp_path / "run", *IDLE)
    assert one_side(tmp_path / "run", *IDLE, force=True).ended.status == 0


def test_both_sides_come_from_precdiag_yaml_with_cwd_and_env(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    say = "import os, sys; print(os.getcwd(), os.environ.get('WHO'), sys.argv[1:])"
    (tmp_path / "precdiag.yaml").write_text(
        f"""
collect:
  out: {tmp_path}/run
  baseline: {{command: "{PYTHON} -c \\"{say}\\" --step 5", cwd: there, env: {{WHO: me}}}}
  candidate: {{command: "{PYTHON} -c \\"{say}\\" | cat"}}
"""
    )
    run = precdiag("collect", "--parallel", cwd=tmp_path)
    assert run.returncode == 125
    assert (tmp_path / "run/baseline/log.txt").read_text() == f"{tmp_path}/there me ['--step', '5']\n"
    assert (tmp_path / "run/candidate/log.txt").read_text() == f"{tmp_path} None []\n"


def test_options_after_the_command_belong_to_it(tmp_path: Path) -> None:
    run = precdiag("collect", "--out", tmp_path / "run", "--side", "baseline", "echo", "--level", "L9", "--quiet")
    assert "--level L9 --quiet" in (tmp_path / "run/baseline/log.txt").read_text()
    assert run.returncode == 125
    assert NOT_STARTED in " ".join(run.stdout.split())


def test_words_with_shell_syntax_go_to_a_shell() -> None:
    assert split_command("python train.py --lr '1 e'") == ("python", "train.py", "--lr", "1 e")
    assert split_command("bash run.sh | tee log") == ("/bin/sh", "-c", "bash run.sh | tee log")
    assert split_command("RANK=0 python x.py")[0] == "/bin/sh"


def test_nothing_to_run_is_a_usage_error(tmp_path: Path) -> None:
    run = precdiag("collect", "--out", tmp_path / "run", cwd=tmp_path)
    assert run.returncode == 2
    assert "nothing to run" in run.stderr


def test_the_msprobe_config_has_the_schema_that_msprobe_reads(tmp_path: Path) -> None:
    options = ("--step", "0,5-7", "--rank", "1", "--level", "mix", "--summary", "md5", "--scope", "a,b", "--list", "c")
    precdiag("collect", "--out", tmp_path / "run", *options, "--", *IDLE)
    assert json.loads((tmp_path / "run/candidate/msprobe.json").read_text()) == {
        "task": "statistics",
        "dump_path": f"{tmp_path}/run/candidate/dump",
        "rank": [1],
        "step": [0, 5, 6, 7],
        "level": "mix",
        "statistics": {"scope": ["a", "b"], "list": ["c"], "data_mode": ["all"], "summary_mode": "md5"},
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sides that differ in data, seed, switches, threads and variables, the baseline checked twice over."""
    return once(tmp_path_factory, "pair", collect_pair)


def collect_pair(folder: Path) -> None:
    secrets = {"MY_API_KEY": "sk-hunter2", "PROXY": "http://me:hunter2@proxy:1"}
    one, two = ({"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count} for count in "12")  # torch heeds MKL's first
    sides = {
        "baseline": (train("tokens"), {**one, "WANDB_TOKEN": "hunter2"}),
        "candidate": (train("tokens"), {**two, "TEST_TOKEN": "4", "TEST_TF32": "1", **secrets}),
    }
    both_sides(folder, sides, {"seed": 3, "deterministic": True}, repeat=True, observe=True, parallel=True)


def test_what_differs_between_the_sides_is_kept_and_told(pair: Path) -> None:
    found = document(pair)
    assert found["schema"] == "precdiag.collect/1"
    assert found["verified"] is True
    differ = {(each["kind"], each["name"]): each for each in found["differences"]}
    assert differ["start", "the first batch's integer inputs"]["numbers"]
    assert differ["switch", "threads"]["baseline"] == 1
    assert differ["switch", "float32_matmul_precision"]["candidate"] == "high"
    assert not [name for kind, name in differ if kind == "start" and "parameter" in name]
    assert [each["numbers"] for each in found["differences"]] == sorted(
        (each["numbers"] for each in found["differences"]), reverse=True
    )
    switches = [row["differs"] for row in found["switches"]]
    assert switches == sorted(switches, reverse=True)
    assert {"cudnn.benchmark", "sdpa.math", "CUBLAS_WORKSPACE_CONFIG"} <= {row["name"] for row in found["switches"]}
    assert found["notes"][-1].startswith("the sides do not start alike: the first batch's integer inputs")
    lead = found["sides"]["baseline"]["environment"]
    assert {"torch", "msprobe", "cann", "driver", "torch_npu"} <= set(lead["versions"])
    assert lead["packages"]["numpy"] and lead["git"]["commit"] and lead["device"] and lead["command"]


def test_deterministic_sets_what_it_says(pair: Path) -> None:
    found = document(pair)
    assert "torch.use_deterministic_algorithms" in found["notes"][0]
    assert "dropout" in found["notes"][0]
    switches = {row["name"]: row["candidate"] for row in found["switches"]}
    assert switches["torch.deterministic_algorithms"] is True
    assert switches["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert switches["initial_seed"] == 0  # the script seeds after us, and wins


def test_values_that_look_like_secrets_are_stored_nowhere(pair: Path) -> None:
    for file in pair.rglob("*"):
        if file.is_file():
            assert b"hunter2" not in file.read_bytes(), file
    assert document(pair)["sides"]["candidate"]["environment"]["environment"]["MY_API_KEY"] == "<hidden>"


def test_a_repeatable_run_and_an_unnoticed_hook_are_told(pair: Path) -> None:
    checks = {each["check"]: (each["found"], each["text"]) for each in document(pair)["checks"]}
    assert checks["determinism"] == (False, "two runs of the baseline are equal in everything that was dumped")
    assert checks["observer"] == (False, "the 3 losses printed are the same with and without it")


def test_compare_says_first_what_differs_outside_the_calls(pair: Path) -> None:
    run = precdiag("compare", pair, "--format", "json")
    found = json.loads(run.stdout)
    assert run.returncode == 1
    assert found["first_cause"]["name"] == "Functional.embedding.0.forward.input.0"
    assert found["notes"][0].startswith("the sides differ in the first batch's integer inputs: ")
    assert "the sides differ in switch threads: 1 → 2" in found["notes"]
    moved = precdiag("compare", pair / "baseline/dump/step0", pair / "candidate/dump/step0", "--format", "json")
    assert json.loads(moved.stdout)["notes"] == found["notes"]


def test_a_run_that_is_not_repeatable_and_notices_the_hook_is_a_finding_that_compare_repeats(tmp_path: Path) -> None:
    words = (PYTHON, TRAIN, "observed")
    folder = tmp_path / "run"
    env = {"TEST_UNSEEDED": "1"}
    collection = both_sides(folder, {"baseline": (words, env)}, {}, repeat=True, observe=True)
    determinism, observer = collection.checks
    assert determinism.found is True
    assert "first differ at step 0: Functional.linear.0.forward" in determinism.text
    assert observer.found is True
    assert observer.text == "collecting changes the run, loss 0 is 0.5 with the hook and 0.25 without it"
    run = precdiag("compare", folder / "baseline", folder / "baseline-repeat", "--format", "json")
    assert json.loads(run.stdout)["notes"][0].startswith("determinism: the baseline is not repeatable")


@pytest.mark.parametrize(("state", "folder"), [("ok", "here"), ("fail", "with space")])
def test_doctor_says_what_is_there_and_what_to_do(state: str, folder: str, tmp_path: Path) -> None:
    run = precdiag("doctor", tmp_path / folder)
    assert run.returncode == (1 if state == "fail" else 0)
    lines = {line.split()[1]: line.split()[0] for line in run.stdout.splitlines() if len(line.split()) > 1}
    assert {name: lines[name] for name in ("python", "torch", "msprobe", "disk")} == dict.fromkeys(
        ("python", "torch", "msprobe", "disk"), "ok"
    )
    assert lines["path"] == state
    if state == "fail":
        assert "' ' (U+0020)" in " ".join(run.stdout.split())


def test_doctor_fails_on_a_wrong_msprobe(tmp_path: Path) -> None:
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "msprobe/__init__.py").touch()
    run = precdiag("doctor", tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert run.returncode == 1
    said = " ".join(run.stdout.split())
    assert "PyPI's network scanner" in said
    assert "pip install mindstudio-probe" in said


# Each level and task, in one process and in two ranks, the candidate's first weight times 1.01.
MATRIX = [
    (level, task, ranks) for level in ("L0", "L1", "mix") for task in ("statistics", "tensor") for ranks in (1, 2)
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SideResult]:
    return warm(tmp_path_factory, "matrix", matrix_runs)


def matrix_runs(folder: Path) -> dict[str, Run]:
    runs = {}
    for level, task, ranks in MATRIX:
        for side, scale in (("baseline", "1"), ("candidate", "1.01")):
            env = {"TEST_SCALE": scale, "TEST_STORE": str(folder / f"store-{level}-{task}-{side}")}
            script = "forked_ranks" if ranks == 2 else "scaled"
            run = shape(script, 2, env=env, steps=(0, 1), level=level, task=task)
            runs[f"{level}-{task}-{ranks}/{side}"] = run
    return runs


@pytest.mark.parametrize(("level", "task", "ranks"), MATRIX)
def test_a_collected_pair_is_compared_by_its_run_folders(
    level: str, task: str, ranks: int, matrix: dict[str, SideResult]
) -> None:
    from precdiag.compare import compare
    from precdiag.judge import Policy

    sides = [matrix[f"{level}-{task}-{ranks}/{side}"] for side in ("baseline", "candidate")]
    assert [side.proof.reason for side in sides] == [None, None]
    found = compare(sides[0].folder, sides[1].folder, Policy())
    assert found.verdict == "diverged"
    assert found.cause is not None
    # DDP reduces gradients where no hook sees it: which rank is the first then cannot be told, and both are named
    causes = {row.rank: row for row in (found.cause.row, *found.cause.also)}
    row = causes[None if ranks == 1 else 1]
    assert (row.step, row.kind) == (0, "parameter")
    weight = f"Module.{'' if ranks == 1 else 'module.'}0.Linear.forward.0.parameters.weight"
    assert row.name == ("Functional.linear.0.forward.input.1" if level == "L1" else weight)
    assert len(found.parts) == 2 * ranks


def test_collect_and_compare_end_to_end_under_torchrun(tmp_path: Path) -> None:
    torchrun = f"torchrun --nproc_per_node=2 --standalone {TRAIN} ddp 2"
    environ = {"PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"}
    options = ("--step", "0,1", "--level", "mix", "--task", "tensor", "--quiet", "--parallel", "--timeout=150")
    sides = ("--baseline", torchrun, "--candidate", f"TEST_SCALE=1.01 {torchrun}")
    run = precdiag("collect", "--out", tmp_path / "run", *options, *sides, env=environ)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split()[-4:] == ["next:", "precdiag", "compare", f"{tmp_path}/run"]
    assert [line.split()[:2] for line in run.stdout.splitlines() if "complete" in line] == [
        ["0", "0"],
        ["0", "1"],
        ["1", "0"],
        ["1", "1"],
    ] * 2
    assert "rank 1's parameter module.0.weight" in run.stdout
    compared = precdiag("compare", tmp_path / "run", "--format", "json")
    assert compared.returncode == 1, compared.stderr
    found = json.loads(compared.stdout)
    causes = {each["rank"]: each["name"] for each in (found["first_cause"], *found["first_cause"]["also"])}
    assert causes[1] == "Module.module.0.Linear.forward.0.parameters.weight"
    assert found["evidence"] == "bytes"


def test_the_other_side_can_be_collected_later_and_a_foreign_dump_is_compared_too(tmp_path: Path) -> None:
    run, common = tmp_path / "run", ("--quiet", "--out", tmp_path / "run")
    theirs = {"TEST_OUT": str(tmp_path / "theirs")}
    own = precdiag("collect", *common, "--side", "baseline", "--", *train("own_debugger"), env=theirs)
    assert own.returncode == 0, own.stdout
    later = precdiag("collect", *common, "--side", "candidate", "--step", "0,1", "--", *train("plain"))
    assert later.returncode == 0, later.stdout
    assert set(document(run)["sides"]) == {"baseline", "candidate"}
    compared = precdiag("compare", run, "--format", "json")
    assert json.loads(compared.stdout)["coverage"]["compared"] > 20, compared.stderr
