"""Beyond rounding, on pairs of two devices: the planted fault is named, a healthy port is silent, never a wrong row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from handmade import Json, forward, scalar, tensor, write
from hypothesis import given
from hypothesis import strategies as st

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.growth import highest
from precdiag.judge import Policy
from precdiag.rounding import Rounding

Real = Callable[[str], Path]

# fixtures/crossdevice: what was planted, and the row that rounding does not explain (None: silence is right).
CROSS_DEVICE = {
    "bfloat16/npu_none": None,
    "bfloat16/npu_gelu": None,  # below what bfloat16 can show
    "bfloat16/npu_mask": "Module.layers.3.core.Core.forward.0.output.0",
    "bfloat16/npu_weight": "Module.layers.2.up.Lin.forward.0.parameters.weight",
    "float32/npu_none": None,
    "float32/npu_gelu": "Module.layers.1.act.Act.forward.0.output.0",
    "float32/npu_rms_eps": "Module.layers.2.norm1.RMSNorm.forward.0.output.0",
    "float32/npu_tf32": "Module.layers.0.q.Lin.forward.0.output.0",
    "float32/npu_weight": "Module.layers.2.up.Lin.forward.0.parameters.weight",
    "fused_L0/npu": None,
    "fused_L1/npu": None,
}


def against_gpu(real: Real, name: str) -> Comparison:
    folder = real("crossdevice") / name
    return compare(folder.parent / "gpu", folder, Policy())


def rounding_of(comparison: Comparison) -> Rounding:
    assert comparison.rounding is not None
    return comparison.rounding


@pytest.mark.parametrize(("name", "expected"), CROSS_DEVICE.items())
def test_the_row_beyond_rounding_is_the_planted_fault_or_none(real: Real, name: str, expected: str | None) -> None:
    comparison = against_gpu(real, name)
    beyond = rounding_of(comparison).beyond
    assert (None if beyond is None else beyond.row.name) == expected
    assert (comparison.verdict, comparison.exit_code) == ("diverged", 1)  # bitwise decides, whatever rounding explains


def test_the_first_cause_of_a_healthy_port_is_the_onset_of_rounding_and_says_so(real: Real) -> None:
    comparison = against_gpu(real, "bfloat16/npu_none")
    assert comparison.cause is not None and comparison.cause.row.kind == "introduced"
    assert rounding_of(comparison).onset == comparison.cause.row
    assert "differs by rounding, no fault by itself" in comparison.cause.why


def test_a_fault_that_comes_first_is_no_onset_of_rounding(real: Real) -> None:
    comparison = compare(real("dumps") / "26.2.0/tensor-L1/A", real("dumps") / "26.2.0/tensor-L1/C", Policy())
    assert comparison.cause is not None and "by rounding" not in comparison.cause.why
    assert rounding_of(comparison).onset is None
    beyond = rounding_of(comparison).beyond
    assert beyond is not None and (beyond.row.name, beyond.row.kind) == (comparison.cause.row.name, "parameter")


def test_equal_dumps_have_nothing_to_explain(real: Real) -> None:
    comparison = compare(real("dumps") / "26.2.0/tensor-L1/A", real("dumps") / "26.2.0/tensor-L1/B", Policy())
    assert comparison.rounding is None


def test_the_jumps_are_five_in_order_with_the_fault_as_the_steepest(real: Real) -> None:
    jumps = rounding_of(against_gpu(real, "float32/npu_gelu")).jumps
    assert len(jumps) == 5
    assert [jump.row.order for jump in jumps] == sorted(jump.row.order for jump in jumps)
    steepest = max(jumps, key=lambda jump: jump.e_out / max(jump.e_in, jump.u))
    assert steepest.row.name == "Module.layers.1.act.Act.forward.0.output.0"
    assert steepest.e_out / steepest.u == pytest.approx(3446, rel=0.01)


def test_the_profile_follows_the_modules_in_their_order(real: Real) -> None:
    profile = rounding_of(against_gpu(real, "float32/npu_gelu")).profile
    paths = [level.path for level in profile]
    assert paths.index("layers.0.norm1") < paths.index("layers.1.act") < paths.index("layers.3") < paths.index("head")
    error = {level.path: level.e / 2**-24 for level in profile}
    assert error["layers.0"] < 8 and error["layers.1"] > 1000


def test_forward_comes_before_backward_in_the_profile(real: Real) -> None:
    phases = [level.phase == "forward" for level in rounding_of(against_gpu(real, "fused_L0/npu")).profile]
    assert phases == sorted(phases, reverse=True)
    assert set(phases) == {True, False}


@given(st.lists(st.floats(0, 1), max_size=60), st.integers(1, 20))
def test_a_profile_that_is_too_long_keeps_its_peaks_in_their_order(values: list[float], most: int) -> None:
    kept = highest(np.array(values), most).tolist()
    assert len(kept) == min(most, len(values))
    assert kept == sorted(set(kept))
    if values:
        assert max(values) == max(values[at] for at in kept)
    assert highest(np.array(values), 60).tolist() == list(range(len(values)))


def test_every_matmul_in_tf32_is_said_to_look_like_it(real: Real) -> None:
    looks = [row.name for row in rounding_of(against_gpu(real, "float32/npu_tf32")).tf32]
    assert looks == [f"Module.layers.0.{name}.Lin.forward.0.output.0" for name in "qkv"]
    assert not rounding_of(against_gpu(real, "float32/npu_gelu")).tf32


def test_the_smallest_band_is_told_in_units_of_roundoff_too(real: Real) -> None:
    bound = against_gpu(real, "bfloat16/npu_none").smallest_band
    assert bound.scaled == pytest.approx(2.11, abs=0.01)
    assert bound.max_abs is not None and bound.max_rel is not None


# -- rules on dumps written by hand: statistics, float32 unless said otherwise


def by_hand(tmp_path: Path, baseline: Json, candidate: Json, step: int = 0) -> Rounding:
    sides = [
        write(tmp_path / side / f"step{step}" / "rank", data).parent.parent
        for side, data in (("baseline", baseline), ("candidate", candidate))
    ]
    return rounding_of(compare(sides[0], sides[1], Policy()))


@pytest.mark.parametrize(("operation", "beyond"), [("__sub__", False), ("__mul__", True)])
def test_only_what_adds_may_magnify_an_error_by_cancelling(tmp_path: Path, operation: str, beyond: bool) -> None:
    def call(moved: float) -> Json:
        taken = [tensor(high=1 + moved), tensor()]
        return {f"Tensor.{operation}.0.forward": forward(taken, [tensor(-1e-3, 1e-3 + moved)])}

    found = by_hand(tmp_path, call(0.0), call(4e-7)).beyond  # 4e-7 of 1 is rounding; 4e-7 of 1e-3 is 6,700 u
    assert (found is not None) == beyond


@pytest.mark.parametrize(("step", "beyond"), [(0, True), (3, False)])
def test_a_parameter_that_differs_is_beyond_rounding_only_before_updates(
    tmp_path: Path, step: int, beyond: bool
) -> None:
    def call(weight: float) -> Json:
        return {
            "Module.fc.Linear.forward.0": forward([tensor()], [tensor(high=weight)], {"weight": tensor(high=weight)})
        }

    found = by_hand(tmp_path, call(1.0), call(1.0001), step).beyond
    assert (found is not None and found.row.kind == "parameter") == beyond


def test_statistics_of_half_precision_say_where_the_error_jumps_and_name_no_row(tmp_path: Path) -> None:
    def call(high: float, dtype: str) -> Json:
        own = tensor(dtype=dtype), tensor(high=high, dtype=dtype)
        return {"Functional.gelu.0.forward": forward([own[0]], [own[1]])}

    half = by_hand(tmp_path / "half", call(1.0, "torch.bfloat16"), call(1.5, "torch.bfloat16"))
    assert half.beyond is None and half.unresolved is not None
    assert half.unresolved.name == "Functional.gelu.0.forward.output.0"
    single = by_hand(tmp_path / "single", call(1.0, "torch.float32"), call(1.5, "torch.float32"))
    assert single.beyond is not None and single.beyond.row.name == half.unresolved.name


def test_an_argument_is_named_where_its_call_gives_out_more_than_rounding(tmp_path: Path) -> None:
    def call(eps: float, high: float) -> Json:
        return {"Functional.layer_norm.0.forward": forward([tensor()], [tensor(high=high)], eps=scalar(eps))}

    found = by_hand(tmp_path / "off", call(1e-5, 1.0), call(1e-3, 1.01)).beyond
    assert found is not None
    assert (found.row.name, found.row.kind) == ("Functional.layer_norm.0.forward.input.eps", "argument")
    harmless = by_hand(tmp_path / "same", call(1e-5, 1.0), call(1.1e-5, 1.0))
    assert harmless.beyond is None and len(harmless.arguments) == 1
