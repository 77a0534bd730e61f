"""Two devices with the real msprobe: another summation order, fused attention and norms; healthy and with faults.

A share of what benchmarks/rounding.py measures whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from two_devices import RIGHT, SILENT, collect, outcome

SINGLE = ("none", "gelu", "half", "residual", "gradient", "label")
HALF = ("none", "gelu", "mask", "heads", "norm_weight")
BLIND = ("none", "scale", "heads", "token")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect(tmp_path_factory.mktemp("single"), "float32", 5, "mix", "tensor", SINGLE)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect(tmp_path_factory.mktemp("half"), "bfloat16", 5, "L0", "tensor", HALF)


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        dtype: collect(tmp_path_factory.mktemp(dtype), dtype, 6, level, "statistics", BLIND)
        for dtype, level in (("float32", "L0"), ("bfloat16", "mix"))
    }


@pytest.mark.parametrize("fault", SINGLE)
def test_in_float32_every_fault_is_named_and_a_healthy_port_is_silent(single: Path, fault: str) -> None:
    found, row = outcome(single, fault)
    assert found == RIGHT, row


@pytest.mark.parametrize("fault", HALF)
def test_in_bfloat16_what_shows_is_named_and_what_does_not_is_silence(half: Path, fault: str) -> None:
    found, row = outcome(half, fault)
    assert found == (SILENT if fault == "gelu" else RIGHT), row


@pytest.mark.parametrize("fault", BLIND)
def test_statistics_name_a_fault_in_float32_and_no_wrong_row_in_bfloat16(
    statistics: dict[str, Path], fault: str
) -> None:
    assert outcome(statistics["float32"], fault)[0] == RIGHT
    assert outcome(statistics["bfloat16"], fault)[0] == (RIGHT if fault == "none" else SILENT)
