"""How often healthy curves are called faulty, and faulty ones healthy, on simulated curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from curves import log

from precdiag.loss import judge_curves

CURVES = 150
Make = Callable[[np.random.Generator], np.ndarray]


def trained(random: np.random.Generator) -> np.ndarray:
    points = int(random.integers(40, 500))
    curve = 2 + 8 * np.exp(-np.arange(points) / (points * random.uniform(0.05, 0.5)))
    return curve * (1 + random.uniform(0.002, 0.05) * random.standard_normal(points))


def long_tails(random: np.random.Generator) -> np.ndarray:
    curve = trained(random)
    return curve * (1 + 0.02 * random.standard_t(3, len(curve)))


def staircase(random: np.random.Generator) -> np.ndarray:
    return (3 - 0.8 * (np.arange(300) // 100)) * (1 + 0.02 * random.standard_normal(300))


def slow(random: np.random.Generator) -> np.ndarray:
    return (3 - 0.5 * np.arange(400) / 400) * (1 + 0.03 * random.standard_normal(400))


def spiked(random: np.random.Generator) -> np.ndarray:
    curve = trained(random)
    at = int(random.integers(10, len(curve) - 3))
    curve[at : at + int(random.integers(1, 4))] *= random.uniform(1.5, 4)
    return curve


def flat(random: np.random.Generator) -> np.ndarray:
    points = int(random.integers(60, 400))
    return 10.8 * (1 + 0.01 * random.standard_normal(points))


@pytest.mark.parametrize(
    ("make", "verdict", "at_least"),
    [
        (trained, "healthy", 1.0),
        (staircase, "healthy", 1.0),
        (slow, "healthy", 1.0),
        (long_tails, "healthy", 0.96),
        (spiked, "spike", 0.95),
        (flat, "non-convergence", 0.9),
    ],
)
def test_rates_on_simulated_curves(make: Make, verdict: str, at_least: float) -> None:
    found = Counter(judge_curves(log(make(np.random.default_rng(seed)))).verdict for seed in range(CURVES))
    assert found[verdict] >= at_least * CURVES, found
