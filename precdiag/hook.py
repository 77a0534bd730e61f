"""Collect from a script that says itself where an iteration runs: start(), capture(), step().

The same probe and receipts as the injected hook, driven by hand:

    from precdiag import hook

    hook.start(model, out="run/candidate", step="0-2")   # once in a process
    for batch in data:
        with hook.capture():                             # records what runs inside
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
        hook.step()                                      # the iteration ends here

Under `precdiag collect --step-at manual` the settings come from there, and start() takes the model alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from precdiag.errors import UsageError
from precdiag.session import INJECT, Request, parse_window, write_session
from precdiag.settings import Level, Summary, Task

_manual: Any = None


def start(
    model: object = None,
    *,
    out: str | os.PathLike[str] | None = None,
    step: str = "0",
    level: Level = "L1",
    task: Task = "statistics",
    summary: Summary = "statistics",
) -> None:
    """Prepare to collect into `out` (`out/dump/step0/…`), once in a process; `model` is needed at L0 and mix.

    Raises UsageError for a second call (msprobe's debugger is one per process: the second dump would stay empty),
    without `out` outside `precdiag collect`, and for a path that msprobe refuses.
    """
    global _manual
    if _manual is not None:
        raise UsageError(
            f"collection into {_manual.session.dump} has started in this process already: msprobe keeps one "
            "PrecisionDebugger per process, a second dump would stay empty",
            hint="run the other side as a process of its own",
        )
    folder = os.environ.get("PRECDIAG_SESSION")
    if folder is None:
        if out is None:
            raise UsageError("nothing says where to collect", hint="pass out=, or run under precdiag collect")
        steps, _ = parse_window(step)
        request = Request(steps=steps, level=level, task=task, summary=summary, step_at="manual")
        identity = os.environ.get("TORCHELASTIC_RUN_ID") or uuid4().hex  # the same for every rank of one launch
        write_session(Path(out), request, side=Path(out).name, identity=identity)
        folder = os.fspath(Path(out).absolute())
    _manual = injected("_precdiag_manual").Manual(folder, model)


@contextmanager
def capture() -> Iterator[None]:
    """Record what runs inside as part of the current step, if the step is one of those asked for."""
    manual = _started()
    manual.enter()
    try:
        yield
    finally:
        manual.leave()


def step() -> None:
    """End the current step: its dump and its receipt are complete when this returns."""
    _started().step()


def injected(name: str) -> Any:
    """Import one of the injected modules; under `precdiag collect` they are loaded already, and stay the same."""
    if name in sys.modules:
        return sys.modules[name]
    sys.path.append(os.fspath(INJECT))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(os.fspath(INJECT))


def _started() -> Any:
    if _manual is None:
        raise UsageError("hook.start() has not been called in this process")
    return _manual
