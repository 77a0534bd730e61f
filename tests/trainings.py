"""Real runs of the small transformer under msprobe, one a fault, collected once and shared by all test processes."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from precdiag.collect import collect
from precdiag.collection import SideCommand
from precdiag.session import Request

SCRIPT = Path(__file__).parent / "data" / "scripts" / "transformer.py"
FAULTS = ("activation", "weight", "batch", "backward", "rate", "optimizer")
OTHER = ("other:none", "other:scale")
STEPS = 8


def command(fault: str) -> SideCommand:
    return SideCommand((sys.executable, str(SCRIPT), fault))


def collect_all(factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one side a run (`none`, each fault, OTHER): every step, checksums of every call."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trainings"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "done").exists():
            _collect(shared)
            (shared / "done").touch()
    return shared


def pair(shared: Path, fault: str, folder: Path) -> Path:
    """Lay out a fault's run against the healthy one as `precdiag collect` does, without its collection.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "baseline").symlink_to(shared / "none")
    (folder / "candidate").symlink_to(shared / fault)
    return folder


def _collect(shared: Path) -> None:
    request = Request(steps=tuple(range(STEPS)), level="mix", summary="md5")
    names = ("none", *FAULTS, *OTHER)
    for one, other in zip(names[::2], [*names[1::2], None], strict=True):
        sides = {"baseline": command(one)} | ({"candidate": command(other)} if other else {})
        folder = shared / f"pair-{one}"
        result = collect(folder, request, sides, parallel=True, quiet=True)  # type: ignore[arg-type]
        assert all(side.verified for side in result.sides)
        for side, name in (("baseline", one), ("candidate", other)):
            if name:
                (shared / name).symlink_to(folder / side)
