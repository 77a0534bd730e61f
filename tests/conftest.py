"""Fixtures of the whole suite: real dumps unpacked once, and dumps written by hand in msprobe's format."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from trainings import collect_all

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


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with real runs of the small transformer, one a planted fault (see trainings.py)."""
    return collect_all(tmp_path_factory)
