"""The completion scripts: as the app prints them, and bash completes with one."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATE = runpy.run_path(str(ROOT / "completions" / "generate.py"))


@pytest.fixture
def path_with_precdiag(tmp_path: Path) -> str:
    """A PATH whose `precdiag` is this tree's, whether or not it is installed."""
    entry = tmp_path / "entry" / "precdiag"
    entry.parent.mkdir()
    entry.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom precdiag.cli import main\nmain()\n")
    command = tmp_path / "bin" / "precdiag"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{entry}" "$@"\n')
    command.chmod(0o755)
    return os.pathsep.join([str(command.parent), os.environ["PATH"]])


def bash_completes(path: str, *words: str) -> list[str]:
    """What TAB offers in bash after `words`, the last of them unfinished."""
    script = ROOT / "completions" / GENERATE["FILES"]["bash"]
    line = f'source "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _precdiag_completion "$1"'
    shown = subprocess.run(
        ["bash", "-c", line + '; printf "%s\\n" "${COMPREPLY[@]}"', "bash", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_what_the_app_prints(shell: str) -> None:
    committed = (ROOT / "completions" / GENERATE["FILES"][shell]).read_text(encoding="utf-8")
    assert committed == GENERATE["script"](shell), "regenerate them: make completions"
    assert "_PRECDIAG_COMPLETE" in committed


def test_zsh_finds_the_script_by_its_first_line() -> None:
    assert GENERATE["script"]("zsh").startswith("#compdef precdiag\n")


def test_bash_completes_a_command(path_with_precdiag: str) -> None:
    assert bash_completes(path_with_precdiag, "precdiag", "comp") == ["compare"]


def test_bash_completes_an_option(path_with_precdiag: str) -> None:
    assert bash_completes(path_with_precdiag, "precdiag", "compare", "--max-a") == ["--max-abs"]


def test_bash_leaves_folders_to_its_own_completion(path_with_precdiag: str) -> None:
    assert bash_completes(path_with_precdiag, "precdiag", "compare", "") == []
