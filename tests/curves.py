"""Curves made by hand, as a log would give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from precdiag.curves import Event, LossLog, Series


def series(name: str, values: Sequence[float] | np.ndarray, first: int = 1, stride: int = 1) -> Series:
    """A series logged every `stride` steps from step `first` on."""
    steps = first + stride * np.arange(len(values), dtype=np.int64)
    return Series(name, steps, np.asarray(values, dtype=np.float64))


def log(loss: Any = None, *, first: int = 1, stride: int = 1, events: Sequence[Event] = (), **more: Any) -> LossLog:
    """A log with a loss and other series, named as given; all of them start at `first`."""
    named = ({} if loss is None else {"loss": loss}) | more
    curves = {name: series(name, values, first, stride) for name, values in named.items()}
    return LossLog("train.log", "jsonl", curves, tuple(events), ())


def falling(points: int, *, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    """A healthy loss: it falls from 10 to 2, with noise as a share of itself."""
    random = np.random.default_rng(seed)
    return (2 + 8 * np.exp(-np.arange(points) / (0.2 * points))) * (1 + noise * random.standard_normal(points))
