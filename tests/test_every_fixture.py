"""The fast paths say what the plain one says, on every pair of dumps that the fixtures hold."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_workers import said

from precdiag import reading, tensorfiles
from precdiag.errors import PrecdiagError
from precdiag.index import INDEX_FILE
from precdiag.workers import Resources

Real = Callable[[str], Path]

ARCHIVES = ("cases", "crossdevice", "ddp", "dumps", "exchange4", "falsepass", "fused", "nan", "partial", "pipeline")
ARCHIVES = (*ARCHIVES, "unfinished")


def pairs_in(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The first of the runs that stand beside one another, with each of them and with itself."""
    if any(folder.glob("step*")) or any(folder.glob("dump/step*")):
        return
    runs = sorted(child for child in folder.iterdir() if any(child.glob("step*")) or any(child.glob("dump/step*")))
    yield from ((runs[0], run) for run in runs)
    for child in sorted(folder.iterdir()):
        if child.is_dir():
            yield from pairs_in(child)


def words(sides: tuple[Path, Path], resources: Resources) -> str:
    try:
        return said(*sides, resources)
    except PrecdiagError as error:
        return f"{error} {error.hint}"


@pytest.mark.parametrize("name", ARCHIVES)
def test_processes_indexes_and_msgspec_change_no_word(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(real(name), folder)
    pairs = list(pairs_in(folder))
    with monkeypatch.context() as plainly:
        plainly.setitem(sys.modules, "msgspec", None)
        plain = [words(sides, Resources()) for sides in pairs]
    monkeypatch.setattr(reading, "LARGE_BYTES", 0)
    monkeypatch.setattr(tensorfiles, "WORTH_PROCESSES_ELEMENTS", 0)
    for resources in (Resources(2, cache=True), Resources(1, cache=True)):  # the second reads what the first left
        assert [words(sides, resources) for sides in pairs] == plain
    assert list(folder.rglob(INDEX_FILE))
    assert any('"verdict"' in text for text in plain)
