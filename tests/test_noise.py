"""Noise measured by a run that rounding alone moves: it confirms what is beyond, and makes a band."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from two_devices import collect

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.errors import UnreadableError
from precdiag.judge import Policy, Scrutiny
from precdiag.noise import limit_of

# Wide enough for another device, whose every call rounds otherwise; the noise comes from one ulp of the embedding.
WIDE = 20.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect(tmp_path_factory.mktemp("noise"), "float32", 7, "L0", "tensor", ("ulp", "none", "scale"))


def scrutinised(runs: Path, fault: str, k: float = 3.0) -> Comparison:
    return compare(runs / "baseline", runs / fault, Policy(scrutiny=Scrutiny(noise=runs / "ulp", k=k)))


def banded(runs: Path, candidate: str, noise: Path) -> Comparison:
    return compare(runs / "baseline", runs / candidate, Policy(band_from=noise, scrutiny=Scrutiny(k=WIDE)))


def test_a_fault_stands_out_of_measured_noise_and_the_basis_says_so(runs: Path) -> None:
    rounding = scrutinised(runs, "scale").rounding
    assert rounding is not None and rounding.beyond is not None
    assert (rounding.beyond.row.module, rounding.beyond.basis) == ("layers.2.core", "noise")


def test_noise_as_large_as_the_error_explains_it(runs: Path) -> None:
    rounding = scrutinised(runs, "scale", k=1e9).rounding
    assert rounding is not None and rounding.beyond is None


def test_a_healthy_port_stays_silent_beside_noise_of_any_size(runs: Path) -> None:
    for noise in ("ulp", "baseline"):  # the second is a repetition that moves nothing
        policy = Policy(scrutiny=Scrutiny(noise=runs / noise))
        rounding = compare(runs / "baseline", runs / "none", policy).rounding
        assert rounding is not None and rounding.beyond is None


def test_the_band_of_noise_holds_a_healthy_port_and_not_a_fault(runs: Path) -> None:
    healthy, faulty = banded(runs, "none", runs / "ulp"), banded(runs, "scale", runs / "ulp")
    assert (healthy.verdict, healthy.exit_code) == ("no-divergence", 0)
    assert healthy.cause is not None  # bitwise, and hidden by the band
    assert (faulty.verdict, faulty.exit_code) == ("diverged", 1)
    assert faulty.first_outside is not None and faulty.first_outside.module == "layers.2.core"


def test_a_row_must_meet_every_bound_beside_the_band_of_noise(runs: Path) -> None:
    policy = Policy(max_abs=1e-12, band_from=runs / "ulp", scrutiny=Scrutiny(k=WIDE))
    assert compare(runs / "baseline", runs / "none", policy).verdict == "diverged"


def test_a_row_without_noise_is_unknown_and_never_inside(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "ulp", tmp_path / "noise")
    (file,) = (tmp_path / "noise").rglob("dump.json")
    dump = json.loads(file.read_text())
    del dump["data"]["Module.layers.1.act.Act.forward.0"]
    file.write_text(json.dumps(dump))
    result = banded(runs, "none", tmp_path / "noise")
    assert (result.verdict, result.exit_code) == ("not-comparable", 2)
    assert any("no noise was measured" in note for note in result.notes)
    assert result.coverage.unknown >= 2


def test_a_noise_run_without_the_step_is_said_to_lack_it(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "ulp" / "step0", tmp_path / "noise" / "step4")
    with pytest.raises(UnreadableError, match="holds no step 0"):
        banded(runs, "none", tmp_path / "noise")


def test_the_limit_is_k_times_the_noise_but_never_less_than_k_roundoffs() -> None:
    limit = limit_of(np.array([0.0, 0.5, np.nan]), np.array([0.01, 0.01, 0.01]), 3.0)
    assert limit.tolist()[:2] == [0.03, 1.5] and np.isnan(limit[2])
