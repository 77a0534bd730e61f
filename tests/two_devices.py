"""Collect the two-device fixture with the real msprobe, and tell what a comparison made of a planted fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from precdiag.compare import compare
from precdiag.judge import Policy

SCRIPT = Path(__file__).parent / "data" / "scripts" / "two_devices.py"
# Where each fault is planted: the first modules to compute with it. What is done between modules shows in the next
# one's input, of the forward or of the backward pass.
PLANTED: dict[str, tuple[str, ...]] = {
    "gelu": ("layers.1.act",),
    "rms_eps": ("layers.1.norm2",),
    "rotary": ("layers.1.rope_k",),
    "mask": ("layers.2.core",),
    "scale": ("layers.2.core",),
    "half": ("layers.1.core",),
    "heads": ("layers.1.core",),
    "low": ("layers.1.down",),
    "residual": ("layers.1", "layers.1.norm2", "layers.1.o"),
    "gradient": ("layers.1.up", "layers.1.norm2"),
    "smoothing": ("loss",),
    "weight": ("layers.1.up",),
    "norm_weight": ("layers.2.norm1",),
    "token": ("emb",),
    "label": ("loss",),
}
ONLY_BACKWARD = ("gradient",)
RIGHT, SILENT, WRONG = "right", "silent", "wrong"


def collect(out: Path, dtype: str, seed: int, level: str, task: str, faults: Sequence[str]) -> Path:
    """Dump the baseline, and the other device with each of `faults` (`none` is the healthy port), into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), dtype, str(seed), level, task, "baseline", *faults],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stdout + run.stderr)
    return out


def outcome(folder: Path, fault: str) -> tuple[str, str]:
    """Compare a fault with the baseline: right, silent or wrong, and the row that was named.

    Right: a row of the call that computes with the fault, or silence where there is none.
    """
    rounding = compare(folder / "baseline", folder / fault, Policy()).rounding
    beyond = None if rounding is None else rounding.beyond
    if beyond is None:
        return (SILENT if fault in PLANTED else RIGHT), "-"
    row = beyond.row
    phase = row.phase != "forward" if fault in ONLY_BACKWARD else True
    return (RIGHT if row.module in PLANTED.get(fault, ()) and phase else WRONG), row.name
