"""Where a NaN came from, on hand-made dumps: every kind, what is excluded, and what must not be hidden."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Json, backward, forward, scalar, tensor, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precdiag.dump import read_dump
from precdiag.inspection import PartSurvey, survey_part
from precdiag.layout import open_run
from precdiag.masks import find_masks
from precdiag.nonfinite import classify, events_of, flow_of
from precdiag.origin import find_origin
from precdiag.survey import Survey, survey

NAN, INF = float("nan"), float("inf")


def bad(low: float = NAN, high: float = NAN, **more: Any) -> Json:
    return tensor(low, high, **more) | {"Mean": NAN, "Norm": INF if low == low else NAN}


def masked(high: float = 1.0, **more: Any) -> Json:
    return tensor(-INF, high, **more) | {"Mean": -INF, "Norm": INF}


def part_of(folder: Path, data: Mapping[str, Any], **more: Any) -> PartSurvey:
    return survey_part(open_run(write(folder / "step0/rank0", data, **more)).parts[0])


def named(part: PartSurvey | Survey) -> tuple[str, str, str] | None:
    return None if part.origin is None else (part.origin.row.name, part.origin.kind, part.origin.value)


def softmaxed(inside: Json, outside: Json | None = None) -> dict[str, Json]:
    return {"Torch.softmax.0.forward": forward([inside, scalar(-1)], [outside or tensor(0, 1)])}


FILL = {"Tensor.masked_fill.0.forward": forward([tensor(), tensor(dtype="torch.bool"), scalar(-INF)], [masked()])}


@pytest.mark.parametrize("key", ["type", "dtype", "shape"])
def test_a_tensor_that_lacks_a_key_is_looked_at_all_the_same(tmp_path: Path, key: str) -> None:
    lacking = {name: value for name, value in bad().items() if name != key}
    part = part_of(tmp_path, {"Torch.log.0.forward": forward([tensor()], [lacking])})
    assert named(part) == ("Torch.log.0.forward.output.0", "generated", "nan") and part.coverage.rows == 2


# -- masks


def test_a_mask_that_is_never_turned_finite_is_the_origin(tmp_path: Path) -> None:
    part = part_of(tmp_path, FILL)
    assert named(part) == ("Tensor.masked_fill.0.forward.input.2", "argument", "-inf")
    assert part.origin is not None and "nothing dumped behind it turns it finite" in part.origin.why


@pytest.mark.parametrize("value", [INF, -INF])
def test_an_infinity_that_no_norm_or_matmul_turns_finite_was_written_in_between(tmp_path: Path, value: float) -> None:
    held = tensor(-1, 3)
    written = tensor(min(value, -1), max(value, 3)) | {"Mean": value, "Norm": INF}
    calls = {
        "Functional.relu.0.forward": forward([tensor()], [held]),
        "Functional.layer_norm.0.forward": forward([written], [tensor(-2, 2)]),
    }
    part = part_of(tmp_path, calls)
    said = "inf" if value > 0 else "-inf"
    assert named(part) == ("Functional.layer_norm.0.forward.input.0", "between calls", said)
    loss = {"Functional.cross_entropy.0.forward": forward([masked()], [tensor(0, 2)])}
    assert named(part_of(tmp_path / "masked", loss)) is None


def test_a_fill_that_an_unseen_operation_takes_in_is_no_fault_once_the_gradients_are_finite(tmp_path: Path) -> None:
    """A fused attention that no hook sees."""
    behind = {"Torch.tanh.0.forward": forward([tensor(shape=(7,))], [tensor()])}
    gradients = {"Torch.tanh.0.backward": backward([tensor()], [tensor()])}
    part = part_of(tmp_path / "finite", FILL | behind | gradients)
    assert named(part) is None and "the gradients behind it included" in part.excluded[0].why
    gradients = {"Torch.tanh.0.backward": backward([tensor()], [bad()])}
    part = part_of(tmp_path / "nan", FILL | behind | gradients)
    assert named(part) == ("Tensor.masked_fill.0.forward.input.2", "argument", "-inf")


def test_log_softmax_keeps_a_mask_in_its_place(tmp_path: Path) -> None:
    kept = {"Functional.log_softmax.0.forward": forward([masked()], [masked(0.0)])}
    part = part_of(tmp_path, FILL | kept | {"Tensor.sum.0.forward": forward([tensor(shape=(3,))], [tensor(shape=())])})
    assert named(part) is None and "keeps it at the masked places" in part.excluded[0].why
    part = part_of(tmp_path / "spread", FILL | kept | {"Tensor.sum.0.forward": forward([masked(0.0)], [masked(-INF)])})
    assert named(part) == ("Tensor.masked_fill.0.forward.input.2", "argument", "-inf")


@pytest.mark.parametrize("operation", ["Torch.maximum", "Tensor.max", "Tensor.__gt__", "NPU.npu_scaled_masked_softmax"])
def test_softmax_max_and_comparison_turn_a_mask_finite(tmp_path: Path, operation: str) -> None:
    part = part_of(tmp_path, FILL | {f"{operation}.0.forward": forward([masked()], [tensor(0, 1)])})
    assert named(part) is None
    assert [each.row.name for each in part.excluded] == ["Tensor.masked_fill.0.forward.input.2"]


def test_a_mask_tensor_that_came_in_is_excluded_through_an_addition(tmp_path: Path) -> None:
    mask = masked(0.0, shape=(4, 4))
    data = {"Tensor.__add__.0.forward": forward([tensor(shape=(4, 4), grad=True), mask], [masked(2.0, shape=(4, 4))])}
    part = part_of(tmp_path, data | softmaxed(masked(2.0, shape=(4, 4))))
    assert named(part) is None
    assert [each.row.name for each in part.excluded] == ["Tensor.__add__.0.forward.input.1"]


def test_a_logarithm_of_zeros_and_ones_is_a_mask_and_of_probabilities_is_not(tmp_path: Path) -> None:
    def log_of(high: float) -> Json:
        return {"Torch.log.0.forward": forward([tensor(0.0, high)], [masked(0.0)])} | softmaxed(masked(0.0))

    assert named(part_of(tmp_path / "mask", log_of(1.0))) is None
    part = part_of(tmp_path / "probabilities", log_of(0.9))
    assert named(part) == ("Torch.log.0.forward.output.0", "generated", "-inf")


def test_an_overflow_of_the_same_sign_is_not_hidden_behind_a_mask(tmp_path: Path) -> None:
    overflow = {"Torch.matmul.0.forward": forward([tensor(-300, 300, dtype="torch.float16")] * 2, [masked(3.0)])}
    part = part_of(tmp_path, FILL | softmaxed(masked()) | overflow)
    assert named(part) == ("Torch.matmul.0.forward.output.0", "generated", "-inf")
    assert len(part.excluded) == 1


def test_infinity_of_the_other_sign_behind_a_mask_is_generated(tmp_path: Path) -> None:
    added = {"Tensor.__add__.0.forward": forward([masked(), tensor()], [bad(-INF, INF)])}
    part = part_of(tmp_path, FILL | softmaxed(masked()) | added)
    assert named(part) == ("Tensor.__add__.0.forward.output.0", "generated", "inf")


def test_positive_infinity_that_came_in_is_no_mask_of_a_softmax(tmp_path: Path) -> None:
    part = part_of(tmp_path, softmaxed(bad(-1.0, INF), bad()))
    assert named(part) == ("Torch.softmax.0.forward.input.0", "input", "inf")


def test_a_parameter_of_minus_infinity_is_no_mask(tmp_path: Path) -> None:
    data = {"Functional.linear.0.forward": forward([tensor(), masked(grad=True)], [tensor()])}
    assert named(part_of(tmp_path, data)) == ("Functional.linear.0.forward.input.1", "parameter", "-inf")


# -- uninitialised memory


def test_uninitialised_memory_is_no_fault_and_counted(tmp_path: Path) -> None:
    data = {
        "Torch.empty_like.0.forward": forward([tensor()], [bad()]),
        "Tensor.fill_.0.forward": forward([bad(), scalar(0.5)], [tensor(0.5, 0.5)]),
    }
    part = part_of(tmp_path, data)
    assert named(part) is None
    assert part.coverage.uninitialised == 2
    assert [(each.count, "uninitialised memory" in each.what) for each in part.tallies] == [(2, True)]


def test_a_call_that_computes_with_uninitialised_memory_is_the_origin(tmp_path: Path) -> None:
    data = {
        "Torch.empty_like.0.forward": forward([tensor()], [bad()]),
        "Torch.tanh.0.forward": forward([bad()], [bad(shape=(2, 5))]),
    }
    part = part_of(tmp_path, data)
    assert named(part) == ("Torch.tanh.0.forward.output.0", "generated", "nan")
    assert part.origin is not None and "memory that nobody has written" in part.origin.why


def test_a_real_nan_of_the_shape_of_an_empty_buffer_is_not_excluded(tmp_path: Path) -> None:
    data = {
        "Torch.empty_like.0.forward": forward([tensor()], [bad()]),
        "Torch.log.0.forward": forward([tensor(-2, 1, shape=(3,))], [bad()]),
        "Torch.tanh.0.forward": forward([bad()], [bad()]),
    }
    part = part_of(tmp_path, data)
    assert named(part) == ("Torch.log.0.forward.output.0", "generated", "nan")
    assert part.counts == {"generated": 1, "propagated": 1}


# -- kinds of inputs


def test_an_activation_that_arrives_changed_was_written_to_between_calls(tmp_path: Path) -> None:
    data = {
        "Torch.tanh.0.forward": forward([tensor(grad=True)], [tensor(-0.5, 0.75, grad=True)]),
        "Tensor.zero_.0.forward": forward([tensor(shape=(9,))], [tensor(0, 0, shape=(9,))]),
        "Torch.sin.0.forward": forward([bad(grad=True)], [bad(grad=True)]),
    }
    part = part_of(tmp_path, data)
    assert named(part) == ("Torch.sin.0.forward.input.0", "between calls", "nan")
    assert part.origin is not None and part.origin.suspects == ("Tensor.zero_.0.forward",)
    assert "Torch.tanh.0.forward.output.0 gave it out finite (-0.5 to 0.75)" in part.origin.why


def test_without_gradients_an_output_that_arrives_nowhere_is_the_suspect(tmp_path: Path) -> None:
    data = {
        "Torch.tanh.0.forward": forward([tensor()], [tensor(-0.5, 0.75)]),
        "Torch.sin.0.forward": forward([bad()], [bad()]),
    }
    assert named(part_of(tmp_path, data)) == ("Torch.sin.0.forward.input.0", "between calls", "nan")


def test_data_in_training_are_the_input_whatever_has_their_shape(tmp_path: Path) -> None:
    data = {
        "Torch.tanh.0.forward": forward([tensor(grad=True)], [tensor(-0.5, 0.75, grad=True)]),
        "Functional.mse_loss.0.forward": forward([tensor(grad=True), bad()], [bad(shape=())]),
    }
    assert named(part_of(tmp_path, data)) == ("Functional.mse_loss.0.forward.input.1", "input", "nan")


def test_a_leaf_that_no_call_gave_out_is_a_parameter_at_l1(tmp_path: Path) -> None:
    data = {"Tensor.__mul__.0.forward": forward([tensor(), bad(shape=(4,), grad=True)], [bad()])}
    assert named(part_of(tmp_path, data)) == ("Tensor.__mul__.0.forward.input.1", "parameter", "nan")


def test_a_gradient_that_no_call_gave_out_is_between_calls(tmp_path: Path) -> None:
    data = {
        "Torch.tanh.0.forward": forward([tensor(grad=True)], [tensor(-0.5, 0.75, grad=True)]),
        "Torch.tanh.0.backward": backward([bad()], [bad()]),
    }
    part = part_of(tmp_path, data)
    assert named(part) == ("Torch.tanh.0.backward.input.0", "between calls", "nan")
    assert part.origin is not None and "autograd Function" in part.origin.why


def test_a_scalar_that_changes_nothing_is_no_origin(tmp_path: Path) -> None:
    data = {
        "Torch.clamp.0.forward": forward([tensor()], [tensor()], min=scalar(-INF), max=scalar(INF)),
        "Torch.norm.0.forward": forward([tensor(), scalar(INF)], [tensor(1, 1, shape=())]),
        "Functional.interpolate.0.forward": forward([tensor(), {"type": "str", "value": "inf"}], [tensor()]),
    }
    part = part_of(tmp_path, data)
    assert named(part) is None and part.excluded == ()


def test_a_nan_scalar_set_into_a_tensor_that_shows_nowhere_is_no_origin(tmp_path: Path) -> None:
    data = {"Tensor.__setitem__.0.forward": {"input_args": [tensor(), scalar(0), scalar(NAN)], "input_kwargs": {}}}
    assert named(part_of(tmp_path, data)) is None
    seen = data | {"Torch.sin.0.forward": forward([bad()], [bad()])}
    assert named(part_of(tmp_path / "seen", seen)) == ("Tensor.__setitem__.0.forward.input.2", "argument", "nan")


def test_a_scalar_that_was_set_nowhere_is_not_blamed_for_a_later_nan(tmp_path: Path) -> None:
    """The mask of the assignment was False everywhere."""
    set_nan = {"Tensor.__setitem__.0.forward": {"input_args": [tensor(), scalar(0), scalar(NAN)], "input_kwargs": {}}}
    set_inf = {"Tensor.__setitem__.1.forward": {"input_args": [tensor(), scalar(0), scalar(-INF)], "input_kwargs": {}}}
    log = {"Torch.log.0.forward": forward([tensor(-2, 1)], [bad()])}
    part = part_of(tmp_path / "generated", set_nan | set_inf | log)
    assert named(part) == ("Torch.log.0.forward.output.0", "generated", "nan")
    weight = {"Functional.linear.0.forward": forward([tensor(), bad(shape=(8, 4), grad=True)], [bad()])}
    part = part_of(tmp_path / "weight", set_nan | set_inf | weight)
    assert named(part) == ("Functional.linear.0.forward.input.1", "parameter", "nan")


def test_a_scalar_set_into_a_weight_is_the_origin_of_that_weight(tmp_path: Path) -> None:
    target = tensor(shape=(8, 4), grad=True)
    data = {
        "Tensor.__setitem__.0.forward": {"input_args": [target, scalar(0), scalar(NAN)], "input_kwargs": {}},
        "Functional.linear.0.forward": forward([tensor(), bad(shape=(8, 4), grad=True)], [bad()]),
    }
    assert named(part_of(tmp_path, data)) == ("Tensor.__setitem__.0.forward.input.2", "argument", "nan")


def test_a_parameter_gradient_counts(tmp_path: Path) -> None:
    data = {
        "Module.a.Linear.forward.0": forward([tensor()], [tensor()], {"weight": tensor(grad=True)}),
        "Module.a.Linear.parameters_grad.0": {"weight": [bad()]},
    }
    part = part_of(tmp_path, data, level="L0")
    assert named(part) == ("Module.a.Linear.parameters_grad.0.weight", "generated", "nan")


def test_a_module_that_passes_on_what_its_child_generated_did_not_generate_it(tmp_path: Path) -> None:
    data = {
        "Torch.log.0.forward": forward([tensor(-1, 1)], [bad()]),
        "Module.a.Log.forward.0": forward([tensor(-1, 1)], [bad()]),
    }
    part = part_of(tmp_path, data, construct={"Torch.log.0.forward": "Module.a.Log.forward.0"}, level="mix")
    assert [(event.what, event.row.call) for event in part.events] == [
        ("generated", "Torch.log.0.forward"),
        ("propagated", "Module.a.Log.forward.0"),
    ]
    assert part.origin is not None and part.origin.row.module == "a"


# -- overflow in context, and what cannot be looked at


def test_a_norm_that_overflows_is_no_infinity_in_the_data(tmp_path: Path) -> None:
    part = part_of(tmp_path, {"Torch.tanh.0.forward": forward([tensor()], [tensor() | {"Norm": INF, "Mean": INF}])})
    assert named(part) is None
    assert [(each.count, each.first, "Norm that overflowed" in each.what) for each in part.tallies] == [
        (1, "Torch.tanh.0.forward.output.0", True)
    ]


def test_a_nan_mean_beside_finite_ends_is_a_nan(tmp_path: Path) -> None:
    """Some devices' max passes NaN over."""
    part = part_of(tmp_path, {"Torch.tanh.0.forward": forward([tensor()], [tensor() | {"Mean": NAN}])})
    assert named(part) == ("Torch.tanh.0.forward.output.0", "generated", "nan")


def test_values_at_the_limit_of_their_dtype_are_noted_but_for_fills(tmp_path: Path) -> None:
    half = {"dtype": "torch.float16"}
    full = {"Torch.matmul.0.forward": forward([tensor(**half)] * 2, [tensor(-2, 65504.0, **half)])}
    part = part_of(tmp_path / "matmul", full)
    assert named(part) is None
    assert [(each.first, "exactly at the limit" in each.what) for each in part.tallies] == [
        ("Torch.matmul.0.forward.output.0", True)
    ]
    fill = {"Tensor.masked_fill.0.forward": forward([tensor(**half), scalar(-65504.0)], [tensor(-65504.0, 1, **half)])}
    passed = {"Torch.relu.0.forward": forward([tensor(-65504.0, 1, **half)], [tensor(-65504.0, 1, **half)])}
    assert part_of(tmp_path / "fill", fill | passed).tallies == ()


def test_rows_without_statistics_forbid_a_pass(tmp_path: Path) -> None:
    silent = {key: value for key, value in tensor().items() if key not in ("Max", "Min", "Mean", "Norm")}
    folder = write(tmp_path / "step0/rank0", {"Torch.tanh.0.forward": forward([tensor()], [silent])})
    found = survey(folder)
    assert (found.verdict, found.exit_code, found.coverage.unknown) == ("not-readable", 2, 1)


def test_integers_need_no_statistics(tmp_path: Path) -> None:
    silent = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [3], "requires_grad": False}
    folder = write(tmp_path / "step0/rank0", {"Torch.tanh.0.forward": forward([tensor()], [silent])})
    assert survey(folder).exit_code == 0


# -- ranks


def test_a_gradient_that_merely_arrived_gives_way_to_the_rank_that_made_it(tmp_path: Path) -> None:
    """DistributedDataParallel averages gradients where no hook sees it."""
    calls = {
        "Torch.tanh.0.forward": forward([tensor(grad=True)], [tensor(-0.5, 0.75, grad=True)]),
        "Torch.tanh.0.backward": backward([tensor()], [tensor(-3, 3)]),
    }
    arrives = calls | {"Tensor.add_.0.forward": forward([tensor(grad=True), bad()], [bad(grad=True)])}
    makes = calls | {"Torch.tanh.0.backward": backward([tensor()], [bad()])}
    write(tmp_path / "step0/rank0", arrives, construct={"Tensor.add_.0.forward": "optimizer"})
    write(tmp_path / "step0/rank1", makes)
    origin = survey(tmp_path).origin
    assert origin is not None
    assert (origin.row.rank, origin.row.name, origin.also) == (1, "Torch.tanh.0.backward.output.0", ())


# -- property

LAST = {"Torch.tanh.9.forward": forward([tensor(grad=True)], [tensor(-0.5, 0.75, grad=True)])}
FAULTS: dict[str, dict[str, Json]] = {
    "generated": LAST | {"Torch.log.0.forward": forward([tensor(-2, 1, shape=(3,))], [bad()])},
    "behind a mask": FILL
    | softmaxed(masked(), bad())
    | {"Torch.tanh.0.forward": forward([bad(grad=True)], [bad(grad=True)])},
    "argument": LAST | {"Tensor.__mul__.0.forward": forward([tensor(), scalar(NAN)], [bad()])},
    "between calls": LAST | {"Torch.sin.0.forward": forward([bad(grad=True)], [bad(grad=True)])},
    "input": LAST | {"Functional.mse_loss.0.forward": forward([tensor(grad=True), bad()], [bad(shape=())])},
    "parameter": LAST | {"Functional.linear.0.forward": forward([tensor(), bad(grad=True)], [bad()])},
    "backward": LAST | {"Torch.tanh.9.backward": backward([tensor()], [bad()])},
    "healthy": FILL | softmaxed(masked()) | LAST,
}

ends = st.floats(-1e4, 1e4, width=32)
finite = st.builds(
    lambda low, high, shape, grad: tensor(min(low, high), max(low, high), shape=shape, grad=grad),
    ends,
    ends,
    st.sampled_from([(2, 4), (3,), (), (4, 4)]),
    st.booleans(),
)
extra = st.tuples(
    st.integers(0, 10),
    st.sampled_from(["Torch.cos", "Tensor.add_", "Functional.relu", "Tensor.masked_fill", "Torch.matmul"]),
    st.lists(finite, min_size=1, max_size=3),
    st.lists(finite, min_size=1, max_size=2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fault=st.sampled_from(sorted(FAULTS)), calls=st.lists(extra, min_size=1, max_size=4))
def test_adding_a_finite_call_anywhere_does_not_change_the_origin(tmp_path: Path, fault: str, calls: list[Any]) -> None:
    entries = list(FAULTS[fault].items())
    before = part_of(tmp_path / "before", dict(entries))
    for number, (place, operation, inputs, outputs) in enumerate(calls):
        entries.insert(min(place, len(entries)), (f"{operation}.{100 + number}.forward", forward(inputs, outputs)))
    after = part_of(tmp_path / "after", dict(entries))
    assert named(after) == named(before)
    assert [each.row.name for each in after.excluded] == [each.row.name for each in before.excluded]
    assert (named(before) is None) == (fault == "healthy")


@pytest.mark.parametrize("case", ["cases/where_grad/fault", "cases/inplace_nan/fault", "cases/identical/ok", "nan/md5"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(extra.map(lambda call: (call[0] * 6, *call[1:])), min_size=1, max_size=4))
def test_adding_a_finite_call_to_a_real_dump_does_not_either(
    real: Callable[[str], Path], tmp_path: Path, case: str, calls: list[Any]
) -> None:
    archive, _, inside = case.partition("/")
    part = open_run(real(archive) / inside).parts[0]
    document = json.loads((part.folder / "dump.json").read_text())
    construct = json.loads((part.folder / "construct.json").read_text())
    entries = list(document["data"].items())
    for number, (place, operation, inputs, outputs) in enumerate(calls):
        entries.insert(place, (f"{operation}.{100 + number}.forward", forward(inputs, outputs)))
    before = survey_part(part)
    after = part_of(tmp_path, dict(entries), construct=construct, level=document["level"])
    assert named(after) == named(before)
    assert [each.row.name for each in after.excluded] == [each.row.name for each in before.excluded]


def test_the_faults_of_the_property_are_of_every_kind(tmp_path: Path) -> None:
    kinds = {fault: named(part_of(tmp_path / fault.replace(" ", "-"), data)) for fault, data in FAULTS.items()}
    assert {fault: found and found[1] for fault, found in kinds.items()} == {
        "generated": "generated",
        "behind a mask": "generated",
        "argument": "argument",
        "between calls": "between calls",
        "input": "input",
        "parameter": "parameter",
        "backward": "generated",
        "healthy": None,
    }
    assert json.dumps(FAULTS)  # msprobe's bare NaN and Infinity are what is read


# -- speed


def test_twenty_thousand_calls_take_less_than_reading_them(tmp_path: Path) -> None:
    """Masks and NaN everywhere; measured in one run: about a seventh."""
    data: dict[str, Any] = {}
    for number in range(5000):
        data[f"Tensor.masked_fill.{number}.forward"] = FILL["Tensor.masked_fill.0.forward"]
        data[f"Torch.softmax.{number}.forward"] = forward([masked()], [tensor(0, number + 1)])
        data[f"Torch.tanh.{number}.forward"] = forward([tensor(0, number + 1)], [tensor(0, 0.5)])
        data[f"Torch.log.{number}.forward"] = forward([tensor(-2, 1, shape=(3,))], [bad() if number > 9 else tensor()])
    part = open_run(write(tmp_path / "step0/rank0", data)).parts[0]
    began = time.process_time()
    dump = read_dump(part)
    read = time.process_time()
    classes = classify(dump)
    masks = find_masks(dump, classes, flow_of(dump, classes.found, classes.looked))
    found = np.where(masks.harmless, 0, classes.found).astype(np.uint8)
    flow = flow_of(dump, found, classes.looked)
    origin = find_origin(dump, classes, masks, found, flow)
    events = events_of(dump, found, flow)
    analysed = time.process_time()
    assert origin is not None and origin.row.call == "Torch.log.10.forward"
    assert len(events) == 4990 and sum(source.harmless for source in masks.sources) == 5000
    assert analysed - read < read - began
