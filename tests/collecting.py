"""Collect from the scripts in data/scripts, one real process a side, and look at what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precdiag.collect import Collection, SideCommand, SideResult, collect
from precdiag.launch import Ended
from precdiag.receipts import prove
from precdiag.session import INJECT, Request, write_session

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
SCRIPTS = DATA / "scripts"
TRAIN = str(SCRIPTS / "train.py")

# The calls of one step of train.py's plain model at L1: three forward, the loss, all backward, four in-place updates.
PLAIN_CALLS = 14


def one_side(folder: Path, *words: str, env: dict[str, str] | None = None, **options: Any) -> SideResult:
    """Collect one side of `words`; options are the request's, and collect's own."""
    mine = {
        key: options.pop(key) for key in ("force", "timeout", "check_determinism", "check_observer") if key in options
    }
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


def warm(folder: Path, runs: Mapping[str, Run]) -> dict[str, SideResult]:
    """Collect every run into a folder of its own, in forks of one process that has torch and msprobe imported."""
    for name, run in runs.items():
        write_session(folder / name, Request(**run.request), side="candidate", identity=name)
    orders = [
        {"session": str(folder / name), "inject": str(INJECT), "words": run.words, "env": dict(run.env)}
        for name, run in runs.items()
    ]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PRECDIAG_")} | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPTS / "warm.py")]
    done = subprocess.run(
        words, input=json.dumps(orders), env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    found = {}
    for (name, run), status in zip(runs.items(), done.stdout.split()[-len(runs) :], strict=True):
        side, command = folder / name, SideCommand(run.words, env=run.env)
        code = int(status)
        found[name] = SideResult("candidate", side, command, Ended(128 - code if code < 0 else code), prove(side))
    return found


def both_sides(folder: Path, sides: dict[str, Any], request: dict[str, Any], **options: Any) -> Collection:
    """Collect each side of `sides`: name to (words, env)."""
    commands: Any = {name: SideCommand(tuple(words), Path.cwd(), env) for name, (words, env) in sides.items()}
    options.setdefault("quiet", True)
    options.setdefault("timeout", 60.0)
    return collect(folder, Request(**request), commands, **options)


def train(shape: str, steps: int = 3) -> tuple[str, ...]:
    """The words that run train.py's `shape`."""
    return sys.executable, TRAIN, shape, str(steps)


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
