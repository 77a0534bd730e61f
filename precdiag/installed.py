"""The installed msprobe: which one, which version, and its own compare, run on a pair of dumps.

Not named msprobe: the demo script runs from this folder, and would import this module for the package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from precdiag.errors import PrecdiagError, UnreadableError, UsageError
from precdiag.hook import injected
from precdiag.layout import DUMP_FILE
from precdiag.session import check_path
from precdiag.tablefile import TableFile, find_tables

# From 26.0 on `msprobe compare` takes two step folders; before, a JSON file that names two dump.json (MSPROBE.md).
FIRST_WITH_FOLDERS = (26, 0)

_INSTALL = "pip install mindstudio-probe"
_VERSION = "import importlib.metadata as m; print(m.version('mindstudio-probe'))"
_ERROR = re.compile(r"\[ERROR\] (?P<said>.*)")
# It says so on every start without an NPU, whatever it then does.
_HARMLESS = "CANN environment"


@dataclass(frozen=True)
class Msprobe:
    """An msprobe that can be run: the words that start it, and its version as the package says it."""

    command: tuple[str, ...]
    version: str

    @property
    def takes_folders(self) -> bool:
        """Whether its compare takes two step folders; 1.x and 8.x take the files of one rank."""
        numbers = re.findall(r"\d+", self.version)[:2]
        return tuple(map(int, numbers)) >= FIRST_WITH_FOLDERS


def find_msprobe() -> Msprobe:
    """Return this interpreter's msprobe, else the one that `msprobe` on PATH belongs to.

    Raises PrecdiagError where there is none, or where it is PyPI's unrelated package of that name.
    """
    probe = injected("_precdiag_probe")
    problem = probe.package_problem()
    if problem is None:
        return Msprobe((sys.executable, "-m", "msprobe.msprobe"), str(probe.package_version()))
    script = shutil.which("msprobe")
    if script is None:
        raise PrecdiagError(str(problem).partition(": pip")[0], hint=_INSTALL)
    version = _version_of(Path(script))
    if version is None:
        raise PrecdiagError(f"{script} is not MindStudio Probe, but another tool of that name", hint=_INSTALL)
    return Msprobe((script,), version)


def run_compare(msprobe: Msprobe, baseline: Path, candidate: Path, out: Path) -> tuple[TableFile, ...]:
    """Run its compare on two step folders (26.x) or two rank folders (any version); return the tables that it left.

    `out` is an empty folder. The exit status is 0 whatever happened, so only the tables count: raises UnreadableError
    with what msprobe said where there is none, and where it refuses a path.
    """
    for path in (baseline, candidate, out):
        try:
            check_path(path.absolute())
        except UsageError as error:
            raise UnreadableError(str(error)) from None
    words = [*msprobe.command, *_arguments(msprobe, baseline.absolute(), candidate.absolute(), out.absolute())]
    log = out / "msprobe.log"
    # Comparing needs no NPU, and torch-npu without CANN would fail inside torch's own import.
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with log.open("wb") as stream:
        try:
            run = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environ, check=False
            )
        except OSError as error:
            raise PrecdiagError(f"{words[0]} cannot be run: {error.strerror}", hint=_INSTALL) from None
    try:
        return find_tables([out])
    except UnreadableError:
        said = _last_words(log.read_text(encoding="utf-8", errors="replace"))
        raise UnreadableError(
            f"msprobe {msprobe.version} compared {baseline} and {candidate} and left no table"
            f" (it ended with {run.returncode}): {said}"
        ) from None


def _arguments(msprobe: Msprobe, baseline: Path, candidate: Path, out: Path) -> list[str]:
    if msprobe.takes_folders:
        sides = [folder / DUMP_FILE if (folder / DUMP_FILE).exists() else folder for folder in (candidate, baseline)]
        return ["compare", "-tp", str(sides[0]), "-gp", str(sides[1]), "-o", str(out)]
    paths = {"npu_path": str(candidate / DUMP_FILE), "bench_path": str(baseline / DUMP_FILE)}
    stacks = candidate / "stack.json"
    if stacks.exists():
        paths["stack_path"] = str(stacks)
    settings = out / "compare.json"
    settings.write_text(json.dumps({**paths, "is_print_compare_log": False}, indent=1), encoding="utf-8")
    words = ["-f", "pytorch", "compare", "-i", str(settings), "-o", str(out)]
    return [*words, "-s"] if stacks.exists() else words


def _version_of(script: Path) -> str | None:
    """Ask the interpreter that an installed script names in its first line."""
    with script.open("rb") as stream:
        first = stream.readline(4096).decode("utf-8", errors="replace")
    words = first[2:].split() if first.startswith("#!") else []
    if not words:
        return None
    try:
        run = subprocess.run([*words, "-c", _VERSION], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None


def _last_words(log: str) -> str:
    """The last error that msprobe logged, else its last line."""
    errors = [match["said"] for match in _ERROR.finditer(log) if _HARMLESS not in match["said"]]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return (errors or lines or ["it said nothing"])[-1]
