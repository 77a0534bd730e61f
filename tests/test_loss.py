"""Judging curves: every answer of the posted logs, each verdict on curves made by hand, and the acceptance rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import falling, log, series
from hypothesis import given
from hypothesis import strategies as st

from precdiag.curves import Event, LossLog
from precdiag.loss import CurveVerdict, judge_curves, steps_to_dump
from precdiag.losslog import read_curves
from precdiag.settings import Thresholds

LOGS = Path(__file__).parent / "data" / "loss_logs"
ANSWERS: dict[str, dict[str, Any]] = json.loads((LOGS / "answers.json").read_text())
JUDGED = [name for name, answer in ANSWERS.items() if answer.get("role") != "bench"]
NAN = float("nan")


def judged(name: str) -> tuple[LossLog, CurveVerdict]:
    """Read a posted log and judge it, a pair's candidate against its baseline."""
    found = read_curves(LOGS / name)
    baseline = read_curves(LOGS / "pair_bench.log") if name.startswith("pair_") else None
    return found, judge_curves(found, baseline=baseline)


@pytest.mark.parametrize("name", JUDGED)
def test_every_posted_log_has_its_answer(name: str) -> None:
    found, verdict = judged(name)
    answer = ANSWERS[name]
    seen = {"fmt": found.format, "verdict": verdict.verdict, "step": verdict.step, "points": verdict.curve.points}
    assert {key: seen[key] for key in answer if key in seen} == {k: v for k, v in answer.items() if k in seen}


# -- NaN


def test_the_signal_that_moves_first_gives_the_step_and_the_others_are_listed_behind() -> None:
    verdict = judge_curves(log([3.0, 2.5, 2.0, NAN], grad_norm=[1, 1, float("inf"), NAN]))
    assert (verdict.verdict, verdict.step) == ("nan", 3)
    assert [(each.series, each.step) for each in verdict.signals] == [("grad_norm", 3), ("loss", 4)]
    assert verdict.signals[0].what.startswith("Inf")


def test_nan_in_validation_or_in_a_metric_is_said_and_no_verdict() -> None:
    verdict = judge_curves(log([3.0, 2.5, 2.0], eval_loss=[1.0, NAN, 1.0], reward=[NAN, 1, 1]))
    assert verdict.verdict == "healthy"
    assert {each.series for each in verdict.signals} == {"eval_loss", "reward"}


@pytest.mark.parametrize(
    ("norm", "expected"), [(None, "nan"), ([1, 1, NAN, NAN], "nan"), ([1, 1, 0.5, 0.4], "healthy")]
)
def test_an_exact_zero_is_a_filtered_nan_only_without_a_finite_gradient_norm(norm: Any, expected: str) -> None:
    more = {} if norm is None else {"grad_norm": norm}
    assert judge_curves(log([3.0, 2.9, 0.0, 0.0], **more)).verdict == expected


def test_overflow_skips_at_the_start_of_fp16_are_healthy_and_a_stuck_scale_is_not() -> None:
    healthy = [Event("overflow", None, 32768.0), Event("overflow", None, 16384.0)]
    loss = falling(20)
    skipped = [2, *[0] * 19]
    norm = [float("inf"), *[1.0] * 19]
    verdict = judge_curves(log(loss, grad_norm=norm, events=healthy, **{"number of skipped iterations": skipped}))
    assert verdict.verdict == "healthy"
    assert "skipped for an overflow" in verdict.signals[0].what
    stuck = [*healthy, Event("overflow", 12, 1.0), Event("minimum", 13)]
    verdict = judge_curves(log(loss, events=stuck))
    assert (verdict.verdict, verdict.step) == ("nan", 13)


@given(st.integers(2, 60), st.data())
def test_a_nan_anywhere_is_found_at_its_first_step(points: int, data: st.DataObject) -> None:
    loss = falling(points)
    places = data.draw(st.sets(st.integers(0, points - 1), min_size=1))
    loss[list(places)] = data.draw(st.sampled_from([NAN, float("inf"), -float("inf")]))
    verdict = judge_curves(log(loss))
    assert (verdict.verdict, verdict.step) == ("nan", min(places) + 1)


# -- spike, broken gradient, no convergence


def test_a_spike_says_where_it_begins_how_high_it_is_and_whether_it_came_back() -> None:
    loss = falling(100)
    loss[60:63] *= [1.6, 2.5, 1.4]
    verdict = judge_curves(log(loss))
    assert (verdict.verdict, verdict.step) == ("spike", 61)
    assert f"rises to {loss[61]:g}" in verdict.signals[0].what and "back at step 64" in verdict.signals[0].what
    loss[60:] = 9.0
    assert "does not come back" in judge_curves(log(loss)).signals[0].what


def test_the_thresholds_decide_what_a_spike_is() -> None:
    loss = falling(100)
    loss[60] *= 1.6
    assert judge_curves(log(loss)).verdict == "spike"
    assert judge_curves(log(loss), Thresholds(spike_share=1.0)).verdict == "healthy"


def test_a_constant_gradient_norm_with_a_falling_loss_is_nothing() -> None:
    assert judge_curves(log(falling(60), grad_norm=[1.0] * 60)).verdict == "healthy"
    loss = np.concatenate([falling(20), [7.25] * 40])
    norm = [*np.linspace(3, 2, 20), *[1.0] * 40]
    verdict = judge_curves(log(loss, grad_norm=norm))
    assert (verdict.verdict, verdict.step) == ("broken-grad", 21)


def test_a_loss_without_trend_or_with_no_learning_rate_does_not_converge() -> None:
    random = np.random.default_rng(0)
    flat = 10.8 * (1 + 0.01 * random.standard_normal(200))
    assert judge_curves(log(flat)).verdict == "non-convergence"
    verdict = judge_curves(log(flat[:15], learning_rate=[0.0] * 15))
    assert verdict.verdict == "non-convergence" and verdict.signals[-1].what == "0 throughout"
    assert judge_curves(log(flat[:15])).verdict == "healthy"  # too few points to be sure
    rising = judge_curves(log(np.linspace(2, 3, 100)))
    assert rising.verdict == "non-convergence" and "rises by" in rising.signals[0].what


def test_the_earliest_fault_names_the_verdict_and_the_later_ones_are_signals() -> None:
    loss = falling(100)
    loss[40] *= 3
    loss[80:] = NAN
    verdict = judge_curves(log(loss))
    assert (verdict.verdict, verdict.step) == ("spike", 41)
    assert [each.step for each in verdict.signals] == [41, 81]


# -- no data, too short


@pytest.mark.parametrize(
    ("curve", "expected"), [(log(), "no-data"), (log([1.0]), "too-short"), (log([1.0, 0.9]), "healthy")]
)
def test_fewer_than_two_points_are_never_healthy(curve: LossLog, expected: str) -> None:
    assert judge_curves(curve).verdict == expected


def test_without_two_common_steps_nothing_was_compared() -> None:
    verdict = judge_curves(log([3, 2, 1], first=1), baseline=log([3, 2, 1], first=3))
    assert verdict.verdict == "too-short"
    verdict = judge_curves(log([3, 2, 1]), baseline=log(lr=[1, 1, 1]))
    assert verdict.verdict == "no-data"
    assert any("baseline has no loss" in note for note in verdict.notes)


# -- against a baseline


def test_curves_are_joined_on_the_step_and_not_on_the_line() -> None:
    loss = falling(60)
    verdict = judge_curves(log(loss[20:], first=21), baseline=log(loss))
    assert verdict.against_baseline is not None
    assert (verdict.verdict, verdict.against_baseline.steps_compared) == ("healthy", 40)
    assert verdict.against_baseline.first_different is None


def test_a_shorter_candidate_is_compared_only_so_far_and_that_is_said() -> None:
    loss = falling(60)
    verdict = judge_curves(log(loss[:30]), baseline=log(loss))
    assert verdict.against_baseline is not None and verdict.against_baseline.steps_compared == 30
    assert any("compared only so far" in each.what for each in verdict.signals)


def test_a_constant_ratio_is_a_normalisation_and_no_drift() -> None:
    loss = falling(60)
    verdict = judge_curves(log(loss / 8), baseline=log(loss))
    assert verdict.verdict == "diverged"
    assert any("a normalisation" in each.what for each in verdict.signals)
    drift = loss * (1 + np.linspace(0, 0.2, 60))
    verdict = judge_curves(log(drift), baseline=log(loss))
    assert not any("a normalisation" in each.what for each in verdict.signals)


def test_what_the_baseline_does_as_well_is_no_fault_of_the_candidate() -> None:
    loss = falling(100)
    loss[60] *= 3
    assert judge_curves(log(loss), baseline=log(loss)).verdict == "healthy"
    other = falling(100)
    assert judge_curves(log(loss), baseline=log(other)).step == 61


def test_another_signal_that_parts_first_is_named() -> None:
    loss = falling(40)
    late = loss.copy()
    late[20:] *= 1.1
    rate = np.full(40, 1e-3)
    verdict = judge_curves(log(late, lr=np.where(np.arange(40) >= 10, 2e-3, rate)), baseline=log(loss, lr=rate))
    assert verdict.verdict == "diverged"
    assert verdict.signals[0].series == "lr" and verdict.signals[0].step == 11
    assert verdict.signals[0].what == "0.002 where the baseline has 0.001"


@pytest.mark.parametrize(
    ("factor", "points", "accepted"),
    [(1.001, 1000, True), (1.03, 1000, False), (1.001, 999, None), (1.03, 999, None)],
)
def test_the_acceptance_rule_needs_its_steps(factor: float, points: int, accepted: bool | None) -> None:
    loss = falling(points)
    against = judge_curves(log(loss * factor), baseline=log(loss)).against_baseline
    assert against is not None and against.accepted is accepted
    assert ("so far it fails" in against.why) == (accepted is None and factor > 1.02)
    if accepted is False:
        assert "mean absolute error" in against.why and "at most 0.02 or 2 %" in against.why


def test_the_gradient_norm_and_the_first_step_are_accepted_by_themselves() -> None:
    loss = falling(1000)
    norm = np.full(1000, 2.0)
    against = judge_curves(log(loss, grad_norm=norm * 1.2), baseline=log(loss, grad_norm=norm)).against_baseline
    assert against is not None and against.accepted is False and against.why.startswith("gradient norm 20 % apart")
    other = loss.copy()
    other[0] *= 1.02
    against = judge_curves(log(other), baseline=log(loss)).against_baseline
    assert against is not None and against.accepted is False and against.why.startswith("first step")


@given(st.integers(2, 40), st.data())
def test_the_first_step_that_differs_at_all_is_never_after_the_first_outside(points: int, data: st.DataObject) -> None:
    loss = falling(points)
    other = loss * data.draw(
        st.lists(st.sampled_from([1.0, 1.0001, 1.02, 0.5]), min_size=points, max_size=points).map(np.array)
    )
    against = judge_curves(log(other), baseline=log(loss)).against_baseline
    assert against is not None and against.steps_compared == points
    different = np.flatnonzero(other != loss)
    outside = np.flatnonzero(np.abs(other - loss) / loss > 0.01)
    assert against.first_different == (different[0] + 1 if len(different) else None)
    assert against.first_outside == (outside[0] + 1 if len(outside) else None)


# -- which step to dump


def choice(curve: LossLog, baseline: LossLog | None = None) -> tuple[tuple[int, ...], str]:
    chosen = steps_to_dump(judge_curves(curve, baseline=baseline), curve)
    return chosen.steps, chosen.why


def test_the_steps_to_dump_follow_from_how_the_curves_part() -> None:
    loss = falling(40)
    apart = loss * 1.05
    assert choice(log(apart), log(loss))[0] == (1,)
    late = np.concatenate([loss[:20], apart[20:]])
    steps, why = choice(log(late), log(loss))
    assert steps == (20, 21) and "the update of the step before" in why
    spiked = loss.copy()
    spiked[30] *= 3
    assert choice(log(spiked))[0] == (30, 31)
    norm = [*[1.0] * 20, *[NAN] * 20]
    gradient = np.where(np.arange(40) > 20, NAN, loss)
    assert choice(log(gradient, grad_norm=norm))[0] == (21,)
    assert choice(log(gradient))[0] == (21, 22)


def test_a_log_that_shows_every_tenth_step_gives_all_steps_between_or_asks_for_a_finer_log() -> None:
    loss = falling(40)
    loss[30:] = NAN
    steps, why = choice(log(loss, stride=10, first=10))
    assert steps == tuple(range(300, 311)) and "it happened between 300 and 310" in why
    steps, why = choice(log(loss, stride=100, first=100))
    assert steps == () and "Log every step from 3000 on first" in why


def test_a_healthy_curve_names_no_step() -> None:
    assert choice(log(falling(40))) == ((), "no step to look at")


def test_a_series_is_found_by_its_role_or_by_its_own_name() -> None:
    named = LossLog(
        "x", None, {"lm loss": series("lm loss", [1, 2]), "loss scale": series("loss scale", [1, 1])}, (), ()
    )
    assert named.find("loss") is named.series["lm loss"]
    assert named.find("loss_scale") is named.find("loss scale")
    assert named.find("grad_norm") is None
