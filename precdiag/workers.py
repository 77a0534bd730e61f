"""Spread work over processes: of this machine, or of a Dask cluster that sees the same paths."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from precdiag.errors import PrecdiagError, one_line

Unit = TypeVar("Unit")
Result = TypeVar("Result")

# How long a scheduler may take to answer, and a cluster to have its first worker.
PATIENCE_SECONDS = 10
_ORPHAN_SECONDS = 1.0


@dataclass(frozen=True)
class Resources:
    """What a command may use: processes on this machine, or a Dask scheduler's address; the index beside a dump."""

    workers: int = 1
    scheduler: str | None = None
    cache: bool = False

    def spread(self, units: int) -> bool:
        """Tell whether so many units go to other processes."""
        return self.scheduler is not None or min(self.workers, units) > 1


def available() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[Unit, Resources], Result],
    units: Sequence[Unit],
    resources: Resources,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> Generator[Result, None, None]:
    """Yield `work(unit, its share of the resources)` for each unit in order; closing the iterator drops the rest.

    `work` and what it returns are pickled unless there is one process or one unit. Raises PrecdiagError where a process
    ends, no scheduler answers or a worker lacks what the work needs; errors of `work` are raised as they are.
    """
    results: Generator[Result, None, None]
    if resources.scheduler is not None:
        results = _on_cluster(work, units, resources, resources.scheduler)
    elif resources.spread(len(units)):
        results = _in_processes(work, units, resources)
    else:
        results = (work(unit, resources) for unit in units)
    with closing(results):
        for finished, result in enumerate(results, 1):
            done(finished, len(units))
            yield result


@contextmanager
def beside(work: Callable[[Unit], Result], unit: Unit) -> Iterator[Callable[[], Result]]:
    """Do `work(unit)` in a process of its own; yield what waits for its result."""
    with _pool(1) as pool:
        future = pool.submit(work, unit)
        yield lambda: _result(future)


def _in_processes(
    work: Callable[[Unit, Resources], Result], units: Sequence[Unit], resources: Resources
) -> Generator[Result, None, None]:
    processes = min(resources.workers, len(units))
    share = Resources(resources.workers // processes, cache=resources.cache)
    with _pool(processes) as pool:
        futures = [pool.submit(work, unit, share) for unit in units]
        futures.reverse()
        try:
            while futures:  # each result is let go once it is handed on
                yield _result(futures.pop())
        finally:
            for future in futures:  # not left to the pool: once it is let go it cancels nothing
                future.cancel()


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes by fork: they share what is imported, where spawned ones import pandas anew (half a second)."""
    pool = ProcessPoolExecutor(processes, get_context("fork"), _begin_worker, (os.getpid(),))
    try:
        with warnings.catch_warnings():  # Python 3.12 warns of threads: those of BLAS, which survive a fork
            warnings.simplefilter("ignore", DeprecationWarning)
            yield pool
    finally:
        pool.shutdown(wait=False)


def _begin_worker(parent: int) -> None:
    """End with the parent, whatever ends it; Ctrl-C reaches every process of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise PrecdiagError(
            "a worker process was ended from outside, perhaps for its memory", hint="try fewer at once: --workers 1"
        ) from None


def _on_cluster(
    work: Callable[[Unit, Resources], Result], units: Sequence[Unit], resources: Resources, address: str
) -> Generator[Result, None, None]:
    share = Resources(cache=resources.cache)
    with _client(address) as client:
        # Dask repeats what a worker that died was doing; work only reads, so that changes no result.
        futures = client.map(work, units, [share] * len(units), pure=False)
        futures.reverse()
        while futures:
            future = futures.pop()
            try:
                result = future.result()
            except PrecdiagError:
                raise
            except Exception as error:  # whatever a worker's environment raises: a module it lacks, killed too often
                raise PrecdiagError(
                    f"{address}: a worker could not do its part: {type(error).__name__}: {one_line(error)}",
                    hint="every worker needs this precdiag, and the dumps at the same absolute path",
                ) from error
            future.release()
            yield result


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise PrecdiagError(
            "--scheduler needs Dask's distributed", hint="pip install 'precdiag[cluster]', here and on the workers"
        ) from None
    import logging

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is said about it is said once, by us
    try:
        client = Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
    except Exception as error:  # refused, unknown host, no such protocol, a time-out: each has a type of its own
        raise PrecdiagError(
            f"{address}: no Dask scheduler answers there: {one_line(error)}",
            hint="expected an address such as tcp://HOST:8786, as `dask scheduler` prints it",
        ) from error
    try:
        _require_worker(client, address)
        yield client
    finally:
        client.close()


def _require_worker(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
    except TimeoutError:
        raise PrecdiagError(
            f"{address}: the scheduler has no workers", hint=f"start some: dask worker {address}"
        ) from None
