"""Collecting where precdiag is not installed, on several nodes, over restarts: kits, joining, verifying, merging."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import SCRIPTS, TRAIN, free_port, interpreter_without, once, one_side

from precdiag.collect import node_of
from precdiag.errors import UsageError
from precdiag.proof import NOT_STARTED, RAY
from precdiag.receipts import read_receipts

PYTHON = sys.executable
TORCHRUN = str(Path(PYTHON).with_name("torchrun"))


def precdiag(*words: object, env: dict[str, str] | None = None) -> Any:
    """Run the command in a process of its own."""
    return subprocess.run(
        [PYTHON, "-m", "precdiag", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"} | (env or {}),
        check=False,
        timeout=240,
    )


def collected(folder: Path, side: str = "candidate") -> dict[str, Any]:
    """That side's entry in collection.json."""
    found: dict[str, Any] = json.loads((folder / "collection.json").read_text())["sides"][side]
    return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two torchrun launchers, a rank each, each under a collect of its own, into one collection: run/, 0.txt, 1.txt."""
    return once(tmp_path_factory, "nodes", run_two_nodes)


def run_two_nodes(folder: Path) -> list[int]:
    port = free_port()
    launchers = []
    for node in (0, 1):
        meet = ("--master_addr=127.0.0.1", f"--master_port={port}", "--nnodes=2", f"--node_rank={node}")
        train = (TORCHRUN, *meet, "--nproc_per_node=1", TRAIN, "ddp", "2")
        options = (f"--out={folder}/run", f"--node={node}", "--run-id=job7", "--step=0,1", "--quiet", "--timeout=150")
        with (folder / f"{node}.txt").open("w") as out:
            words = [PYTHON, "-m", "precdiag", "collect", *options, "--", *train]
            launchers.append(subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT))
    return [launcher.wait(timeout=180) for launcher in launchers]


def test_two_nodes_write_into_one_collection_and_are_judged_together(nodes: Path, tmp_path: Path) -> None:
    assert json.loads((nodes / "done.json").read_text()) == [0, 0], (nodes / "1.txt").read_text()
    assert "this is node 1 alone" in (nodes / "1.txt").read_text()
    shutil.copytree(nodes / "run", tmp_path / "run")
    side = tmp_path / "run" / "candidate"
    assert {"log-node0.txt", "log-node1.txt", "node-0.json", "node-1.json"} <= {path.name for path in side.iterdir()}
    run = precdiag("collect", "--verify", tmp_path / "run")
    assert run.returncode == 0, run.stdout + run.stderr
    steps = [(step["step"], step["rank"], step["state"]) for step in collected(tmp_path / "run")["steps"]]
    assert steps == [(0, 0, "complete"), (0, 1, "complete"), (1, 0, "complete"), (1, 1, "complete")]


def test_a_node_that_left_nothing_is_named(nodes: Path, tmp_path: Path) -> None:
    shutil.copytree(nodes / "run", tmp_path / "run")
    drop_rank(tmp_path / "run" / "candidate", 1)
    run = precdiag("collect", "--verify", tmp_path / "run")
    assert run.returncode == 125
    assert "node 1 left nothing: ranks 1 are missing" in " ".join(run.stdout.split())


def test_each_nodes_own_folder_is_merged_by_global_rank(nodes: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copytree(nodes / "run" / "candidate", tmp_path / f"from{rank}")
        drop_rank(tmp_path / f"from{rank}", 1 - rank)
    parts = tmp_path / "from0", tmp_path / "from1"
    misplaced = precdiag("collect", "--verify", parts[0], "--out", tmp_path / "half")
    assert misplaced.returncode == 2
    assert "options go before the folders" in misplaced.stderr
    run = precdiag("collect", "--out", tmp_path / "half", "--verify", parts[0])
    assert run.returncode == 125
    assert "node 1 left nothing" in run.stdout
    run = precdiag("collect", "--out", tmp_path / "whole", "--verify", *parts)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [step["rank"] for step in collected(tmp_path / "whole")["steps"]] == [0, 1, 0, 1]
    again = precdiag("collect", "--out", tmp_path / "whole", "--verify", *parts)
    assert again.returncode == 0, again.stderr
    compared = precdiag("compare", tmp_path / "whole/candidate", nodes / "run/candidate", "--format", "json")
    assert len(json.loads(compared.stdout)["coverage"]["by_rank"]) == 4
    twice = precdiag("collect", "--out", tmp_path / "twice", "--verify", parts[0], parts[0])
    assert twice.returncode == 2
    assert "one folder twice" in twice.stderr
    settings = json.loads((parts[1] / "session.json").read_text())
    (parts[1] / "session.json").write_text(json.dumps({**settings, "session": "other"}))
    other = precdiag("collect", "--out", tmp_path / "other", "--verify", *parts)
    assert other.returncode == 2
    assert "come from different sessions of the candidate" in other.stderr


def drop_rank(side: Path, rank: int) -> None:
    """Take out of a side's folder everything that one rank, alone on its node, left."""
    for path in side.glob(f"receipts/{'*'}.json"):
        if json.loads(path.read_text())["rank"] in (rank, None):
            path.unlink()
    for folder in side.glob(f"dump/step*/rank{rank}"):
        shutil.rmtree(folder)
    (side / f"node-{rank}.json").unlink()


def test_a_node_joins_its_own_run_with_the_same_options_only(nodes: Path) -> None:
    common = ("collect", f"--out={nodes}/run", "--node=2", "--quiet")
    other = precdiag(*common, "--run-id=job8", "--step=0,1", "--", "true")
    assert other.returncode == 2
    assert "holds the collection of another run, job7" in other.stderr
    options = precdiag(*common, "--run-id=job7", "--step=0", "--", "true")
    assert options.returncode == 2
    assert "was begun with other options" in options.stderr
    same = precdiag("collect", f"--out={nodes}/run", "--node=1", "--run-id=job7", "--step=0,1", "--", "true")
    assert same.returncode == 2
    assert "holds what node 1 left" in same.stderr


def test_which_node_this_is_comes_from_the_launcher() -> None:
    assert node_of(None, None, {}) is None
    assert node_of(None, None, {"GROUP_RANK": "3", "SLURM_JOB_ID": "9"}).__dict__ == {"number": 3, "run": "9"}
    assert node_of(1, "x", {"GROUP_RANK": "3"}).__dict__ == {"number": 1, "run": "x"}
    with pytest.raises(UsageError, match="need an id that they share"):
        node_of(1, None, {})


def test_a_kit_works_from_another_place_under_an_interpreter_without_precdiag(tmp_path: Path) -> None:
    python = interpreter_without(tmp_path / "venv", "pydantic", "typer", "rich", "hypothesis", "pytest", "ray")
    imported = subprocess.run([python, "-c", "import precdiag"], capture_output=True, cwd=tmp_path, check=False)
    assert imported.returncode == 1
    made = precdiag("collect", "--prepare", tmp_path / "made", "--side", "baseline", "--step", "0-1", "--level", "mix")
    assert made.returncode == 0, made.stderr
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"inject", "session.json", "msprobe.json"}
    kit, out = tmp_path / "elsewhere" / "kit", tmp_path / "out"
    kit.parent.mkdir()
    (tmp_path / "made").rename(kit)
    before = sorted(kit.rglob("*"))
    lines = [line for line in made.stdout.splitlines() if line.startswith("export ")]
    assert len(lines) == 2
    script = "\n".join([*lines, f"export PRECDIAG_OUT={out}", f"{python} {TRAIN} plain"]).replace(
        str(tmp_path / "made"), str(kit)
    )
    (tmp_path / "run.sh").write_text(script)
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(["bash", tmp_path / "run.sh"], env=environ, check=True, capture_output=True)
    assert sorted(kit.rglob("*")) == before
    run = precdiag("collect", "--out", tmp_path / "run", "--verify", out)
    assert run.returncode == 0, run.stdout + run.stderr
    side = collected(tmp_path / "run", "baseline")
    assert [step["state"] for step in side["steps"]] == ["complete", "complete"]
    assert side["environment"]["executable"] == python
    assert precdiag("compare", tmp_path / "run/baseline", tmp_path / "run/baseline").returncode == 0
    doctor = precdiag("doctor", "--kit", kit, "--python", python, env={"PYTHONPATH": ""})
    said = {line.split()[1]: line.split()[0] for line in doctor.stdout.splitlines() if not line.startswith(" ")}
    assert doctor.returncode == 0, doctor.stdout
    assert said == {
        **dict.fromkeys(("python", "session", "out", "flags", "sitecustomize", "torch", "msprobe"), "ok"),
        "variables": "warn",
    }
    assert python in doctor.stdout


def test_the_kits_doctor_fails_where_the_hook_would(tmp_path: Path) -> None:
    kit = tmp_path / "a kit"
    precdiag("collect", "--prepare", kit, "--side", "baseline")
    python = interpreter_without(tmp_path / "venv", "msprobe", "mindstudio", "torch")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").touch()
    path = f"{tmp_path}/first{os.pathsep}{kit}/inject"
    run = precdiag("doctor", "--kit", kit, "--python", python, env={"PYTHONPATH": path})
    failed = {line.split()[1] for line in run.stdout.splitlines() if line.startswith("fail")}
    assert run.returncode == 1
    assert failed == {"path", "sitecustomize", "torch", "msprobe"}
    assert precdiag("doctor", "--kit", tmp_path).returncode == 2


def test_a_kit_or_session_in_use_is_refused(tmp_path: Path) -> None:
    for mode in (("--prepare", tmp_path / "kit"), ("--print-env", "--out", tmp_path / "run")):
        assert precdiag("collect", *mode).returncode == 0
        refused = precdiag("collect", *mode)
        assert refused.returncode == 2
        assert "--force" in refused.stderr
        assert precdiag("collect", *mode, "--force").returncode == 0


def test_print_env_gives_the_two_variables_alone_and_verify_judges_what_they_led_to(tmp_path: Path) -> None:
    printed = precdiag(
        "collect", "--print-env", "--out", tmp_path / "run", "--side", "baseline", env={"PYTHONPATH": "x"}
    )
    names = [line.partition("=")[0] for line in printed.stdout.splitlines()]
    assert names == ["PRECDIAG_SESSION", "PYTHONPATH"]
    assert printed.stdout.endswith(f"inject{os.pathsep}x\n")
    env = dict(line.split("=", 1) for line in printed.stdout.splitlines())
    subprocess.run([PYTHON, "-c", "pass"], env={**os.environ, **env}, check=True)
    run = precdiag("collect", "--verify", tmp_path / "run")
    assert run.returncode == 125
    assert "started but never attached: torch was never imported" in run.stdout


def test_a_dump_made_by_hand_is_judged_by_its_files_and_that_is_said(
    real: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = real("dumps") / "26.2.0/statistics-L1/A"
    run = precdiag("collect", "--out", tmp_path / "run", "--side", "baseline", "--verify", whole)
    assert run.returncode == 0, run.stderr
    assert "has no receipts: judged by its files alone" in " ".join(run.stdout.split())
    cut = precdiag("collect", "--out", tmp_path / "run", "--verify", real("unfinished") / "kill")
    assert cut.returncode == 125
    assert "step 1 is empty" in cut.stdout
    assert set(json.loads((tmp_path / "run/collection.json").read_text())["sides"]) == {"baseline", "candidate"}
    assert precdiag("compare", tmp_path / "run/baseline", whole).returncode == 0


def test_a_child_of_a_long_lived_parent_ends_125_naming_ray(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    parent = subprocess.Popen(["sh", "-c", f"read line < {orders}; {PYTHON} -c pass; touch {tmp_path}/done"])
    script = f"echo go > {orders}; while [ ! -e {tmp_path}/done ]; do sleep 0.1; done"
    side = one_side(tmp_path / "run", "sh", "-c", script)
    assert parent.wait(timeout=60) == 0
    assert not side.verified
    assert side.proof.reason == NOT_STARTED
    assert "Ray" in NOT_STARTED


def test_after_an_elastic_restart_the_last_complete_attempt_is_judged_and_the_first_is_kept(tmp_path: Path) -> None:
    words = (TORCHRUN, "--standalone", "--nproc_per_node=2", "--max-restarts=1", TRAIN, "ddp", "3")
    # a store of its own for each attempt: in a shared one gloo can meet an address of the attempt before, and wait
    env = {"TEST_DIES": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    options = ("--out", tmp_path / "run", "--step", "0,1", "--timeout", "150")
    run = precdiag("collect", *options, "--", *words, env=env)
    assert run.returncode == 0, run.stdout + run.stderr
    side = collected(tmp_path / "run")
    assert [step["state"] for step in side["steps"]] == ["complete"] * 4
    said = " ".join(run.stdout.split())
    assert "restarted 1 times: attempt 1 is judged" in said
    assert "attempt 0 is kept, not judged: killed inside a step: step 1 of rank 0 is unfinished" in said
    folder = tmp_path / "run" / "candidate"
    assert {r["attempt"] for r in read_receipts(folder) if r["rank"] is not None} == {0, 1}
    assert len(list(folder.glob("attempts/0/step0/rank*/dump.json"))) == 2
    assert (folder / "dump").resolve() == folder / "attempts/1"
    assert precdiag("collect", "--verify", tmp_path / "run").returncode == 0
    assert precdiag("compare", folder, folder / "attempts/1", "--step", "1").returncode == 0


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a Ray cluster that was started without the variables."""
    pytest.importorskip("ray")
    port = free_port()
    start = f"import ray.scripts.scripts as s, sys; sys.argv=['ray','start','--head','--port={port}'," \
        "'--num-cpus=1','--include-dashboard=false','--block']; s.main()"  # fmt: skip
    head = subprocess.Popen([PYTHON, "-c", start], stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < end, "the Ray cluster did not start"
        time.sleep(0.2)
    yield f"127.0.0.1:{port}"
    os.killpg(head.pid, signal.SIGTERM)
    head.wait(timeout=60)


def test_ray_workers_collect_with_the_runtime_env_line_and_ray_is_named_without(cluster: str, tmp_path: Path) -> None:
    script = (PYTHON, str(SCRIPTS / "on_ray.py"), cluster)
    without = precdiag("collect", "--out", tmp_path / "without", "--quiet", "--", *script)
    assert without.returncode == 125, without.stdout + without.stderr
    assert RAY in " ".join(without.stdout.split())
    printed = precdiag("collect", "--print-env", "--out", tmp_path / "run", env={"PYTHONPATH": ""})
    variables = dict(line.split("=", 1) for line in printed.stdout.splitlines())
    done = subprocess.run([*script, json.dumps(variables)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    run = precdiag("collect", "--verify", tmp_path / "run")
    assert run.returncode == 0, run.stdout + run.stderr
