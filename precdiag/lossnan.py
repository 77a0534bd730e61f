"""What a training log says of NaN and Inf, to be held against a dump."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precdiag.collection import LOG
from precdiag.curves import LossLog, Series
from precdiag.errors import PrecdiagError
from precdiag.losslog import read_curves
from precdiag.session import SETTINGS


@dataclass(frozen=True)
class LossFinding:
    """What a log says. `found`: its loss is NaN or Inf from `step` (the log's own number) on, `what` in words.

    `silent`: there is no loss in it, or damage hides the rest, so that it says nothing; `notes` say why.
    """

    path: Path
    found: bool
    step: int | None
    what: str
    silent: bool = False
    notes: tuple[str, ...] = ()


def read_loss(path: Path, pattern: str | None = None) -> LossFinding:
    """Read a training log of any known format, or of that of `pattern` (its named groups are the series and `step`).

    Raises UnreadableError where it cannot be read, UsageError for a pattern that cannot serve. The loss decides. A
    gradient norm that is not finite counts where it is still so at the last step: fp16 training begins with a few that
    overflow under the loss scale, which is healthy.
    """
    log = read_curves(path, pattern=pattern)
    loss, norm = log.find("loss"), log.find("grad_norm")
    if loss is None and norm is None:
        notes = (f"{path}: no loss was found in it, so it says nothing", *log.notes)
        return LossFinding(path, False, None, "", silent=True, notes=notes)
    for series in (loss, norm):
        first = None if series is None else _first(series, lasting=series is norm)
        if series is not None and first is not None:
            step, value = first
            return LossFinding(path, True, step, f"{series.name} is {value:g} at step {step} of {path.name}")
    message = _message(log)
    if message is None and log.cut:
        return LossFinding(path, False, None, "", silent=True, notes=(f"{path}: read only in part", *log.notes))
    return message or LossFinding(path, False, None, f"the loss in {path.name} is finite")


def own_log(dump: Path) -> LossFinding | None:
    """Read the log that `precdiag collect` wrote beside a dump; None where there is none that tells a loss."""
    for folder in (dump, *dump.absolute().parents[:4]):
        if (folder / LOG).is_file() and (folder / SETTINGS).is_file():
            try:
                found = read_loss(folder / LOG)
            except PrecdiagError:
                return None
            return None if found.silent else found
    return None


def _first(series: Series, *, lasting: bool) -> tuple[int, float] | None:
    import numpy as np

    bad = np.flatnonzero(~np.isfinite(series.values))
    if not len(bad) or (lasting and np.isfinite(series.values[-1])):
        return None
    return int(series.steps[bad[0]]), float(series.values[bad[0]])


def _message(log: LossLog) -> LossFinding | None:
    """What the framework itself reported, where the curves show nothing."""
    event = next((each for each in log.events if each.kind in ("message", "vanished")), None)
    if event is None:
        return None
    what = event.text if event.kind == "message" else "the loss vanishes from its rows"
    where = "before its first step" if event.after is None else f"after step {event.after}"
    return LossFinding(Path(log.path), True, event.after, f"{Path(log.path).name} says {where}: {what}")
