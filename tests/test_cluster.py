"""A Dask cluster of two worker processes: the same words as one process, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_tensorfiles import tensor_run
from test_workers import ranks, said

from precdiag import workers
from precdiag.compare import compare
from precdiag.errors import PrecdiagError
from precdiag.judge import Policy
from precdiag.workers import Resources, each

distributed = pytest.importorskip("distributed")

Real = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Dask sets thread counts in this process's environment for its workers; other tests must not inherit them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as started:
        yield started


def test_a_cluster_says_what_one_process_says(cluster: Any, real: Real, tmp_path: Path) -> None:
    pairs = [
        (real("ddp") / "A", real("ddp") / "C"),
        (real("ddp") / "A", real("ddp") / "A"),
        (real("unfinished") / "none", real("unfinished") / "kill"),
        ranks(tmp_path, 5, (1, 3), steps=2),
    ]
    for baseline, candidate in pairs:
        alone = said(baseline, candidate, Resources())
        assert said(baseline, candidate, Resources(scheduler=cluster.scheduler_address)) == alone


def test_one_large_pair_is_cut_into_slices(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = tensor_run(tmp_path, 70, {"candidate": {40: 0.5, 60: 0.5}})
    alone = said(*sides, Resources())
    resources = Resources(scheduler=cluster.scheduler_address)
    sent: list[tuple[str, int]] = []
    on_cluster = workers._on_cluster

    def watched(work: Any, units: Any, *rest: Any) -> Any:
        sent.append((getattr(work, "func", work).__name__, len(units)))
        return on_cluster(work, units, *rest)

    monkeypatch.setattr(workers, "_on_cluster", watched)
    assert said(*sides, resources) == alone
    monkeypatch.setattr("precdiag.compare.SLICED_BYTES", 0)
    assert said(*sides, resources) == alone
    assert sent == [("_compare_pair", 1), ("_compare_some", 5)]


def test_relative_paths_are_found_by_workers_elsewhere(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(tmp_path, 2, (1,), steps=2)
    monkeypatch.chdir(tmp_path)
    resources = Resources(scheduler=cluster.scheduler_address)
    result = compare(Path("baseline"), Path("candidate"), Policy(), resources=resources)
    assert result.cause is not None and result.cause.row.rank == 1
    assert result.baseline == tmp_path / "baseline"


def die_once(marker: Path, unit: int, resources: Resources) -> int:
    if unit == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return unit * unit


def test_what_a_dying_worker_was_doing_is_done_again(cluster: Any, tmp_path: Path) -> None:
    resources = Resources(scheduler=cluster.scheduler_address)
    marker = tmp_path / "died"
    assert list(each(partial(die_once, marker), range(6), resources)) == [0, 1, 4, 9, 16, 25]
    assert marker.exists()


def lack(unit: int, resources: Resources) -> int:
    raise ModuleNotFoundError("No module named 'torch_npu'")


def test_what_a_worker_lacks_is_one_line(cluster: Any) -> None:
    with pytest.raises(PrecdiagError, match=r"a worker could not do its part: ModuleNotFoundError") as raised:
        list(each(lack, range(2), Resources(scheduler=cluster.scheduler_address)))
    assert raised.value.hint is not None and "every worker needs" in raised.value.hint


def test_an_error_of_the_comparison_is_raised_as_it_is(cluster: Any, tmp_path: Path) -> None:
    resources = Resources(scheduler=cluster.scheduler_address)
    with pytest.raises(PrecdiagError, match="need tensors") as raised:
        compare(*ranks(tmp_path, 2, ()), Policy(max_ulp=1), resources=resources)
    assert raised.value.hint is not None and "--task tensor" in raised.value.hint


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "127.0.0.1:1", "nonsense://x"])
def test_a_scheduler_that_cannot_be_reached_is_one_line_and_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], address: str
) -> None:
    from precdiag.cli import main

    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 1)
    baseline, candidate = ranks(tmp_path, 2, ())
    arguments = ["precdiag", "compare", str(baseline), str(candidate), "--scheduler", address]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 2, err
    assert lines[0].startswith(f"precdiag: {address}: no Dask scheduler answers there")
    assert "dask scheduler" in lines[1]


def test_a_scheduler_without_workers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 1)
    with distributed.LocalCluster(n_workers=0, processes=True, dashboard_address=None) as empty:
        with pytest.raises(PrecdiagError, match="has no workers") as raised:
            compare(*ranks(tmp_path, 2, ()), Policy(), resources=Resources(scheduler=empty.scheduler_address))
        assert raised.value.hint is not None and "dask worker" in raised.value.hint
