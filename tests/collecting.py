"""Collect from the scripts in data/scripts, one real process a side, and look at what came of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from precdiag.collect import collect
from precdiag.collection import Collection, SideCommand, SideResult
from precdiag.launch import Ended
from precdiag.proof import prove
from precdiag.session import INJECT, Request, write_session

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
SCRIPTS = DATA / "scripts"
TRAIN = str(SCRIPTS / "train.py")

# The calls of one step of train.py's plain model at L1: three forward, the loss, all backward, four in-place updates.
PLAIN_CALLS = 14


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def one_side(folder: Path, *words: str, env: dict[str, str] | None = None, **options: Any) -> SideResult:
    """Collect one side of `words`; options are the request's, and collect's own."""
    mine = {key: options.pop(key) for key in ("force", "timeout", "repeat", "observe") if key in options}
    collection = both_sides(folder, {"candidate": (words, env or {})}, options, **mine)
    return collection.sides[0]


@dataclass(frozen=True)
class Run:
    """A script to run under the hook in a fork (see warm); `request` holds the request's options."""

    words: tuple[str, ...]
    request: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def shape(name: str, number: int = 3, env: Mapping[str, str] | None = None, **request: Any) -> Run:
    """A run of train.py."""
    return Run((TRAIN, name, str(number)), request, env or {})


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name`, which `make` fills: once for all of xdist's workers."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done.json"
        if not done.exists():
            folder.mkdir()
            done.write_text(json.dumps(make(folder)))
    return folder


def warm(
    factory: pytest.TempPathFactory, name: str, runs: Callable[[Path], Mapping[str, Run]]
) -> dict[str, SideResult]:
    """Collect every run into a folder of its own, in forks of one process that has torch and msprobe imported.

    `runs` is given the folder above the runs' own.
    """
    folder = once(factory, name, lambda folder: _run_warm(folder, runs(folder)))
    codes = json.loads((folder / "done.json").read_text())
    found = {}
    for (key, run), code in zip(runs(folder).items(), codes, strict=True):
        command = SideCommand(run.words, env=run.env)
        found[key] = SideResult("candidate", folder / key, command, Ended(code), prove(folder / key))
    return found


def _run_warm(folder: Path, runs: Mapping[str, Run]) -> list[int]:
    for name, run in runs.items():
        write_session(folder / name, Request(**run.request), side="candidate", identity=name)
    orders = [
        {"session": str(folder / name), "inject": str(INJECT), "words": run.words, "env": dict(run.env)}
        for name, run in runs.items()
    ]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PRECDIAG_")} | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPTS / "warm.py")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    try:
        out, _ = process.communicate(json.dumps(orders), timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a fork that hangs is not left behind
    codes: list[int] = json.loads(out.splitlines()[-1])
    return [128 - code if code < 0 else code for code in codes]


def both_sides(folder: Path, sides: dict[str, Any], request: dict[str, Any], **options: Any) -> Collection:
    """Collect each side of `sides`: name to (words, env)."""
    commands: Any = {name: SideCommand(tuple(words), Path.cwd(), env) for name, (words, env) in sides.items()}
    options.setdefault("quiet", True)
    options.setdefault("timeout", 180.0)  # far more than any needs: no hang outlives it
    return collect(folder, Request(**request), commands, **options)


def train(shape: str, steps: int = 3) -> tuple[str, ...]:
    """The words that run train.py's `shape`."""
    return sys.executable, TRAIN, shape, str(steps)


def interpreter_without(folder: Path, *prefixes: str) -> str:
    """A Python whose site-packages hold ours but for what begins with one of `prefixes`; precdiag is never in it."""
    library = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    library.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(sys.executable).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin" / "python").symlink_to(base)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        ours = entry.suffix == ".pth" or entry.name.startswith("precdiag")
        if not ours and not entry.name.lower().startswith(prefixes):
            (library / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


def calls(side: SideResult, step: int, rank: str = "*") -> list[str]:
    """The names that the side's dump holds for a step, in order."""
    (file,) = (side.proof.dump / f"step{step}").glob(f"{rank}/dump.json")
    return list(json.loads(file.read_text())["data"])


def states(side: SideResult) -> list[str]:
    """The state of every step in order."""
    return [step.state for step in side.proof.steps]


def document(folder: Path) -> dict[str, Any]:
    """collection.json."""
    found: dict[str, Any] = json.loads((folder / "collection.json").read_text())
    return found
