"""The first cause: exactly one row, of the kind that fits first, with its source line and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import Json, backward, forward, scalar, tensor, write

from precdiag.cause import Cause
from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.judge import Policy

A, B, C = tensor(high=1.0), tensor(high=2.0), tensor(high=3.0)
OFF = tensor(high=2.5)
TOKENS = tensor(low=0, high=9, dtype="torch.int64")


def run(folder: Path, baseline: Json, candidate: Json, policy: Policy | None = None, **more: Any) -> Comparison:
    """Compare two dumps of one step each."""
    write(folder / "b/step0/rank0", baseline, **more)
    write(folder / "c/step0/rank0", candidate, **more)
    return compare(folder / "b", folder / "c", policy or Policy())


def cause(folder: Path, baseline: Json, candidate: Json, **more: Any) -> Cause:
    found = run(folder, baseline, candidate, **more).cause
    assert found is not None
    return found


def linear(x: Json, weight: Json, y: Json) -> Json:
    return {"Functional.linear.0.forward": forward([x, weight, None], [y])}


def test_introduced_is_a_call_whose_inputs_are_all_equal(tmp_path: Path) -> None:
    before = {"Functional.gelu.0.forward": forward([A], [B]), "Torch.sum.0.forward": forward([B], [C])}
    after = {"Functional.gelu.0.forward": forward([A], [OFF]), "Torch.sum.0.forward": forward([OFF], [C])}
    found = cause(tmp_path, before, after)
    assert (found.row.kind, found.row.name, found.row.slot) == (
        "introduced",
        "Functional.gelu.0.forward.output.0",
        "output.0",
    )
    assert "statistics are not proof" in found.why


@pytest.mark.parametrize(
    ("left", "right", "kind"),
    [
        (tensor(shape=(1, 8)), tensor(shape=(8,)), "shape"),
        (tensor(), tensor(dtype="torch.bfloat16"), "dtype"),
        (scalar(0.1), scalar(0.2), "argument"),
        (None, tensor(), "argument"),
        (tensor(grad=True), tensor(grad=False), "requires_grad"),
    ],
)
def test_what_is_compared_exactly_names_its_kind(tmp_path: Path, left: Any, right: Any, kind: str) -> None:
    data = [{"Torch.add.0.forward": forward([A, entry], [B])} for entry in (left, right)]
    assert cause(tmp_path, *data).row.kind == kind


def test_an_argument_that_only_one_side_passes_is_an_argument(tmp_path: Path) -> None:
    before = {"Functional.gelu.0.forward": forward([A], [B])}
    after = {"Functional.gelu.0.forward": forward([A], [B], approximate=scalar("tanh"))}
    found = cause(tmp_path, before, after)
    assert (found.row.kind, found.row.slot) == ("argument", "input.approximate")


def test_a_weight_slot_is_a_parameter(tmp_path: Path) -> None:
    assert cause(tmp_path, linear(A, B, C), linear(A, OFF, C)).row.kind == "parameter"


def test_a_parameters_row_is_named_before_what_is_inside_its_module(tmp_path: Path) -> None:
    def data(weight: Json) -> Json:
        module = {"Module.net.fc.Linear.forward.0": forward([A], [C], {"weight": weight})}
        return {"Functional.linear.0.forward": forward([A, weight], [C])} | module

    construct = {"Functional.linear.0.forward": "Module.net.fc.Linear.forward.0"}
    found = cause(tmp_path, data(B), data(OFF), construct=construct, level="mix")
    assert found.row.name == "Module.net.fc.Linear.forward.0.parameters.weight"
    assert (found.row.kind, found.row.module) == ("parameter", "net.fc")


def test_an_input_equal_to_a_parameter_is_one(tmp_path: Path) -> None:
    def data(weight: Json, inside: Json) -> Json:
        return {
            "Torch.mul.0.forward": forward([A, inside], [C]),
            "Module.scale.Scale.forward.0": forward([A], [C], {"gain": weight}),
        }

    assert cause(tmp_path, data(B, B), data(B, OFF), level="mix").row.kind == "parameter"


def test_a_leaf_that_needs_a_gradient_at_l1_is_a_parameter(tmp_path: Path) -> None:
    data = [{"Torch.mul.0.forward": forward([A, entry], [C])} for entry in (B | _GRAD, OFF | _GRAD)]
    assert cause(tmp_path, *data).row.kind == "parameter"


_GRAD = {"requires_grad": True}


@pytest.mark.parametrize("off", [TOKENS | {"Max": 8}, None])
def test_data_that_no_call_produced_is_input(tmp_path: Path, off: Json | None) -> None:
    left = TOKENS if off else B
    data = [{"Torch.index_select.0.forward": forward([A, entry], [C])} for entry in (left, off or OFF)]
    assert cause(tmp_path, *data).row.kind == "input"


def test_an_input_that_its_producer_gave_out_equal_was_written_between(tmp_path: Path) -> None:
    live = B | _GRAD

    def data(arriving: Json) -> Json:
        return {
            "Torch.mul.0.forward": forward([A], [live]),
            "Torch.sum.0.forward": forward([arriving], [C]),
        }

    found = cause(tmp_path, data(live), data(OFF | _GRAD))
    assert found.row.kind == "between calls"
    assert "Torch.mul.0.forward.output.0 produced it with equal values" in found.why


def test_a_gradient_without_a_producer_is_between_calls(tmp_path: Path) -> None:
    data = [{"Torch.a.0.backward": backward([A], [C]), "Torch.b.0.backward": backward([g], [C])} for g in (B, OFF)]
    assert cause(tmp_path, *data).row.kind == "between calls"


def test_what_a_filtered_dump_leaves_out_is_a_gap(tmp_path: Path) -> None:
    data = [
        {"Functional.gelu.3.forward": forward([A], [C]), "Torch.b.0.backward": backward([g], [C])} for g in (B, OFF)
    ]
    found = cause(tmp_path, *data)
    assert found.row.kind == "gap"
    assert "level mix" in found.next_step


def test_dropout_is_random_and_the_fault_behind_it_is_shown(tmp_path: Path) -> None:
    def data(mask: Json, weight: Json) -> Json:
        return {
            "Functional.dropout.0.forward": forward([A, scalar(0.1), scalar(True)], [mask]),
            "Functional.relu.0.forward": forward([mask], [mask]),
            "Functional.linear.0.forward": forward([mask, weight], [C]),
        }

    found = cause(tmp_path, data(B, A), data(OFF, C))
    assert found.row.kind == "random"
    assert found.behind is not None and found.behind.name == "Functional.linear.0.forward.input.1"


@pytest.mark.parametrize("arguments", [[scalar(0.0), scalar(True)], [scalar(0.5), scalar(False)]])
def test_a_dropout_that_drops_nothing_is_not_random(tmp_path: Path, arguments: list[Json]) -> None:
    data = [{"Functional.dropout.0.forward": forward([A, *arguments], [y])} for y in (B, OFF)]
    assert cause(tmp_path, *data).row.kind == "introduced"


def test_another_choice_from_equal_inputs_is_routing(tmp_path: Path) -> None:
    data = [{"Torch.topk.0.forward": forward([A, scalar(2)], [B, y])} for y in (TOKENS, TOKENS | {"Max": 8})]
    found = cause(tmp_path, *data)
    assert (found.row.kind, found.row.slot) == ("routing", "output.1")


def test_a_nonfinite_output_on_one_side_is_nonfinite(tmp_path: Path) -> None:
    data = [{"Torch.log.0.forward": forward([A], [B | {"Max": top}])} for top in (2.0, float("nan"))]
    found = cause(tmp_path, *data)
    assert found.row.kind == "non-finite"
    assert "only the candidate has NaN or Inf" in found.why


def test_a_parameter_that_differs_after_equal_gradients_is_an_update(tmp_path: Path) -> None:
    step = linear(A, B, C) | {"Functional.linear.0.backward": backward([A], [B])}
    for side, weight in (("b", B), ("c", OFF)):
        write(tmp_path / side / "step0/rank0", step)
        write(tmp_path / side / "step1/rank0", linear(A, weight, C))
    found = compare(tmp_path / "b", tmp_path / "c", Policy()).cause
    assert found is not None
    assert (found.row.step, found.row.kind) == (1, "update")


def test_the_source_line_is_the_users_and_the_backwards_that_of_its_forward(tmp_path: Path) -> None:
    stack = {
        "Torch.a.0.forward": [
            "File /env/site-packages/msprobe/x.py, line 1, in api, \n f()",
            "File /env/site-packages/torch/nn/modules/linear.py, line 134, in forward, \n F.linear()",
            "File /home/me/torch/model.py, line 7, in forward, \n y = a(x)",
            "File /home/me/train.py, line 9, in <module>, \n m(x)",
        ]
    }
    data = [{"Torch.a.0.forward": forward([A], [B]), "Torch.a.0.backward": backward([A], [g])} for g in (B, OFF)]
    found = cause(tmp_path, *data, stack=stack)
    assert found.row.phase == "backward" and found.source is not None
    assert (found.source.file, found.source.line, found.source.code) == ("/home/me/torch/model.py", 7, "y = a(x)")


# -- one-sided calls


def test_an_extra_call_whose_result_is_used_is_structure(tmp_path: Path) -> None:
    before = {"Torch.a.0.forward": forward([A], [B]), "Torch.c.0.forward": forward([B], [C])}
    after = {
        "Torch.a.0.forward": forward([A], [B]),
        "Torch.mul.0.forward": forward([B], [OFF]),
        "Torch.c.0.forward": forward([OFF], [C]),
    }
    found = cause(tmp_path, before, after)
    assert (found.row.kind, found.row.name, found.row.slot) == ("structure", "Torch.mul.0.forward", None)
    assert "only the candidate made this call" in found.why


def test_after_resynchronising_a_later_difference_is_the_cause(tmp_path: Path) -> None:
    before = {"Torch.a.0.forward": forward([A], [B]), "Torch.c.0.forward": forward([B], [C])}
    after = {
        "Torch.log.0.forward": forward([A], [A]),
        "Torch.a.0.forward": forward([A], [B]),
        "Torch.c.0.forward": forward([B], [OFF]),
    }
    result = run(tmp_path, before, after)
    assert result.cause is not None and result.cause.row.name == "Torch.c.0.forward.output.0"
    assert "1 calls stand on one side only" in result.notes


def test_a_one_sided_call_alone_is_the_cause(tmp_path: Path) -> None:
    before = {"Torch.a.0.forward": forward([A], [B]), "Torch.b.0.forward": forward([B], [C])}
    found = cause(tmp_path, before, {"Torch.a.0.forward": forward([A], [B])})
    assert (found.row.kind, found.row.name) == ("structure", "Torch.b.0.forward")
    assert "only the baseline made this call" in found.why


def test_an_optimizers_own_calls_are_no_divergence(tmp_path: Path) -> None:
    step = {"Torch.a.0.forward": forward([A], [B])}
    loop = {"Tensor.add_.0.forward": forward([B], [B]), "Tensor.add_.1.forward": forward([B], [B])}
    result = run(
        tmp_path,
        step,
        step | loop,
        construct={"Tensor.add_.0.forward": "optimizer", "Tensor.add_.1.forward": "optimizer"},
    )
    assert (result.verdict, result.exit_code) == ("no-divergence", 0)
    assert any("2 one-sided calls are inside an optimizer step" in note for note in result.notes)


def test_recomputation_without_a_stack_is_known_by_repeating_behind_the_backward(tmp_path: Path) -> None:
    step = {"Torch.a.0.forward": forward([A], [B]), "Torch.b.0.backward": backward([B], [A])}
    result = run(tmp_path, step, step | {"Torch.a.1.forward": {"input_args": [A], "input_kwargs": {}}})
    assert result.verdict == "no-divergence"
    assert any("activation recomputation" in note for note in result.notes)


def test_a_new_forward_call_among_backward_calls_is_no_recomputation(tmp_path: Path) -> None:
    step = {"Torch.a.0.forward": forward([A], [B]), "Torch.b.0.backward": backward([B], [A])}
    result = run(tmp_path, step, step | {"Torch.a.1.forward": forward([C], [B])})
    assert result.cause is not None and result.cause.row.kind == "structure"


# -- with a band


def test_with_a_band_the_cause_stays_bitwise_and_the_verdict_follows_the_band(tmp_path: Path) -> None:
    def data(y: Json, z: Json) -> Json:
        return {"Torch.a.0.forward": forward([A], [y]), "Torch.b.0.forward": forward([y], [z])}

    small = B | {"Max": 2.0001}
    hidden = run(tmp_path / "1", data(B, C), data(small, C), Policy(max_abs=0.01))
    assert (hidden.verdict, hidden.exit_code) == ("no-divergence", 0)
    assert hidden.cause is not None and hidden.parts[0].hidden_count == 2
    shown = run(tmp_path / "2", data(B, C), data(small, OFF), Policy(max_abs=0.01))
    assert shown.exit_code == 1
    assert shown.cause is not None and shown.cause.row.name == "Torch.a.0.forward.output.0"
    assert shown.first_outside is not None and shown.first_outside.name == "Torch.b.0.forward.output.0"


# -- ranks


def rank_data(weight: Json, sent: Json, received: Json, late: Json = C) -> Json:
    return {
        "Torch.mul.0.forward": forward([A, weight | _GRAD], [sent]),
        "Distributed.all_reduce.0.forward": forward([sent], [received]),
        "Torch.sum.0.forward": forward([received], [late]),
    }


def ranks(folder: Path, *sides: tuple[Json, Json]) -> Comparison:
    for rank, (left, right) in enumerate(sides):
        write(folder / f"b/step0/rank{rank}", left)
        write(folder / f"c/step0/rank{rank}", right)
    return compare(folder / "b", folder / "c", Policy())


def test_a_rank_that_differs_before_the_collective_comes_first(tmp_path: Path) -> None:
    healthy = rank_data(B, B, C)
    result = ranks(tmp_path, (healthy, rank_data(B, B, OFF)), (healthy, rank_data(OFF, OFF, OFF)))
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name) == (1, "Torch.mul.0.forward.input.1")
    assert result.cause.also == ()


def test_what_a_collective_handed_on_is_inherited(tmp_path: Path) -> None:
    healthy = rank_data(B, B, C)
    result = ranks(tmp_path, (healthy, rank_data(B, B, OFF)), (healthy, rank_data(B, OFF, OFF)))
    assert result.cause is not None and result.cause.row.rank == 1


def test_ranks_that_cannot_be_told_apart_are_listed_together(tmp_path: Path) -> None:
    healthy, faulty = rank_data(B, B, C), rank_data(OFF, B, C)
    result = ranks(tmp_path, (healthy, faulty), (healthy, healthy), (healthy, faulty))
    assert result.cause is not None
    assert (result.cause.row.rank, [row.rank for row in result.cause.also]) == (0, [2])
