"""The README keeps its word: its shell examples run, and the Chinese page shows the same code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The set-up itself: CI runs it before the suite can start.
SET_UP = "make demo\nmake test\n"


def blocks(page: str) -> list[str]:
    """All code blocks of a page, fences included."""
    return re.findall(r"^```\w*\n.*?^```$", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)


def test_both_languages_show_the_same_code() -> None:
    assert blocks("README.md") == blocks("README.zh-CN.md")
    assert len(blocks("README.md")) >= 7


def test_every_shell_example_runs(tmp_path: Path) -> None:
    examples = [block[6:-3] for block in blocks("README.md") if block.startswith("```sh\n")]
    assert SET_UP in examples
    script = "set -eu\n" + "\n".join(example for example in examples if example != SET_UP)
    here = Path(sys.executable).parent
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "found: the weight of the second layer" in run.stderr


def test_the_shown_output_is_what_the_demo_prints() -> None:
    shown = next(block for block in blocks("README.md") if "DIVERGED" in block)
    run = subprocess.run(
        [sys.executable, "-m", "precdiag", "demo"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
        timeout=300,
    )
    printed = {" ".join(line.split()[:3]) for line in run.stdout.splitlines()}
    for line in shown.splitlines()[4:-1]:
        if not line.startswith(("  source", "             model")):  # where the package is installed
            assert " ".join(line.split()[:3]) in printed, line
