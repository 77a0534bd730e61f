"""Tensor files: what is equal, what is different and by how much, what cannot be known, and at what cost."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precdiag.archive import ZIP_MAGIC, mapped_from
from precdiag.dtypes import COMPLEX, FLOATS, INTEGERS
from precdiag.errors import PrecdiagError, UnreadableError
from precdiag.tensors import TensorPair, compare_files
from precdiag.torchfile import load, require_torch

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*prototype")

NAN, INF = math.nan, math.inf
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def known(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if hasattr(torch, name)]


def dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def tensor(values, name: str = "float32") -> torch.Tensor:
    return (
        torch.tensor(values).to(dtype(name)) if name.startswith("float8") else torch.tensor(values, dtype=dtype(name))
    )


def from_bits(patterns: list[int], name: str) -> torch.Tensor:
    array = np.array(patterns, dtype=UNSIGNED[dtype(name).itemsize])
    return torch.from_numpy(array.view(array.dtype.str.replace("u", "i"))).view(dtype(name))


@pytest.fixture(scope="module")
def compare(tmp_path_factory):
    """Write two tensors (.npy for arrays, .pt for all else) and compare the files."""
    folder = tmp_path_factory.mktemp("pair")

    def run(baseline, candidate, **options) -> TensorPair:
        paths = []
        for side, value in (("baseline", baseline), ("candidate", candidate)):
            if isinstance(value, np.ndarray):
                paths.append(folder / f"{side}.npy")
                np.save(paths[-1], value)
            else:
                paths.append(folder / f"{side}.pt")
                torch.save(value, paths[-1])
        return compare_files(*paths, **options)

    return run


def dtypes_and_bits(names: list[str]):
    """A dtype and two lists of bit patterns, many of them equal or close: zeros, subnormals, inf, NaN payloads."""

    def pairs(name: str):
        width = 8 * dtype(name).itemsize
        top = 2**width - 1
        first = st.one_of(
            st.integers(0, top), st.sampled_from([0, 1, top, 1 << (width - 1), (1 << (width - 1)) - 1, top >> 2])
        )
        pair = st.tuples(first, st.one_of(st.just(0), st.integers(-3, 3), st.integers(0, top)))
        return st.lists(pair, min_size=1, max_size=12).map(
            lambda found: (name, [b for b, _ in found], [(b + d) & top for b, d in found])
        )

    return st.sampled_from(names).flatmap(pairs)


def reference(baseline: list, candidate: list) -> dict:
    """The definitions of Metrics, one Python number at a time."""
    errors, relatives, outside, zeros = [], [], 0, 0
    for b, c in zip(baseline, candidate, strict=True):
        same = b == c or (b != b and c != c)
        special = not (math.isfinite(b) and math.isfinite(c)) if isinstance(b, float) else False
        error = 0 if same else INF if special else abs(c - b)
        if error == INF and not special:
            error = sys.float_info.max
        outside += error == INF
        errors.append(error)
        relatives.append(0.0 if error == 0 else INF if b == 0 or error == INF else float(error) / abs(b))
        zeros += isinstance(b, float) and b == c == 0 and math.copysign(1, b) != math.copysign(1, c)
    worst = max(errors)
    return {
        "max_abs": worst,
        "max_rel": max(relatives),
        "mismatched": sum(error != 0 for error in errors),
        "index": (errors.index(worst),) if worst else None,
        "outside": outside,
        "negative_zeros": zeros,
        "errors": errors,
    }


def check_against_reference(found: TensorPair, baseline: list, candidate: list) -> None:
    expected = reference(baseline, candidate)
    assert found.negative_zeros == expected["negative_zeros"]
    assert (found.nonfinite == "differs") == (expected["outside"] > 0)
    if expected["mismatched"] == 0:
        assert (found.state, found.metrics) == ("equal", None)
        return
    metrics = found.metrics
    assert found.state == "different"
    for name in ("max_abs", "mismatched", "index"):
        assert getattr(metrics, name) == expected[name], name
    assert metrics.max_rel == pytest.approx(expected["max_rel"], rel=1e-15)
    at = metrics.index[0]
    assert [metrics.baseline, metrics.candidate] == pytest.approx([baseline[at], candidate[at]], rel=0, nan_ok=True)
    if found.nonfinite == "none":
        check_sums(metrics, [float(b) for b in baseline], [float(c) for c in candidate], expected["errors"])
    else:
        assert math.isnan(metrics.cosine)


def check_sums(metrics, baseline: list[float], candidate: list[float], errors: list) -> None:
    bb, cc = sum(b * b for b in baseline), sum(c * c for c in candidate)
    if max(bb, cc) == INF or 0 < min(bb, cc) < 1e-290 or bb == 0 or cc == 0:
        return  # the ends of float64 have tests of their own
    assert metrics.euclidean == pytest.approx(math.sqrt(sum(float(error) ** 2 for error in errors)), rel=1e-12)
    assert metrics.relative_norm == pytest.approx(metrics.euclidean / math.sqrt(bb), rel=1e-12)
    dot = sum(b * c for b, c in zip(baseline, candidate, strict=True))
    assert -1 <= metrics.cosine <= 1
    assert metrics.cosine == pytest.approx(dot / math.sqrt(bb) / math.sqrt(cc), abs=1e-12)


# What is equal


@pytest.mark.parametrize("name", known((*INTEGERS, *FLOATS, *COMPLEX)))
def test_every_dtype_is_equal_to_itself_and_different_when_one_element_is(compare, name):
    values = torch.tensor([1, 0, 1, 1, 1]).to(dtype(name))
    other = values.clone()
    other.view(torch.uint8)[3 * other.element_size()] ^= 1  # the lowest bit of element 3
    assert compare(values, values.clone()).state == "equal"
    found = compare(values, other)
    assert (found.state, found.baseline_dtype) == ("different", f"torch.{name}")
    metrics = found.metrics
    assert (metrics.index, metrics.mismatched, metrics.max_ulp, metrics.elements) == ((3,), 1, 1, 5)
    assert (metrics.baseline, metrics.candidate) == (values[3].item(), other[3].item())


@pytest.mark.parametrize("name", known(("bool", "int64", "float32", "bfloat16", "complex64")))
def test_scalars_and_empty_tensors_are_compared_by_value_shape_and_dtype(compare, name):
    one, zero = torch.tensor(1).to(dtype(name)), torch.tensor(0).to(dtype(name))
    assert compare(one, one).state == "equal"
    assert compare(one, zero).metrics.index == ()
    empty = torch.empty((0, 4), dtype=dtype(name))
    assert compare(empty, empty) == TensorPair(
        "equal",
        baseline_dtype=f"torch.{name}",
        candidate_dtype=f"torch.{name}",
        baseline_shape=(0, 4),
        candidate_shape=(0, 4),
    )
    assert compare(empty, empty.view(4, 0)).state == "different"
    unlike = compare(empty, empty.to(torch.float16))
    assert (unlike.state, unlike.dtype_only, unlike.metrics) == ("different", True, None)


def test_shapes_are_not_squeezed_and_have_no_metrics(compare):
    found = compare(torch.zeros(1, 8), torch.zeros(8))
    assert (found.state, found.metrics) == ("different", None)
    assert (found.baseline_shape, found.candidate_shape) == ((1, 8), (8,))


@pytest.mark.parametrize("name", known(("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")))
def test_zeros_of_another_sign_are_equal_and_counted(compare, name):
    found = compare(tensor([0.0, -0.0, 0.0, 1.0], name), tensor([-0.0, 0.0, 0.0, 1.0], name))
    assert (found.state, found.negative_zeros, found.metrics) == ("equal", 2, None)


def test_nan_equals_nan_of_another_payload_at_the_same_place_only(compare):
    payload = from_bits([0x7FC00000, 0xFFC01234], "float32")
    assert dataclasses.asdict(compare(payload, payload.flip(0)))["nonfinite"] == "same"
    assert compare(payload, payload.flip(0)).state == "equal"
    found = compare(torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0]))
    assert (found.state, found.nonfinite, found.metrics.mismatched) == ("different", "differs", 2)


@pytest.mark.parametrize("name", known(("float64", "float32", "float16", "bfloat16", "float8_e5m2", "complex64")))
def test_equal_tensors_still_tell_that_they_hold_nonfinite_values(compare, name):
    for special in (NAN, INF, -INF):
        values = tensor([1.0, special, 2.0], name)
        for chunk in (1, 3):
            found = compare(values, values, chunk_elements=chunk)
            assert (found.state, found.nonfinite) == ("equal", "same")
    large = tensor([60000.0] * 9 if name != "float8_e5m2" else [57344.0] * 9, name)  # finite, but the sum overflows
    assert compare(large, large).nonfinite == "none"


# By how much it differs


@pytest.mark.parametrize(
    ("baseline", "candidate"), [([1.0, 2.0], [NAN, 2.5]), ([1.0, -INF], [1.0, INF]), ([INF, 0.0], [3.0, 1e30])]
)
def test_a_nonfinite_element_that_differs_is_outside_everything(compare, baseline, candidate):
    found = compare(torch.tensor(baseline), torch.tensor(candidate))
    metrics = found.metrics
    assert (found.state, found.nonfinite) == ("different", "differs")
    assert (metrics.max_abs, metrics.max_rel, metrics.max_ulp, metrics.euclidean) == (INF, INF, INF, INF)
    assert metrics.relative_norm == INF
    assert math.isnan(metrics.cosine)
    assert not math.isfinite(baseline[metrics.index[0]] - candidate[metrics.index[0]])


def test_a_nonfinite_element_ranks_above_a_difference_that_overflows(compare):
    found = compare(tensor([1.7e308, 0.0], "float64"), tensor([-1.7e308, NAN], "float64"))
    assert found.metrics.index == (1,)
    finite = compare(tensor([0.0, 1.7e308], "float64"), tensor([1.0, -1.7e308], "float64"))
    assert (finite.metrics.index, finite.metrics.max_abs, finite.nonfinite) == ((1,), sys.float_info.max, "none")


def test_the_same_nonfinite_elements_do_not_hide_a_finite_difference(compare):
    found = compare(torch.tensor([NAN, -INF, 2.0, 0.0]), torch.tensor([NAN, -INF, 2.5, -0.0]))
    assert (found.state, found.nonfinite, found.negative_zeros) == ("different", "same", 1)
    assert (found.metrics.max_abs, found.metrics.max_rel, found.metrics.mismatched) == (0.5, 0.25, 1)
    assert (found.metrics.index, found.metrics.euclidean) == ((2,), 0.5)


def test_a_zero_baseline_has_an_infinite_relative_error(compare):
    metrics = compare(torch.tensor([0.0, 0.0, 4.0]), torch.tensor([0.0, 1e-20, 4.0])).metrics
    assert (metrics.max_rel, metrics.mismatched) == (INF, 1)


@pytest.mark.parametrize(
    ("baseline", "candidate", "cosine"),
    [
        ([0.0, 0.0], [0.0, 1.0], 0.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0),
        ([1e-200, 1.0], [-1e-200, -1.0], -1.0),
        ([1e80, 0.0], [1e100, 0.0], 1.0),
        ([1e-200], [-1e-200], 0.0),  # squares underflow: never called parallel
        ([1e200], [2e200], NAN),  # squares overflow
    ],
)
def test_cosine_at_its_ends(compare, baseline, candidate, cosine):
    found = compare(tensor(baseline, "float64"), tensor(candidate, "float64"))
    assert found.metrics.cosine == pytest.approx(cosine, nan_ok=True)


@settings(max_examples=300, deadline=None)
@given(drawn=dtypes_and_bits(known(FLOATS)), chunk=st.integers(1, 13))
def test_float_metrics_are_those_of_a_loop_over_python_numbers(compare, drawn, chunk):
    name, b, c = drawn
    baseline, candidate = from_bits(b, name), from_bits(c, name)
    found = compare(baseline, candidate, chunk_elements=chunk)
    check_against_reference(found, baseline.double().tolist(), candidate.double().tolist())


@settings(max_examples=200, deadline=None)
@given(drawn=dtypes_and_bits(known(INTEGERS[1:])), chunk=st.integers(1, 13))
def test_integer_metrics_are_exact_beyond_53_bits(compare, drawn, chunk):
    name, b, c = drawn
    baseline, candidate = from_bits(b, name), from_bits(c, name)
    found = compare(baseline, candidate, chunk_elements=chunk)
    check_against_reference(found, baseline.tolist(), candidate.tolist())
    if found.metrics:
        assert found.metrics.max_ulp == found.metrics.max_abs


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=8), st.integers(1, 9))
def test_complex_elements_count_once_by_the_modulus_of_their_difference(compare, drawn, chunk):
    baseline = torch.tensor([complex(a, b) for a, b, _, _ in drawn], dtype=torch.complex64)
    candidate = torch.tensor([complex(a, d) for a, _, c, d in drawn], dtype=torch.complex64)
    found = compare(baseline, candidate, chunk_elements=chunk)
    imaginary = [(b, d) for _, b, _, d in drawn]
    errors = [0.0 if b == d or (b != b and d != d) else abs(d - b) for b, d in imaginary]
    errors = [error if math.isfinite(error) else INF for error in errors]
    if not any(errors):
        assert found.state == "equal"
        return
    assert found.metrics.mismatched == sum(error != 0 for error in errors)
    assert (found.metrics.max_abs, found.metrics.index) == (max(errors), (errors.index(max(errors)),))


def test_complex_relative_error_and_sums_take_both_parts(compare):
    metrics = compare(torch.tensor([3 + 4j, 1j]), torch.tensor([3 + 4j + (0.3 + 0.4j), 1j])).metrics
    assert metrics.max_rel == pytest.approx(0.1, rel=1e-6)
    assert metrics.euclidean == pytest.approx(0.5, rel=1e-6)
    assert metrics.baseline == 3 + 4j


@settings(max_examples=200, deadline=None)
@given(drawn=dtypes_and_bits([name for name in known(FLOATS) if dtype(name).itemsize <= 2]))
def test_ulps_count_every_representable_number_between(compare, drawn):
    name, b, c = drawn
    baseline, candidate = from_bits(b, name), from_bits(c, name)
    found = compare(baseline, candidate)
    if found.metrics is None or found.nonfinite == "differs":
        return
    everything = from_bits(list(range(256 ** dtype(name).itemsize)), name).double()
    ordered = np.unique(everything[everything.isfinite()].numpy())
    pairs = [pair for pair in zip(baseline.double(), candidate.double(), strict=True) if all(map(torch.isfinite, pair))]
    places = [np.searchsorted(ordered, [float(x), float(y)]) for x, y in pairs]
    assert found.metrics.max_ulp == max(abs(int(x) - int(y)) for x, y in places)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["float32", "float64"]),
    start=st.floats(width=32, allow_nan=False, allow_infinity=False),
    steps=st.integers(-40, 40),
)
def test_ulps_of_wide_floats_are_steps_of_nextafter(compare, name, start, steps):
    first = last = np.array([start], dtype=name)
    with np.errstate(over="ignore"):
        for _ in range(abs(steps)):
            last = np.nextafter(last, np.array(math.copysign(INF, steps), dtype=name))
    if not np.isfinite(last).all():
        return
    found = compare(torch.from_numpy(first), torch.from_numpy(last))
    assert (found.metrics.max_ulp if found.metrics else 0) == abs(steps)


@pytest.mark.parametrize(("name", "bits"), [("float16", 16), ("float32", 32), ("float64", 64)])
def test_the_longest_distance_in_ulps_does_not_overflow(compare, name, bits):
    top = torch.finfo(dtype(name)).max
    ulps = compare(tensor([top], name), tensor([-top], name)).metrics.max_ulp
    assert ulps == 2 * int(np.array(top, dtype=name).view(f"u{bits // 8}"))


def test_integers_further_apart_than_63_bits_keep_their_distance_and_their_order(compare):
    metrics = compare(torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])).metrics
    assert (metrics.max_abs, metrics.max_ulp) == (2**64 - 1, 2**64 - 1)
    assert (metrics.max_rel, metrics.euclidean) == (2.0, 2.0**64)
    close = compare(torch.tensor([0, 0]), torch.tensor([2**53, 2**53 + 1])).metrics
    assert (close.index, close.max_abs) == ((1,), 2**53 + 1)


@settings(max_examples=100, deadline=None)
@given(drawn=dtypes_and_bits(known(FLOATS + INTEGERS[1:])))
def test_both_directions_mismatch_at_the_same_places(compare, drawn):
    name, b, c = drawn
    sides = from_bits(b, name), from_bits(c, name)
    there, back = compare(*sides), compare(*reversed(sides))
    assert (there.state, there.nonfinite, there.negative_zeros) == (back.state, back.nonfinite, back.negative_zeros)
    if there.metrics:
        for key in ("mismatched", "max_abs", "max_ulp", "index", "elements"):
            assert getattr(there.metrics, key) == getattr(back.metrics, key), key


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "complex64"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_the_chunk_size_changes_nothing(compare, name, layout):
    generator = torch.Generator().manual_seed(1)
    baseline = (torch.randn(24, 31, generator=generator) * 50).to(dtype(name))
    candidate = baseline.clone()
    candidate[6, 7], candidate[20, 28] = 77, -99
    reshaped = {"contiguous": lambda x: x, "transposed": lambda x: x.t(), "strided": lambda x: x[::2, 1::3]}[layout]
    whole = compare(reshaped(baseline).contiguous(), reshaped(candidate).contiguous())
    for chunk in (1, 2, 7, 100, 744):
        part = compare(reshaped(baseline), reshaped(candidate).contiguous(), chunk_elements=chunk)
        sums = ("cosine", "euclidean", "relative_norm")
        for key in sums:
            assert getattr(part.metrics, key) == pytest.approx(getattr(whole.metrics, key), rel=1e-12)
        metrics = dataclasses.replace(part.metrics, **{key: getattr(whole.metrics, key) for key in sums})
        assert dataclasses.replace(part, metrics=metrics) == whole


def test_the_relative_norm_against_a_baseline_of_zeros_is_infinite(compare):
    assert compare(torch.zeros(3), torch.tensor([0.0, 1.0, 0.0])).metrics.relative_norm == INF
    assert compare(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])).metrics.relative_norm == 0.1


def test_sliced_expanded_conjugated_and_differentiable_tensors_are_read_by_value(compare):
    assert compare(torch.tensor([2.0]).expand(5, 3), torch.full((5, 3), 2.0)).state == "equal"
    conjugate = torch.tensor([1 + 2j]).conj()
    assert compare(conjugate, torch.tensor([1 - 2j])).state == "equal"
    assert compare(torch.arange(9.0)[1:], torch.arange(1.0, 9.0)).state == "equal"
    assert compare(conjugate.imag, torch.tensor([-2.0])).state == "equal"
    assert compare(torch.ones(2, requires_grad=True), torch.ones(2)).state == "equal"


# Two dtypes


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [("float32", "float16"), ("bfloat16", "float64"), ("int64", "float32"), ("int32", "int64"), ("uint8", "bool"),
     ("complex64", "float64"), ("float16", "bfloat16")],
)  # fmt: skip
def test_a_dtype_difference_with_equal_values_is_said_to_be_only_that(compare, baseline, candidate):
    found = compare(tensor([1, 0, 1], baseline), tensor([1, 0, 1], candidate))
    assert (found.state, found.dtype_only, found.rounding_only) == ("different", True, True)
    assert (found.baseline_dtype, found.candidate_dtype) == (f"torch.{baseline}", f"torch.{candidate}")
    metrics = found.metrics
    assert (metrics.mismatched, metrics.max_abs, metrics.max_ulp, metrics.cosine, metrics.index) == (0, 0, 0, 1.0, None)


@pytest.mark.parametrize("narrow", known(FLOATS[1:8]))
@pytest.mark.parametrize("wide", ["float64", "float32"])
def test_values_that_agree_after_rounding_are_said_to_be_rounded(compare, wide, narrow):
    if wide == narrow:
        return
    values = torch.rand(50, generator=torch.Generator().manual_seed(3)).double() + 1 / 3
    rounded = values.to(dtype(wide)).to(dtype(narrow))
    for pair in ((values.to(dtype(wide)), rounded), (rounded, values.to(dtype(wide)))):
        found = compare(*pair)
        assert (found.dtype_only, found.rounding_only, found.metrics.max_ulp) == (False, True, 0)
        assert found.metrics.mismatched > 0
    off = rounded.clone()
    off.view(torch.uint8)[0] ^= 1
    found = compare(values.to(dtype(wide)), off)
    assert (found.rounding_only, found.metrics.max_ulp) == (False, 1)


def test_overflow_to_inf_is_not_rounding(compare):
    found = compare(torch.tensor([1e6]), torch.tensor([1e6]).half())
    assert (found.rounding_only, found.nonfinite, found.metrics.max_abs) == (False, "differs", INF)
    assert compare(torch.tensor([INF, NAN]), torch.tensor([INF, NAN]).half()).dtype_only


@pytest.mark.parametrize(
    ("integer", "number", "error"),
    [(2**53 + 1, 2.0**53, 1.0), (2**63 - 1, 2.0**63, 1.0), (-(2**62) - 3, -(2.0**62), 3.0), (5, 5.5, 0.5), (7, 7.0, 0)],
)
def test_64_bit_integers_meet_floats_exactly(compare, integer, number, error):
    found = compare(torch.tensor([integer]), tensor([number], "float64"))
    assert (found.metrics.max_abs, found.metrics.mismatched, found.dtype_only) == (error, int(error > 0), error == 0)
    mixed = compare(torch.tensor([integer]), tensor([complex(number, 1)], "complex128"))
    assert mixed.metrics.mismatched == 1


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason="torch before 2.3")
def test_unsigned_64_bit_integers_meet_signed_ones_exactly(compare):
    unsigned = torch.tensor([2**63 - 1, 5, 2**53 + 1]).view(torch.uint64)
    assert compare(unsigned, torch.tensor([2**63 - 1, 5, 2**53 + 1])).dtype_only
    assert compare(unsigned, torch.tensor([2**63 - 2, 5, 2**53 + 1])).metrics.mismatched == 1
    assert compare(torch.tensor([-1]).view(torch.uint64), torch.tensor([-1])).metrics.max_abs == 2.0**64


def test_a_zero_of_another_sign_is_counted_across_dtypes(compare):
    found = compare(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]).half())
    assert (found.dtype_only, found.negative_zeros) == (True, 1)


# Files


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool", "complex64"])
def test_npy_and_pt_hold_the_same_tensor(compare, name):
    values = torch.tensor([[1, 0, 1], [1, 1, 0]]).to(dtype(name))
    array = values.numpy()
    other = array.copy()
    other[1, 2] = 1
    for same in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        assert compare(values, same).state == "equal"
        assert compare(same, array).state == "equal"
    found = compare(array, other)
    assert (found.state, found.metrics.index) == ("different", (1, 2))
    assert compare(values, other).metrics == found.metrics
    assert compare(np.array(1, dtype=array.dtype), values[0, 0].clone()).state == "equal"
    assert compare(np.empty((0, 3), dtype=array.dtype), torch.empty((0, 3), dtype=values.dtype)).state == "equal"


def test_files_of_the_old_format_are_read_without_mapping(tmp_path):
    old, new = tmp_path / "old.pt", tmp_path / "张量 +1.pt"
    torch.save(torch.arange(6.0), old, _use_new_zipfile_serialization=False)
    torch.save(torch.arange(6.0), new)
    assert compare_files(old, new).state == "equal"


class Trap:
    """A pickle that leaves a file behind when it is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "npy", "numpy-pickle"])
def test_a_pickle_is_never_run(tmp_path, monkeypatch, form):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    sprung, good, bad = tmp_path / "sprung", tmp_path / "good.pt", tmp_path / "bad.pt"
    torch.save(torch.ones(2), good)
    trap = Trap(sprung)
    if form == "npy":
        with bad.open("wb") as file:
            np.save(file, np.array([trap], dtype=object), allow_pickle=True)
    elif form in ("pickle", "numpy-pickle"):
        bad.write_bytes(pickle.dumps(trap))
    else:
        torch.save([torch.ones(2), trap], bad, _use_new_zipfile_serialization=form == "zip")
    found = compare_files(good, bad)
    assert found.state == "unknown"
    assert "trust" not in found.reason  # torch's own message advises weights_only=False
    assert not sprung.exists()


def truncated(value, *, keep: float = 0.6) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value) if isinstance(value, np.ndarray) else torch.save(value, buffer)
    return buffer.getvalue()[: int(len(buffer.getvalue()) * keep)]


def scripted() -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still what some people keep in .pt files
        torch.jit.save(torch.jit.script(torch.nn.Identity()), buffer)
    return buffer.getvalue()


UNREADABLE = {
    "empty": lambda: b"",
    "garbage": lambda: b"not a tensor at all" * 10,
    "zip-magic": lambda: b"PK\x03\x04" + bytes(100),
    "truncated-pt": lambda: truncated(torch.ones(1000)),
    "truncated-npy": lambda: truncated(np.ones(1000)),
    "npy-header": lambda: truncated(np.ones(1000), keep=0.01),
    "torchscript": scripted,
}
UNFIT = {
    "dict": lambda: {"weight": torch.ones(2)},
    "list": lambda: [torch.ones(2)],
    "none": lambda: None,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "sparse": lambda: torch.ones(2).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.ones(2, device="meta"),
    "module": lambda: torch.nn.Linear(2, 2),
    "strings": lambda: np.array(["a", "b"]),
    "records": lambda: np.zeros(2, dtype=[("x", "f4")]),
}


@pytest.mark.parametrize("kind", [*UNREADABLE, *UNFIT])
def test_what_holds_no_plain_tensor_is_unknown_with_one_line(tmp_path, recwarn, kind):
    good, bad = tmp_path / "good.pt", tmp_path / "bad.pt"
    torch.save(torch.ones(2), good)
    if kind in UNREADABLE:
        bad.write_bytes(UNREADABLE[kind]())
    else:
        value = UNFIT[kind]()
        with bad.open("wb") as file:
            np.save(file, value) if isinstance(value, np.ndarray) else torch.save(value, file)
    recwarn.clear()
    for pair in ((good, bad), (bad, good), (bad, bad)):
        found = compare_files(*pair)
        assert (found.state, found.metrics) == ("unknown", None)
        assert str(bad) in found.reason
        assert "\n" not in found.reason
    assert not recwarn.list


def test_missing_files_folders_pipes_and_dead_links_are_unknown(tmp_path):
    good, pipe, link = tmp_path / "good.pt", tmp_path / "pipe", tmp_path / "link"
    torch.save(torch.ones(2), good)
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "nowhere")
    reasons = [compare_files(good, bad).reason for bad in (tmp_path / "missing.pt", tmp_path, pipe, link)]
    assert reasons == [
        f"file missing: {tmp_path / 'missing.pt'}",
        f"cannot be read: {tmp_path}: not a file",
        f"cannot be read: {pipe}: not a file",
        f"file missing: {link}",
    ]


def test_a_file_that_cannot_be_opened_is_unknown(tmp_path, monkeypatch):
    path = tmp_path / "secret.pt"
    torch.save(torch.ones(2), path)

    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    found = compare_files(path, path)
    assert (found.state, found.reason) == ("unknown", f"cannot be read: {path}: [Errno 13] Permission denied: '{path}'")


def test_running_out_of_memory_or_operators_is_unknown(compare, monkeypatch):
    def fail(*_):
        raise RuntimeError('"dot" not implemented for this dtype\nand a second line')

    monkeypatch.setattr("precdiag.metrics._dot", fail)
    found = compare(torch.ones(2), torch.zeros(2))
    assert found.state == "unknown"
    assert found.reason.endswith('"dot" not implemented for this dtype')


def test_reading_never_changes_the_file(tmp_path):
    for path in (tmp_path / "a.npy", tmp_path / "a.pt"):
        np.save(path, np.ones(3)) if path.suffix == ".npy" else torch.save(torch.ones(3), path)
        before = path.read_bytes()
        load(path).fill_(7)
        assert path.read_bytes() == before


def test_without_torch_the_reason_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "old.pt"
    torch.save(torch.ones(3), path, _use_new_zipfile_serialization=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PrecdiagError) as caught:
        require_torch()
    assert caught.value.hint == "pip install 'precdiag[tensor]'"
    assert compare_files(path, path) == TensorPair("unknown", "torch is not installed: pip install 'precdiag[tensor]'")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "raise RuntimeError('libascendcl.so: cannot open')",
            "libascendcl.so: cannot open: with torch-npu but no CANN set ",
        ),
        ("import acl_that_is_missing", "No module named 'acl_that_is_missing'"),
    ],
)
def test_a_torch_that_does_not_start_is_unknown_too(tmp_path, body, why):
    broken, old = tmp_path / "torch", tmp_path / "old.pt"
    broken.mkdir()
    (broken / "__init__.py").write_text(body)
    torch.save(torch.ones(3), old, _use_new_zipfile_serialization=False)
    code = """
        import sys
        from pathlib import Path
        from precdiag.tensors import compare_files
        print(compare_files(Path(sys.argv[1]), Path(sys.argv[1])).reason)
    """
    printed = run(code, str(old), first=(str(tmp_path),))
    assert printed.startswith(f"torch cannot be imported: {why}")


# Files that numpy maps alone


PLAIN = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
PLAIN = (*PLAIN, "complex64", "complex128")
LAYOUTS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[1::2, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, 5),
    "scalar": lambda x: x[2, 3],
    "empty": lambda x: x[:0],
    "differentiable": lambda x: x.clone().requires_grad_(x.is_floating_point() or x.is_complex()),
}


def as_torch(found) -> torch.Tensor:
    values = torch.from_numpy(np.array(found.values))
    return values.view(torch.bfloat16) if found.dtype == "bfloat16" else values


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plain_archive_is_mapped_as_torch_reads_it(tmp_path, name, layout):
    path = tmp_path / "x.pt"
    whole = (torch.randn(6, 9, generator=torch.Generator().manual_seed(2)) * 9).to(dtype(name))
    torch.save(LAYOUTS[layout](whole), path)
    found = mapped_from(path, ZIP_MAGIC)
    assert found is not None and found.dtype == name
    assert torch.equal(as_torch(found), load(path))
    assert compare_files(path, path).state == "equal"


@pytest.mark.parametrize("kind", UNFIT)
def test_what_is_no_plain_tensor_is_left_to_torch(tmp_path, kind):
    path = tmp_path / "x.pt"
    value = UNFIT[kind]()
    with path.open("wb") as file:
        np.save(file, value) if isinstance(value, np.ndarray) else torch.save(value, file)
    assert mapped_from(path, path.read_bytes()[:6]) is None


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(2, dtype=torch.complex64).conj(), lambda: torch.ones(2, dtype=torch.complex32)]
)
def test_views_and_dtypes_that_numpy_lacks_are_left_to_torch(tmp_path, make):
    torch.save(make(), tmp_path / "x.pt")
    assert mapped_from(tmp_path / "x.pt", ZIP_MAGIC) is None
    assert compare_files(tmp_path / "x.pt", tmp_path / "x.pt").state == "equal"


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, 1200), bit=st.integers(0, 7), seed=st.integers(0, 3))
def test_of_a_damaged_archive_numpy_maps_what_torch_reads(tmp_path_factory, at, bit, seed):
    """Or, where torch refuses for the sake of something else in the archive, the tensor that was saved."""
    path = tmp_path_factory.getbasetemp() / "flipped.pt"
    saved = [torch.arange(9.0), torch.zeros(3, 4).t(), torch.ones(2).bfloat16(), torch.tensor(5)][seed]
    torch.save(saved, path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    found = mapped_from(path, ZIP_MAGIC)
    if found is not None:
        with contextlib.suppress(UnreadableError):
            saved = load(path)
        assert torch.equal(as_torch(found).reshape(-1).nan_to_num(), saved.reshape(-1).nan_to_num())
    assert compare_files(path, path).state in ("equal", "unknown")


def rewritten(path: Path, change: dict[str, Callable[[bytes], bytes]], more: dict[str, bytes] | None = None) -> Path:
    """Write an archive anew, with some of its members changed and others added."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    target = path.with_name("rewritten.pt")
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            start = archive.fp.tell() + 30 + len(name)  # as torch.save pads: the content begins at a multiple of 64
            info = zipfile.ZipInfo(name)
            info.extra = b"FB" + (-start - 4).__mod__(64).to_bytes(2, "little") + bytes(-start % 64 - 4 & 63)
            archive.writestr(info, change.get(name.partition("/")[2], bytes)(content))
        for name, content in (more or {}).items():
            archive.writestr(name, content)
    return target


def test_an_archive_written_anew_is_mapped_all_the_same(tmp_path):
    torch.save(torch.arange(6.0), tmp_path / "x.pt")
    found = mapped_from(rewritten(tmp_path / "x.pt", {}), ZIP_MAGIC)
    assert found is not None and torch.equal(as_torch(found), torch.arange(6.0))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\x06\x85", b"K\x07\x85"),  # more elements than the storage has
        (b"K\x01\x85", b"K\x02\x85"),  # a longer stride
        (b"QK\x00", b"QK\x01"),  # an offset
        (b"K\x01\x85", b"J\xff\xff\xff\xff\x85"),  # backwards
        (b"ctorch\nFloatStorage\n", b"X\x07\x00\x00\x00float32"),  # a text in place of a name
        (b"X\x01\x00\x00\x000", b"X\x02\x00\x00\x000"),  # a text that goes on
        (b"ctorch._utils\n_rebuild_tensor_v2\nq\x00", b"cos\nsystem\nq\x00"),
        (b"ctorch._utils\n_rebuild_tensor_v2\nq\x00", b"ctorch._utils\n_rebuild_tensor_v2\nN}U\x04size)s\x86bq\x00"),
        (b"q\x00((", b"Nr\x00\x2d\x31\x010q\x00(("),  # a memo of 20 million entries
    ],
)
def test_a_pickle_that_says_anything_else_is_left_to_torch(tmp_path, old, new):
    torch.save(torch.arange(6.0), tmp_path / "x.pt")
    bad = rewritten(tmp_path / "x.pt", {"data.pkl": lambda content: content.replace(old, new, 1)})
    assert mapped_from(bad, ZIP_MAGIC) is None
    assert compare_files(bad, bad).state == "unknown"
    assert compare_files(tmp_path / "x.pt", tmp_path / "x.pt").state == "equal"


def test_members_that_hide_one_another_or_are_huge_are_left_to_torch(tmp_path):
    torch.save(torch.arange(6.0), tmp_path / "x.pt")
    assert mapped_from(rewritten(tmp_path / "x.pt", {}, {"other/data/0": bytes(24)}), ZIP_MAGIC) is None
    fewer = {"data.pkl": lambda content: content.replace(b"FloatStorage", b"HalfStorage")}
    assert mapped_from(rewritten(tmp_path / "x.pt", fewer), ZIP_MAGIC) is None
    assert mapped_from(rewritten(tmp_path / "x.pt", {"byteorder": lambda _: b"big"}), ZIP_MAGIC) is None
    assert mapped_from(rewritten(tmp_path / "x.pt", {"byteorder": lambda _: bytes(9)}), ZIP_MAGIC) is None


def test_a_damaged_npy_is_told_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    (tmp_path / "cut.npy").write_bytes(truncated(np.ones(1000)))
    reasons = [compare_files(path, path).reason for path in (tmp_path / "text.npy", tmp_path / "cut.npy")]
    assert reasons[0] == f"cannot be compared: {tmp_path / 'text.npy'}: no rule for dtype <U1"
    assert reasons[1].startswith(f"cannot be read: {tmp_path / 'cut.npy'}: ")


def test_the_chunk_size_loses_no_largest_relative_error_among_subnormals(compare):
    pair = tensor([1.0, 5e-324], "float64"), tensor([1.6, 1e-323], "float64")
    assert [compare(*pair, chunk_elements=size).metrics.max_rel for size in (1, 2)] == [1.0, 1.0]


def test_errors_whose_squares_underflow_have_a_relative_norm(compare):
    metrics = compare(tensor([1e-200], "float64"), tensor([2e-200], "float64")).metrics
    assert (metrics.relative_norm, metrics.max_rel) == (1.0, 1.0)


def test_a_signalling_nan_is_no_warning(compare, recwarn):
    found = compare(from_bits([0x7F81, 0], "bfloat16"), from_bits([0x3F80, 0], "bfloat16"))
    assert found.nonfinite == "differs" and math.isnan(found.metrics.baseline)
    assert not recwarn.list


# What one pair after another does, in msprobe's own shapes (the calls of the false-pass fixture)


ONES = [1.0, 2.0, 3.0, 4.0]
FALSE_PASSES = {
    "tiny": ([1e-9, 4e-9], [1e-9, 4.0000003e-9], "float32", "different"),
    "infs": ([1.0, INF, 2.0], [1.0, -INF, 2.0], "float32", "different"),
    "nanone": ([1.0, 2.0], [NAN, 2.0], "float32", "different"),
    "int": ([1, 2, 3], [1, 2, 4], "int64", "different"),
    "bool": ([True, False], [False, True], "bool", "different"),
    "big": ([1e38, 1.0], [-3e38, 1.0], "float32", "different"),
    "perm": (ONES, ONES[::-1], "float32", "different"),
    "f64": (ONES, [1.0, 2.0, 3.0, 4.00000000000001], "float64", "different"),
    "i64": ([2**60 + 1], [2**60 + 2], "int64", "different"),
    "zerob": ([0.0], [1e-20], "float32", "different"),
    "negzero": ([0.0, 1.0], [-0.0, 1.0], "float32", "equal"),
    "nanboth": ([NAN, 1.0], [NAN, 1.0], "float32", "equal"),
}


@pytest.mark.parametrize("call", FALSE_PASSES)
def test_what_msprobes_own_table_passes_is_told_apart(compare, call):
    baseline, candidate, name, state = FALSE_PASSES[call]
    found = compare(tensor(baseline, name), tensor(candidate, name))
    assert found.state == state
    if state == "different":
        assert found.metrics.mismatched > 0
        assert found.metrics.max_abs > 0
        assert found.metrics.max_ulp > 0


# Cost


def run(code: str, *arguments: str, first: tuple[str, ...] = ()) -> str:
    """Run a script in a process of its own; it must not write to stderr. `first` is searched first for imports."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, str(Path(__file__).parent.parent)])},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout


def test_memory_is_bounded_by_the_chunk_and_not_by_the_tensor(tmp_path):
    values = torch.rand(2, 1 << 23)
    torch.save(values, tmp_path / "b.pt")
    torch.save(values + 1e-3, tmp_path / "c.pt")
    torch.save(values.t().contiguous().t() + 1e-3, tmp_path / "t.pt")
    torch.save(torch.ones(2), tmp_path / "one.pt")
    torch.save(torch.zeros(2), tmp_path / "zero.pt")
    code = """
        import sys
        from pathlib import Path
        from precdiag.tensors import compare_files

        def peak():
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) // 1024

        folder = Path(sys.argv[1])
        compare_files(folder / "one.pt", folder / "zero.pt")
        before = peak()
        found = compare_files(folder / "b.pt", folder / sys.argv[2])
        print(found.metrics.elements, peak() - before)
    """
    for candidate in ("c.pt", "t.pt"):
        elements, megabytes = map(int, run(code, str(tmp_path), candidate).split())
        assert elements == 1 << 24
        assert megabytes < 2 * 64 + 60  # the two mapped files, whose pages the system takes back at will, and ours


def test_torch_is_imported_late_stays_silent_and_keeps_its_threads(tmp_path):
    torch.save(torch.ones(2, dtype=torch.complex32), tmp_path / "half.pt")
    torch.save(torch.zeros(2, dtype=torch.complex32), tmp_path / "zero.pt")
    (tmp_path / "script.pt").write_bytes(scripted())
    np.save(tmp_path / "a.npy", np.ones(3))
    code = """
        import sys
        from pathlib import Path
        from precdiag.tensors import compare_files

        print("torch" in sys.modules)
        folder = Path(sys.argv[1])
        for name in ("half.pt", "script.pt", "a.npy"):
            print(compare_files(folder / name, folder / "zero.pt").state)
        import torch

        torch.set_num_threads(2)
        compare_files(folder / "half.pt", folder / "zero.pt")
        print(torch.get_num_threads())
    """
    assert run(code, str(tmp_path)).split() == ["False", "different", "unknown", "different", "2"]
