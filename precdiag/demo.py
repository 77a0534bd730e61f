"""Collect a pair with one known fault from the bundled script: the second layer's weight times 1.01."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from precdiag.cause import Cause
from precdiag.collect import collect
from precdiag.collection import LOG, Side, SideCommand
from precdiag.errors import UnreadableError
from precdiag.session import Request

SCRIPT = Path(__file__).with_name("demo_script.py")

# The fault that the demo plants, and the width that keeps tensor files small.
SCALE = 1.01
WIDTH = {"statistics": 512, "md5": 512, "tensor": 64}

PLANTED = f"planted: the candidate's second layer has its weight times {SCALE}; collecting both sides with msprobe"
# The second layer's weight, as level L1 names it and as L0 and mix do.
PLANTED_ROWS = ("Functional.linear.1.forward.input.1", "Module.1.Linear.forward.0.parameters.weight")

DemoTask = Literal["statistics", "tensor", "md5"]


def run_demo_pair(folder: Path, task: DemoTask, *, force: bool = False) -> tuple[Path, Path]:
    """Collect the pair into `folder`, one process a side under real msprobe; return the two run folders (`…/step0/…`).

    Raises UsageError where msprobe would refuse `folder` or it is in use, UnreadableError where a side left no dump.
    """
    request = Request(
        task="tensor" if task == "tensor" else "statistics", summary="md5" if task == "md5" else "statistics"
    )
    commands: dict[Side, SideCommand] = {"baseline": _command(task, 1.0), "candidate": _command(task, SCALE)}
    collection = collect(folder, request, commands, force=force, quiet=True)
    for side in collection.sides:
        if not side.verified:
            raise UnreadableError(
                f"the demo's {side.side} collected nothing: {side.proof.reason or side.ended.status}",
                hint=f"read {side.folder / LOG}; precdiag doctor checks torch and msprobe",
            )
    baseline, candidate = (side.proof.dump for side in collection.sides)
    return baseline, candidate


def is_planted(cause: Cause | None) -> bool:
    """Tell whether a first cause is the fault that the demo planted."""
    return cause is not None and cause.row.kind == "parameter" and cause.row.name in PLANTED_ROWS


def _command(task: DemoTask, scale: float) -> SideCommand:
    return SideCommand((sys.executable, str(SCRIPT), f"--width={WIDTH[task]}", f"--scale-second-layer={scale}"))
