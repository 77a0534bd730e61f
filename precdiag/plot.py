"""Plot curves as text, the step in question marked; needs plotext (pip install 'precdiag[plot]')."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

import numpy as np

from precdiag.curves import Series
from precdiag.errors import UsageError
from precdiag.localize import Localization

HEIGHT, WIDEST = 15, 120
MOST_POINTS = 1000
"""Points drawn of a curve; a longer one is thinned, its highest point of each stretch kept."""

MARKERS = {"baseline": "dot", "candidate": "braille"}


def plot_of(found: Localization, *, wanted: bool | None) -> str:
    """Plot the curves of a localization where that is wanted, or by default where stdout is a terminal.

    Asked for without plotext it raises UsageError; by default one line says what is missing.
    """
    terminal = sys.stdout.isatty()
    logs = {"baseline": found.curves.baseline, "candidate": found.curves.candidate}
    curves = {side: curve for side, log in logs.items() if log and (curve := log.find(found.curves.series))}
    if wanted is False or not curves or (wanted is None and not terminal):
        return ""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    try:
        return curves_plot(curves, found.step, width=width, colour=terminal and "NO_COLOR" not in os.environ)
    except UsageError as error:
        if wanted:
            raise
        return f"no plot: {error}, {error.hint}\n"


def curves_plot(curves: Mapping[str, Series], step: int | None, *, width: int, colour: bool) -> str:
    """Draw each side's curve over the steps, and a line at `step`; values that are not finite are left out.

    Raises UsageError where plotext is not installed.
    """
    try:
        import plotext
    except ImportError as error:
        raise UsageError("--plot needs plotext", hint="pip install 'precdiag[plot]'") from error
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(width, HEIGHT)
    for side, curve in curves.items():
        steps, values = _thinned(curve)
        if len(steps):
            plotext.plot(steps.tolist(), values.tolist(), label=side, marker=MARKERS.get(side, "braille"))
    if step is not None:
        plotext.vertical_line(step, color="red")
    plotext.title(f"{next(iter(curves.values())).name}" + ("" if step is None else f", step {step} marked"))
    text: str = plotext.build()
    plotext.clear_figure()
    plain: str = text if colour else plotext.uncolorize(text)
    return "\n".join(line.rstrip() for line in plain.splitlines()) + "\n"


def _thinned(curve: Series) -> tuple[np.ndarray, np.ndarray]:
    finite = np.isfinite(curve.values)
    steps, values = curve.steps[finite], curve.values[finite]
    if len(steps) <= MOST_POINTS:
        return steps, values
    starts = np.linspace(0, len(steps), MOST_POINTS, endpoint=False).astype(np.int64)
    return steps[starts], np.maximum.reduceat(values, starts)
