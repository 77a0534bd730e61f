"""`precdiag demo`: with the real msprobe, in processes of its own, the planted weight is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("task", ["statistics", "md5", "tensor"])
def test_the_demo_finds_what_it_planted(tmp_path: Path, task: str) -> None:
    command = [sys.executable, "-m", "precdiag", "demo", "--task", task, "--keep", str(tmp_path / "pair")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "Functional.linear.1.forward.input.1" in run.stdout
    assert "found: the weight of the second layer" in run.stderr
    assert len(list((tmp_path / "pair").rglob("dump.json"))) == 2
