"""Run to run on one machine, with the real msprobe: the same run is equal, and threads name no equal row."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precdiag.align import pair
from precdiag.collect import SideCommand, collect
from precdiag.compare import compare
from precdiag.dump import read_dump
from precdiag.evidence import DIFFERENT, EQUAL
from precdiag.judge import Policy, judge
from precdiag.layout import open_run
from precdiag.session import Request

SCRIPT = Path(__file__).parent / "data" / "scripts" / "buffers.py"


def run_twice(folder: Path, request: Request, threads: tuple[int, int] = (1, 1)) -> tuple[Path, Path]:
    """Collect the script twice, one process a side."""
    baseline, candidate = (SideCommand((sys.executable, str(SCRIPT), str(count))) for count in threads)
    collection = collect(folder, request, {"baseline": baseline, "candidate": candidate}, quiet=True)
    assert all(side.verified for side in collection.sides)
    return folder / "baseline", folder / "candidate"


@pytest.mark.parametrize(
    "request_",
    [
        Request(steps=(0, 1), level="mix", task="statistics"),
        Request(steps=(0, 1), level="mix", task="statistics", summary="md5", deterministic=True),
        Request(steps=(0, 1), level="mix", task="tensor"),
    ],
    ids=["statistics", "md5-deterministic", "tensor"],
)
def test_the_same_run_twice_is_equal_whatever_lies_in_uninitialised_buffers(tmp_path: Path, request_: Request) -> None:
    result = compare(*run_twice(tmp_path / "x", request_), Policy())
    assert (result.verdict, len(result.parts)) == ("no-divergence", 2)
    assert result.coverage.uninitialised >= 2 * 2  # an out= and a fill_ a step
    assert result.coverage.equal > 100


def test_one_thread_against_two_names_no_row_whose_bytes_are_equal(tmp_path: Path) -> None:
    sides = run_twice(tmp_path / "x", Request(level="mix", task="tensor"), threads=(1, 2))
    dumps = [read_dump(open_run(side).parts[0]) for side in sides]
    by_bytes = judge(*dumps, pair(*dumps), Policy())
    equal = {by_bytes.name(int(line)) for line in np.flatnonzero(by_bytes.rows["state"] == EQUAL)}
    assert len(equal) > 20
    for dump in dumps:
        shutil.rmtree(dump.part.folder / "dump_tensor_data")
        _forget_tensors(dump.part.folder / "dump.json")
    dumps = [read_dump(dump.part) for dump in dumps]
    by_statistics = judge(*dumps, pair(*dumps), Policy())
    named = {by_statistics.name(int(line)) for line in np.flatnonzero(by_statistics.rows["state"] == DIFFERENT)}
    assert not named & equal


def _forget_tensors(path: Path) -> None:
    """Leave the statistics of a tensor dump alone."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "data_name"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    path.write_text(json.dumps(strip(json.loads(path.read_text()))))
