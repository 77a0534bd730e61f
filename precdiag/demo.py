"""Collect a pair with one known fault from the bundled script: the second layer's weight times 1.01."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal
from uuid import uuid4

from precdiag.errors import UnreadableError
from precdiag.session import Request, hook_environment, write_session

SCRIPT = Path(__file__).with_name("demo_script.py")

# The fault that the demo plants, and the width that keeps tensor files small.
SCALE = 1.01
WIDTH = {"statistics": 512, "md5": 512, "tensor": 64}

DemoTask = Literal["statistics", "tensor", "md5"]


def run_demo_pair(folder: Path, task: DemoTask) -> tuple[Path, Path]:
    """Run the bundled script twice under real msprobe, one process a side; return the two run folders (`…/step0/…`).

    Raises UsageError where msprobe would refuse `folder`, UnreadableError where a side left no dump.
    """
    baseline = _run(folder / "baseline", task, scale=1.0)
    candidate = _run(folder / "candidate", task, scale=SCALE)
    return baseline, candidate


def _run(folder: Path, task: DemoTask, scale: float) -> Path:
    request = Request(
        task="tensor" if task == "tensor" else "statistics", summary="md5" if task == "md5" else "statistics"
    )
    write_session(folder, request, side=folder.name, identity=uuid4().hex)
    command = [sys.executable, str(SCRIPT), f"--width={WIDTH[task]}", f"--scale-second-layer={scale}"]
    environ = {**os.environ, **hook_environment(folder, os.environ)}
    with (folder / "log.txt").open("wb") as log:
        status = subprocess.run(command, env=environ, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    dump = folder / "dump"
    if status or not any(dump.glob("step0/*/dump.json")):
        raise UnreadableError(
            f"the demo's {folder.name} collected nothing (exit status {status})",
            hint=f"read {folder / 'log.txt'}; precdiag doctor checks torch and msprobe",
        )
    return dump
