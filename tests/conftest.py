"""Fixtures of the whole suite: real dumps unpacked once, and dumps written by hand in msprobe's format."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a folder of real msprobe output by name (`dumps`, `cases`, `ddp` …), unpacked on first use."""
    unpacked: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in unpacked:
            target = tmp_path_factory.mktemp(name)
            with tarfile.open(DATA / f"{name}.tar.xz") as archive:
                archive.extractall(target, filter="data")
            unpacked[name] = target / name
        return unpacked[name]

    return folder
