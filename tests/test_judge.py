"""Judging pairs: what counts as a difference, by which evidence, and under a band."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handmade import forward, scalar, tensor, write
from hypothesis import given
from hypothesis import strategies as st

from precdiag.align import pair
from precdiag.dump import read_dump
from precdiag.errors import UsageError
from precdiag.evidence import (
    BYTES,
    CHECKSUM,
    DIFFERENT,
    DTYPE,
    EQUAL,
    EXCLUDED,
    NOTHING,
    STATISTICS,
    UNKNOWN,
    VALUE,
    XOR,
)
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part

CALL = "Torch.a.0.forward"


def judged(folder: Path, baseline: Any, candidate: Any, policy: Policy | None = None, **more: Any) -> Judged:
    """Judge two dumps of one call each (a list of outputs), or of whole `data`."""
    sides = []
    for side, data in (("b", baseline), ("c", candidate)):
        data = data if isinstance(data, dict) else {CALL: forward([], data)}
        sides.append(read_dump(Part(write(folder / side, data, **more))))
    return judge(*sides, pair(*sides), policy or Policy())


def one(folder: Path, baseline: Any, candidate: Any, policy: Policy | None = None) -> Any:
    """The verdict on a single pair of rows."""
    rows = judged(folder, [baseline], [candidate], policy).rows
    assert len(rows) == 1
    return rows.iloc[0]


# -- arguments and exact aspects


@pytest.mark.parametrize(
    ("left", "right", "state"),
    [
        (scalar(0.1), scalar(0.1), EQUAL),
        (scalar(0.1), scalar(0.2), DIFFERENT),
        (scalar(True), scalar(False), DIFFERENT),
        (scalar(1), scalar(True), DIFFERENT),
        (scalar("none"), scalar("tanh"), DIFFERENT),
        (None, None, EQUAL),
        (None, tensor(), DIFFERENT),
        (None, scalar(0), DIFFERENT),
        (scalar(0.0), scalar(-0.0), EQUAL),
        ({"type": "float", "value": float("nan")}, {"type": "float", "value": float("nan")}, EQUAL),
        ({"type": "Odd", "value": "<x at 0x1>"}, {"type": "Odd", "value": "<x at 0x2>"}, EQUAL),
        ({"type": "torch.device", "value": "cuda:0"}, {"type": "torch.device", "value": "npu:0"}, EQUAL),
        (scalar("cuda"), scalar("cuddle"), DIFFERENT),
    ],
)
def test_arguments_are_compared_exactly_but_for_the_device(tmp_path: Path, left: Any, right: Any, state: int) -> None:
    assert one(tmp_path, left, right)["state"] == state


def test_a_shape_is_not_squeezed(tmp_path: Path) -> None:
    assert one(tmp_path, tensor(shape=(1, 8)), tensor(shape=(8,)))["state"] == DIFFERENT


def test_requires_grad_counts_where_both_say_it(tmp_path: Path) -> None:
    unsaid = {key: value for key, value in tensor().items() if key != "requires_grad"}
    assert one(tmp_path / "1", tensor(grad=True), tensor(grad=False))["state"] == DIFFERENT
    assert one(tmp_path / "2", tensor(grad=True), unsaid)["state"] == EQUAL


@pytest.mark.parametrize(("high", "aspects"), [(1.0, DTYPE), (1.001, DTYPE), (1.1, DTYPE | VALUE)])
def test_a_dtype_alone_is_told_from_other_values(tmp_path: Path, high: float, aspects: int) -> None:
    narrow = tensor(dtype="torch.bfloat16")
    row = one(tmp_path, tensor(), narrow | {"Max": high})
    assert (row["state"], row["aspects"]) == (DIFFERENT, aspects)


def test_an_empty_tensor_is_equal_by_shape_and_dtype(tmp_path: Path) -> None:
    empty = tensor(shape=(0, 4)) | dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    row = one(tmp_path, empty, empty)
    assert (row["state"], row["evidence"]) == (EQUAL, NOTHING)


# -- statistics


@pytest.mark.parametrize("key", ["Max", "Min"])
def test_the_last_digit_of_max_or_min_is_a_difference(tmp_path: Path, key: str) -> None:
    moved = tensor() | {key: float(np.nextafter(np.float32(tensor()[key]), np.float32(9)))}
    assert one(tmp_path, tensor(), moved)["state"] == DIFFERENT


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"Mean": 2.0**-20}, UNKNOWN),  # |Δ| = 2^-20 of the largest element
        ({"Mean": 2.0**-19}, DIFFERENT),
        ({"Norm": 2.0 * (1 + 2.0**-20)}, UNKNOWN),
        ({"Norm": 2.0 * (1 + 2.0**-18)}, DIFFERENT),
        ({"Mean": float("nan")}, DIFFERENT),
        ({"Max": float("nan")}, DIFFERENT),
    ],
)
def test_mean_and_norm_alone_are_unknown_within_their_rounding(
    tmp_path: Path, change: dict[str, float], state: int
) -> None:
    assert one(tmp_path, tensor(), tensor() | change)["state"] == state


def test_one_ulp_of_a_narrow_dtype_is_its_rounding(tmp_path: Path) -> None:
    half = tensor(dtype="torch.bfloat16") | {"Mean": 0.5}
    assert one(tmp_path / "1", half, half | {"Mean": 0.50390625})["state"] == UNKNOWN
    assert one(tmp_path / "2", half, half | {"Mean": 0.51171875})["state"] == DIFFERENT


def test_the_mean_of_one_element_is_that_element(tmp_path: Path) -> None:
    loss = tensor(1.0, 1.0, shape=()) | {"Mean": 1.0}
    assert one(tmp_path, loss, loss | {"Mean": 1.0 + 2.0**-22})["state"] == DIFFERENT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_values_are_equal_only_where_both_have_them(tmp_path: Path, value: float) -> None:
    bad = tensor() | {"Max": value}
    both = one(tmp_path / "1", bad, bad)
    assert (both["state"], both["nonfinite"]) == (EQUAL, 3)
    alone = one(tmp_path / "2", tensor(), bad, Policy(max_abs=1e300, max_rel=1e300))
    assert (alone["state"], alone["nonfinite"], bool(alone["outside"])) == (DIFFERENT, 2, True)


def test_opposite_infinities_are_outside_any_band(tmp_path: Path) -> None:
    row = one(tmp_path, tensor() | {"Max": float("inf")}, tensor() | {"Max": float("-inf")}, Policy(max_abs=1e300))
    assert row["outside"] and row["max_abs"] == np.inf


def test_an_infinite_norm_alone_is_no_nonfinite_data(tmp_path: Path) -> None:
    overflown = tensor() | {"Norm": float("inf")}
    assert one(tmp_path, overflown, overflown)["nonfinite"] == 0


def test_a_zero_baseline_is_an_infinite_relative_error(tmp_path: Path) -> None:
    zero = tensor(0.0, 0.0)
    assert one(tmp_path, zero, tensor(0.0, 1e-20), Policy(max_rel=1e30))["outside"]


def test_large_integers_differ_in_their_last_digit(tmp_path: Path) -> None:
    big = tensor(dtype="torch.int64") | {"Max": 2**60, "Min": 2**60}
    assert one(tmp_path, big, big | {"Max": 2**60 + 1})["state"] == DIFFERENT


def test_a_statistic_that_one_version_leaves_out_is_not_compared(tmp_path: Path) -> None:
    found = judged(tmp_path, [tensor()], [tensor() | {"Mean": None, "Norm": None}])
    assert found.rows["state"].tolist() == [EQUAL]
    assert found.notes == ("1 rows have Mean and Norm on one side only: Max and Min decide there",)


@pytest.mark.parametrize("name", ["Max", "Min", "Mean", "Norm"])
def test_a_statistic_that_one_side_alone_lacks_is_never_equal(tmp_path: Path, name: str) -> None:
    row = one(tmp_path, tensor(), tensor() | {name: None})
    assert (row["state"], row["blocking"]) == (UNKNOWN, True)
    assert row["reason"].startswith("a statistic stands on one side only")


def test_an_integer_beyond_any_float_is_compared_to_its_last_digit(tmp_path: Path) -> None:
    huge = tensor(dtype="torch.int64") | {"Max": 10**400, "Min": -(10**400)}
    assert one(tmp_path / "alike", huge, huge)["state"] == EQUAL
    assert one(tmp_path / "apart", huge, huge | {"Max": 10**400 + 1})["state"] == DIFFERENT


def test_a_tensor_without_statistics_is_unknown_and_blocks_a_pass(tmp_path: Path) -> None:
    silent = tensor() | dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    row = one(tmp_path, silent, silent)
    assert (row["state"], bool(row["blocking"])) == (UNKNOWN, True)


# -- checksums


def test_an_equal_checksum_decides_whatever_the_statistics_say(tmp_path: Path) -> None:
    left, right = tensor(md5="deadbeef"), tensor(md5="deadbeef") | {"Mean": 0.25}
    row = one(tmp_path, left, right)
    assert (row["state"], row["evidence"]) == (EQUAL, CHECKSUM)


def test_another_checksum_is_a_difference_though_statistics_are_equal(tmp_path: Path) -> None:
    row = one(tmp_path, tensor(md5="deadbeef"), tensor(md5="deadbee0"))
    assert (row["state"], row["evidence"]) == (DIFFERENT, CHECKSUM)


def test_constant_tensors_of_equal_value_are_equal_whatever_their_bits(tmp_path: Path) -> None:
    zeros = tensor(0.0, 0.0, md5="00000000")
    result = judged(tmp_path, [zeros], [zeros | {"md5": "11111111", "Min": -0.0}])
    assert result.rows["state"].tolist() == [EQUAL]
    assert any("-0.0 against 0.0" in note for note in result.notes)


def test_xor_is_the_weakest_evidence(tmp_path: Path) -> None:
    def entry(checksum: str) -> Any:
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "md5": checksum}

    same = one(tmp_path / "1", entry("0x00ff"), entry("0x00ff"))
    assert (same["state"], same["evidence"]) == (EQUAL, XOR)
    assert one(tmp_path / "2", entry("0x00ff"), entry("0x00fe"))["state"] == DIFFERENT
    with pytest.raises(UsageError, match="xor"):
        one(tmp_path / "3", entry("0x00ff"), entry("0x00fe"), Policy(max_abs=1.0))


def bf16(md5: str, **change: float) -> Any:
    return tensor(-0.5, 0.75, dtype="torch.bfloat16", shape=(64,), md5=md5) | change


def constant(widened: bool) -> Any:
    """A bfloat16 tensor of four ones, with the checksum of its dialect."""
    ones = struct.pack("<f", 1.0) * 4 if widened else struct.pack("<f", 1.0)[2:] * 4
    return tensor(1.0, 1.0, dtype="torch.bfloat16", shape=(4,), md5=f"{zlib.crc32(ones):08x}")


def test_two_dialects_of_checksum_leave_it_to_statistics(tmp_path: Path) -> None:
    result = judged(tmp_path, [constant(True), bf16("aaaaaaaa")], [constant(False), bf16("bbbbbbbb")])
    assert result.rows["state"].tolist() == [EQUAL, EQUAL]
    assert any("dialects" in note for note in result.notes)


def test_one_dialect_keeps_checksums_in_charge(tmp_path: Path) -> None:
    result = judged(tmp_path, [constant(False), bf16("aaaaaaaa")], [constant(False), bf16("bbbbbbbb")])
    assert result.rows["state"].tolist() == [EQUAL, DIFFERENT]


def test_an_unproved_dialect_is_unknown_not_equal(tmp_path: Path) -> None:
    result = judged(tmp_path, [bf16("aaaaaaaa"), bf16("cccccccc")], [bf16("bbbbbbbb"), bf16("dddddddd")])
    assert result.rows["state"].tolist() == [UNKNOWN, UNKNOWN]
    assert result.rows["blocking"].all()


# -- bytes


def saved(folder: Path, value: torch.Tensor, name: str = "x.pt") -> Any:
    target = folder / "dump_tensor_data"
    target.mkdir(parents=True, exist_ok=True)
    torch.save(value, target / name)
    return tensor(shape=tuple(value.shape), dtype=str(value.dtype), data_name=name)


def test_equal_bytes_are_equal_whatever_the_statistics_say(tmp_path: Path) -> None:
    left = saved(tmp_path / "b", torch.ones(4))
    right = saved(tmp_path / "c", torch.ones(4)) | {"Mean": 0.123}
    row = one(tmp_path, left, right)
    assert (row["state"], row["evidence"]) == (EQUAL, BYTES)


def test_a_difference_that_statistics_cannot_see_is_found_in_bytes(tmp_path: Path) -> None:
    left = saved(tmp_path / "b", torch.tensor([1.0, 2.0]))
    right = saved(tmp_path / "c", torch.tensor([2.0, 1.0]))
    row = one(tmp_path, left, right)
    assert (row["state"], row["evidence"], row["max_abs"]) == (DIFFERENT, BYTES, 1.0)


@pytest.mark.parametrize("harm", ["missing", "cut", "folder"])
def test_an_unreadable_tensor_is_unknown_and_names_its_file(tmp_path: Path, harm: str) -> None:
    left = saved(tmp_path / "b", torch.ones(64))
    right = saved(tmp_path / "c", torch.ones(64))
    file = tmp_path / "c/dump_tensor_data/x.pt"
    content = file.read_bytes()
    file.unlink()
    if harm == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "folder":
        file.mkdir()
    row = one(tmp_path, left, right)
    assert (row["state"], bool(row["blocking"])) == (UNKNOWN, True)
    assert "x.pt" in row["reason"]


def test_statistics_show_a_difference_where_a_tensor_is_missing(tmp_path: Path) -> None:
    left = saved(tmp_path / "b", torch.ones(4))
    right = saved(tmp_path / "c", torch.ones(4)) | {"Max": 5.0}
    (tmp_path / "c/dump_tensor_data/x.pt").unlink()
    row = one(tmp_path, left, right)
    assert (row["state"], row["evidence"]) == (DIFFERENT, STATISTICS)


# -- a band


@pytest.mark.parametrize(
    ("policy", "outside"),
    [
        (Policy(), True),
        (Policy(max_abs=0.01), False),
        (Policy(max_abs=0.001), True),
        (Policy(max_rel=0.01), False),
        (Policy(max_rel=0.001), True),
        (Policy(max_abs=0.01, max_rel=0.001), True),
    ],
)
def test_a_row_is_inside_only_if_it_meets_every_bound(tmp_path: Path, policy: Policy, outside: bool) -> None:
    row = one(tmp_path, tensor(), tensor() | {"Max": 1.005}, policy)
    assert (row["state"], bool(row["outside"])) == (DIFFERENT, outside)


@pytest.mark.parametrize("policy", [Policy(cosine_min=0.9), Policy(max_ulp=4)])
def test_cosine_and_ulp_need_tensors(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(UsageError, match="need tensors"):
        one(tmp_path, tensor(), tensor(), policy)


def test_under_a_band_the_rounding_of_a_statistic_is_judged_by_the_band(tmp_path: Path) -> None:
    inside = one(tmp_path / "1", tensor(), tensor() | {"Mean": 2.0**-21}, Policy(max_abs=1e-3))
    outside = one(tmp_path / "2", tensor(), tensor() | {"Mean": 2.0**-21}, Policy(max_abs=0.0))
    assert [bool(row["outside"]) for row in (inside, outside)] == [False, True]
    assert not inside["blocking"]


def test_under_a_band_a_dtype_is_judged_by_values_and_a_shape_never_inside(tmp_path: Path) -> None:
    band = Policy(max_rel=0.01)
    assert not one(tmp_path / "1", tensor(), tensor(dtype="torch.bfloat16"), band)["outside"]
    assert one(tmp_path / "2", tensor(shape=(1, 8)), tensor(shape=(8,)), band)["outside"]
    assert one(tmp_path / "3", scalar(0.1), scalar(0.10001), band)["outside"]


@given(
    st.floats(-1e6, 1e6, width=32),
    st.floats(-1e6, 1e6, width=32),
    st.floats(0, 1e3),
)
def test_a_wider_band_never_lets_less_through(tmp_path_factory: Any, left: float, right: float, bound: float) -> None:
    folder = tmp_path_factory.mktemp("band")
    rows = [
        one(folder / str(at), tensor(high=left), tensor(high=right), Policy(max_abs=width))
        for at, width in enumerate((bound, bound * 2 + 1))
    ]
    assert bool(rows[0]["outside"]) >= bool(rows[1]["outside"])


# -- uninitialised memory


def test_memory_that_nobody_wrote_is_excluded_and_what_merely_hands_it_on(tmp_path: Path) -> None:
    def data(garbage: float) -> Any:
        junk = tensor(garbage, garbage + 1)
        return {
            "Torch.empty_like.0.forward": forward([tensor()], [junk]),
            "Tensor.view.0.forward": forward([junk], [junk | {"shape": [8]}]),
            "Tensor.fill_.0.forward": forward([junk, scalar(1.0)], [tensor(1.0, 1.0)]),
            "Torch.matmul.0.forward": forward([tensor()], [tensor()], out=junk),
            "Distributed.all_gather_into_tensor.0.forward": forward([junk, tensor()], [tensor()]),
        }

    result = judged(tmp_path, data(7.0), data(9.0))
    assert (result.rows["state"] == DIFFERENT).sum() == 0
    assert (result.rows["state"] == EXCLUDED).sum() == 6
    assert any("6 rows hold uninitialised memory" in note for note in result.notes)


def test_an_empty_result_without_elements_is_not_uninitialised(tmp_path: Path) -> None:
    none = tensor(shape=(0,)) | dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    result = judged(
        tmp_path, {"Torch.empty.0.forward": forward([], [none])}, {"Torch.empty.0.forward": forward([], [none])}
    )
    assert result.rows["state"].tolist() == [EQUAL]


def test_a_shape_of_uninitialised_memory_still_counts(tmp_path: Path) -> None:
    data = [{"Torch.empty.0.forward": forward([], [tensor(shape=shape)])} for shape in ((4,), (5,))]
    assert judged(tmp_path, *data).rows["state"].tolist() == [DIFFERENT]
