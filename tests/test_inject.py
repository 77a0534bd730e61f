"""The hook in somebody else's process: how it gets in, where it finds a step, what it leaves alone."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import DATA, PLAIN_CALLS, SCRIPTS, TRAIN, calls, one_side, train

from precdiag.proof import NOT_STARTED, prove
from precdiag.session import INJECT, Request, write_session

PYTHON = sys.executable

# sitecustomize of a user's own, that says it ran.
THEIRS = "import os\nprint('their sitecustomize ran', os.environ.get('PRECDIAG_SESSION') is not None)\n"


def shell(folder: Path, text: str) -> str:
    """A script in `folder` for bash to run."""
    file = folder / "run.sh"
    file.write_text(text)
    return str(file)


WAYS_IN = {
    "module": lambda folder: ("/bin/sh", "-c", f"cd {SCRIPTS} && {PYTHON} -m train plain"),
    "pipe": lambda folder: (
        "/bin/sh",
        "-c",
        f"bash {shell(folder, f'mkdir {folder}/x && cd {folder}/x && {PYTHON} {TRAIN} plain')} | tee {folder}/tee.log",
    ),
    "exec": lambda folder: (PYTHON, "-c", f"import os; os.execv({PYTHON!r}, [{PYTHON!r}, {TRAIN!r}, 'plain'])"),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_the_hook_gets_in(way: str, tmp_path: Path) -> None:
    side = one_side(tmp_path / "run", *WAYS_IN[way](tmp_path), steps=(0, 1, 2))
    assert side.verified, side.proof.reason
    assert [step.calls for step in side.proof.steps] == [PLAIN_CALLS] * 3


def test_their_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(THEIRS)
    side = one_side(tmp_path / "run", *train("plain"), env={"PYTHONPATH": str(tmp_path)})
    assert side.verified
    assert "their sitecustomize ran True" in (side.folder / "log.txt").read_text()


@pytest.mark.parametrize("words", [(PYTHON, "-I", "-c", "pass"), ("env", "-i", PYTHON, "-c", "pass")])
def test_where_the_variables_do_not_reach_it_ends_125_and_says_what_to_pass_on(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    side = one_side(tmp_path / "run", *words)
    assert side.ended.status == 0
    assert not side.verified
    assert side.proof.reason == NOT_STARTED
    assert side.proof.hint is not None
    assert f"PRECDIAG_SESSION={tmp_path}/run/candidate" in side.proof.hint
    assert str(INJECT) in side.proof.hint


def test_a_script_that_sets_pythonpath_itself_is_not_started(tmp_path: Path) -> None:
    script = shell(tmp_path, f"export PYTHONPATH={tmp_path}\n{PYTHON} -c pass")
    assert one_side(tmp_path / "run", "bash", script).proof.reason == NOT_STARTED


def test_data_loader_workers_never_attach(tmp_path: Path) -> None:
    words = (PYTHON, str(SCRIPTS / "workers.py"), "fork", "spawn", "forkserver")
    side = one_side(tmp_path / "run", *words, steps=tuple(range(9)))
    assert side.verified, side.proof.reason
    attached = [r["pid"] for r in side.proof.receipts if r["state"] == "attached"]
    assert len(attached) == 1
    assert len(side.proof.receipts) >= 4
    assert all(calls(side, step) == calls(side, 0) for step in range(9))
    assert not [name for name in calls(side, 0) if "full" in name]


def test_two_ranks_under_torchrun(tmp_path: Path) -> None:
    torchrun = ("torchrun", "--nproc_per_node=2", "--standalone", TRAIN, "ddp")
    environ = {"PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"}
    side = one_side(tmp_path / "run", *torchrun, env=environ, steps=(0, 2), level="mix")
    assert side.verified, side.proof.reason
    assert [(step.step, step.rank) for step in side.proof.steps] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    names = calls(side, 2, "rank1")
    assert "Module.module.0.Linear.forward.0" in names
    assert names == calls(side, 0, "rank1")


def test_without_a_session_the_folder_on_the_path_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(THEIRS)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{INJECT}{os.pathsep}{tmp_path}"}
    code = "import sys; print([m for m in sys.modules if 'precdiag' in m], sys.path.index(sys.argv[1]))"
    run = subprocess.run(
        [PYTHON, "-c", code, str(INJECT)], env=environ, capture_output=True, text=True, timeout=180, check=True
    )
    assert run.stdout == "their sitecustomize ran False\n[] 1\n"
    assert run.stderr == ""


def test_a_session_that_cannot_be_read_is_one_line_and_the_program_runs(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(INJECT), "PRECDIAG_SESSION": str(tmp_path / "gone")}
    run = subprocess.run(
        [PYTHON, "-c", "print('ran')"], env=environ, capture_output=True, text=True, timeout=180, check=True
    )
    assert run.stdout == "ran\n"
    assert run.stderr.startswith("precdiag: the hook did not start: FileNotFoundError")
    assert run.stderr.count("\n") == 1


def test_nothing_of_ours_is_left_in_a_process_after_the_last_step(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import torch, train\n"
        "call, backward, init = torch.nn.Module.__call__, torch.autograd.backward, torch.optim.Optimizer.__init__\n"
        "linear = torch.nn.functional.linear\n"
        "model = train.small(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3): model(train.batch()).sum().backward(); optimizer.step()\n"
        "ours = lambda f: f.__code__.co_filename == '<precdiag>'\n"
        "assert ours(call) and ours(backward) and ours(init), 'the hook was never in'\n"
        "now = torch.nn.Module.__call__, torch.autograd.backward, torch.optim.Optimizer.__init__\n"
        "assert not any(map(ours, now)), now\n"
        "assert torch.nn.functional.linear is linear or 'msprobe' not in repr(torch.nn.functional.linear)\n"
        "for m in model.modules():\n"
        "    assert not m._forward_pre_hooks and not m._forward_hooks and 'forward' not in vars(m)\n"
        "print('clean')\n"
    )
    side = one_side(tmp_path / "run", PYTHON, "-c", code, steps=(0,), level="mix")
    log = (side.folder / "log.txt").read_text()
    assert side.verified, log
    assert "clean" in log


@pytest.mark.parametrize("file", sorted(INJECT.glob("*.py")), ids=lambda file: file.name)
def test_the_injected_files_are_python_38_and_standard_library_only(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in imported}
    own = {each.stem for each in INJECT.glob("*.py")}
    assert roots <= set(sys.stdlib_module_names) | own | {"torch", "msprobe"}
    at_top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert not at_top & {"torch", "msprobe"}


def interpreters() -> list[str]:
    """The interpreters of this machine that the hook is written for: on PATH, and those of a version manager."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in range(8, 15):
        places = [shutil.which(f"python3.{minor}"), *managed.glob(f"3.{minor}.*/bin/python")]
        for python in map(str, filter(None, places)):
            # a version manager's shim may have no version behind it
            if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
                found[minor] = python
    return list(found.values())


def test_the_hook_collects_under_every_python_there_is(tmp_path: Path) -> None:
    """Torch and msprobe are stubs here, as there is no torch for some of these: what runs is the hook's own code."""
    for python in [PYTHON, *interpreters()]:
        folder = tmp_path / python.replace("/", "_")
        write_session(folder, Request(steps=(0, 1), seed=1), side="x", identity="x")
        path = f"{INJECT}{os.pathsep}{DATA / 'stubs_torch'}"
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PRECDIAG_SESSION": str(folder)}
        words = [python, SCRIPTS / "any_python.py"]
        run = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=180, check=False)
        assert (run.stdout, run.stderr) == ("trained\n", ""), python
        proof = prove(folder)
        assert [(step.state, step.calls) for step in proof.steps] == [("complete", 1)] * 2, (python, proof.reason)
        (receipt,) = proof.receipts
        assert (receipt["state"], receipt["finished"]) == ("attached", True)
        doctor = subprocess.run(
            [python, INJECT / "_precdiag_doctor.py", folder],
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert doctor.stderr == "", python
        assert "ok    session        x, step [0, 1], L1 statistics" in doctor.stdout
