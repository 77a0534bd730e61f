"""A training log held against a dump: a NaN that only the log shows is no pass, and a log that says nothing neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from precdiag.survey import survey

Real = Callable[[str], Path]


def log_of(folder: Path, text: str) -> Path:
    path = folder / "train.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("step: 0  loss: 1.0\nstep: 1  loss: nan\n", 1, "loss is nan at step 1"),
        ("step: 0  loss: 1.0\nstep: 1  loss: inf\n", 1, "loss is inf at step 1"),
        ("step: 0  loss: 1.0\nstep: 1  loss: 0.9\n", 0, ""),
        ("{'loss': 1.0, 'grad_norm': inf}\n{'loss': 0.9, 'grad_norm': 1.0}\n", 0, ""),
        ("{'loss': 1.0, 'grad_norm': 1.0}\n{'loss': 0.9, 'grad_norm': nan}\n", 1, "grad_norm is nan at step 2"),
        ("step: 0  loss: 1.0\nFound NaN in local grad norm\n", 1, "Found NaN in local grad norm"),
        ("nothing of use\n", 2, "no loss was found"),
    ],
)
def test_a_clean_dump_against_a_log(real: Real, tmp_path: Path, text: str, status: int, said: str) -> None:
    found = survey(real("cases") / "identical/ok", log=log_of(tmp_path, text))
    assert found.exit_code == status and found.origin is None
    assert said in " ".join(found.notes)
    if status == 1:
        assert "the dump holds no NaN but the loss does" in " ".join(found.notes)


def test_a_pattern_reads_any_other_format(real: Real, tmp_path: Path) -> None:
    log = log_of(tmp_path, "it=7;L=nan\n")
    found = survey(real("cases") / "identical/ok", log=log, pattern=r"it=(?P<step>\d+);L=(?P<loss>\S+)")
    assert found.exit_code == 1 and found.loss is not None and found.loss.step == 7


def test_with_an_origin_the_log_only_agrees(real: Real, tmp_path: Path) -> None:
    found = survey(real("nan") / "statistics", log=log_of(tmp_path, "step: 0  loss: nan\n"))
    assert found.origin is not None
    assert "the log agrees: loss is nan at step 0 of train.log" in found.notes
