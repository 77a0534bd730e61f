"""Check what a collection needs in this interpreter, on this disk: each line ok, warn or fail, with what to do."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precdiag.collect import LEAST_FREE_BYTES
from precdiag.environment import DETERMINISTIC_VARIABLES
from precdiag.errors import UsageError
from precdiag.hook import injected
from precdiag.session import check_path

# The first version whose dumps this project reads (MSPROBE.md), and the first with today's layout and CRC of bf16.
OLDEST_MSPROBE = (1, 2)
TODAYS_MSPROBE = (26, 0)


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, and what to do about it."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


def examine(folder: Path) -> list[Check]:
    """Check this interpreter and `folder`, where a collection would go. Imports torch; never raises."""
    checks: list[Callable[[], Check]] = [_python, _torch, _torch_npu, _cann, _msprobe, _determinism]
    return [*(check() for check in checks), _disk(folder), _path(folder)]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "ok", f"{version}, {sys.executable}")


def _torch() -> Check:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return Check("torch", "fail", str(error), "pip install torch")
    except RuntimeError as error:  # torch_npu without CANN fails inside torch's own import
        return Check("torch", "fail", str(error), "source CANN's set_env.sh, or TORCH_DEVICE_BACKEND_AUTOLOAD=0")
    return Check("torch", "ok", str(torch.__version__))


def _torch_npu() -> Check:
    if importlib.util.find_spec("torch_npu") is None:
        return Check("torch_npu", "ok", "not installed: this is a CPU or GPU side")
    try:
        torch_npu = importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:
        return Check("torch_npu", "fail", str(error), "source CANN's set_env.sh")
    return Check("torch_npu", "ok", str(torch_npu.__version__))


def _cann() -> Check:
    evidence = injected("_precdiag_evidence")
    if importlib.util.find_spec("torch_npu") is None:
        return Check("CANN", "ok", "not needed without torch_npu")
    home = evidence.cann_home()
    if not Path(home).is_dir():
        return Check("CANN", "fail", f"{home} does not exist", "install CANN, or source its set_env.sh")
    return Check("CANN", "ok", home)


def _msprobe() -> Check:
    probe = injected("_precdiag_probe")
    problem = probe.package_problem()
    if problem is not None:
        return Check("msprobe", "fail", problem, probe.INSTALL_LINE)
    version = str(probe.package_version())
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_MSPROBE:
        return Check("msprobe", "fail", f"{version} is older than 1.2", probe.INSTALL_LINE)
    if numbers < TODAYS_MSPROBE:
        return Check("msprobe", "warn", f"{version}: an older dialect", "use the same version on both sides")
    return Check("msprobe", "ok", version)


def _determinism() -> Check:
    missing = [f"{name}={value}" for name, value in DETERMINISTIC_VARIABLES.items() if name not in os.environ]
    if missing:
        return Check("determinism", "warn", f"not set: {', '.join(missing)}", "collect --deterministic sets them")
    return Check("determinism", "ok", ", ".join(f"{name}={os.environ[name]}" for name in DETERMINISTIC_VARIABLES))


def _disk(folder: Path) -> Check:
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check("disk", "fail", f"{there} cannot be written", "choose another folder")
    if free < LEAST_FREE_BYTES:
        return Check("disk", "fail", f"{free / 2**20:.0f} MiB free in {there}", "free some room")
    return Check("disk", "ok", f"{free / 2**30:.1f} GiB free in {there}")


def _path(folder: Path) -> Check:
    try:
        check_path(folder.absolute())
    except UsageError as error:
        return Check("path", "fail", str(error), error.hint or "")
    return Check("path", "ok", str(folder.absolute()))
