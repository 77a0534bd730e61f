"""Replaced regions: a run of calls against another run is no cause while what they hand on agrees but for rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import Json, backward, forward, scalar, tensor, write

from precdiag.align import pair
from precdiag.arbiter import arbitrate
from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.document import comparison_document
from precdiag.dump import read_dump
from precdiag.judge import Policy, judge
from precdiag.layout import Part
from precdiag.propagation import incoming
from precdiag.relative import errors_of
from precdiag.replaced import judge_regions
from precdiag.replacements import canonical, known_replacements, name_of, read_replacements
from precdiag.report import comparison_text

Real = Callable[[str], Path]


def run(folder: Path, baseline: Json, candidate: Json, **more: Any) -> Comparison:
    write(folder / "b", baseline, **more)
    write(folder / "c", candidate, **more)
    return compare(folder / "b", folder / "c", Policy())


# -- the real healthy port


def test_a_healthy_port_with_fused_calls_does_not_end_as_structure(real: Real) -> None:
    result = compare(real("fused") / "fused_L1/gpu", real("fused") / "fused_L1/npu", Policy())
    assert result.exit_code == 1 and result.cause is not None
    assert (result.cause.row.name, result.cause.row.kind) == ("Torch.matmul.1.forward.output.0", "introduced")
    assert result.cause.row.partner == "Functional.scaled_dot_product_attention.0.forward.output.0"
    assert "no fault by itself" in result.cause.why
    document = comparison_document(result)
    assert document["beyond_rounding"] is None
    assert Counter(region["name"] for region in document["replaced"]) == {"rms_norm": 10, "attention": 4}
    assert all(region["explained"] for region in document["replaced"])
    assert document["replaced"][0]["boundary"] == "equal"
    assert document["replaced"][1]["baseline"] == [
        "Torch.matmul.0.forward",
        "Tensor.__truediv__.0.forward",
        "Tensor.masked_fill.0.forward",
        "Torch.softmax.0.forward",
        "Torch.matmul.1.forward",
    ]
    assert document["replaced"][1]["candidate"] == ["Functional.scaled_dot_product_attention.0.forward"]
    assert document["replaced"][1]["boundary"] == "different"
    assert not any(row["kind"] == "structure" for row in document["symptoms"]["rows"])
    assert "replaced: 14 runs of calls stand against others" in comparison_text(result)


def test_the_same_port_the_other_way_round(real: Real) -> None:
    result = compare(real("fused") / "fused_L1/npu", real("fused") / "fused_L1/gpu", Policy())
    assert result.cause is not None and result.cause.row.kind == "introduced"
    assert all(region.explained for part in result.parts for region in part.replaced)


def test_at_module_level_every_call_of_a_fused_port_pairs(real: Real) -> None:
    result = compare(real("fused") / "fused_L0/gpu", real("fused") / "fused_L0/npu", Policy())
    calls = result.alignment.counts
    assert (calls["name"], calls["baseline_only"], calls["candidate_only"]) == (51, 0, 0)
    assert not result.parts[0].replaced


# -- hand-made

X, W = tensor(high=1.0, shape=(4, 8)), tensor(high=0.5, shape=(8,))
Y = tensor(high=2.0, shape=(4, 8))


def head(y: Json) -> Json:
    return {"Functional.linear.0.forward": forward([y, tensor(high=9.0, shape=(8, 8))], [y])}


def unfused(y: Json) -> Json:
    mean = tensor(high=0.1, shape=(4, 1))
    return {
        "Tensor.pow.0.forward": forward([X, scalar(2)], [X]),
        "Tensor.mean.0.forward": forward([X, scalar(-1)], [mean]),
        "Torch.rsqrt.0.forward": forward([mean], [mean]),
        "Tensor.__mul__.0.forward": forward([X, mean], [X]),
        "Tensor.__mul__.1.forward": forward([X, W], [y]),
    }


def fused(y: Json, *status: Json) -> Json:
    return {"NPU.npu_rms_norm.0.forward": forward([X, W, scalar(1e-6)], [y, *status])}


FIRST = {"Torch.first.0.forward": forward([X], [X])}


def test_equal_results_of_two_runs_are_no_divergence(tmp_path: Path) -> None:
    rstd = tensor(high=0.7, shape=(4, 1))
    result = run(tmp_path, FIRST | unfused(Y) | head(Y), FIRST | fused(Y, rstd) | head(Y))
    assert (result.verdict, result.exit_code) == ("no-divergence", 0)
    region = comparison_document(result)["replaced"][0]
    assert (region["name"], region["boundary"], len(region["baseline"])) == ("rms_norm", "equal", 5)
    assert any("in replaced regions" in note for note in result.notes)


def test_results_that_differ_by_rounding_are_the_onset_and_no_structure(tmp_path: Path) -> None:
    other = Y | {"Max": 2.0 * (1 + 2.0**-22)}
    result = run(tmp_path, FIRST | unfused(Y) | head(Y), FIRST | fused(other) | head(other))
    assert result.cause is not None
    assert (result.cause.row.kind, result.cause.row.name) == ("introduced", "Tensor.__mul__.1.forward.output.0")
    assert result.rounding is not None and result.rounding.beyond is None


def test_results_that_differ_by_more_are_structure_with_both_runs_named(tmp_path: Path) -> None:
    other = Y | {"Max": 2.1}
    result = run(tmp_path, FIRST | unfused(Y) | head(Y), FIRST | fused(other) | head(other))
    assert result.cause is not None
    assert result.cause.row.kind == "structure"
    assert "5 calls (Tensor.pow.0.forward … Tensor.__mul__.1.forward)" in result.cause.why
    assert "NPU.npu_rms_norm.0.forward" in result.cause.why and "more than rounding" in result.cause.why
    assert result.rounding is not None and result.rounding.beyond is not None
    assert comparison_document(result)["replaced"][0]["explained"] is False
    assert "DIFFERENT" in comparison_text(result)


def test_what_msprobe_does_not_hook_is_judged_by_what_the_call_behind_takes_in(tmp_path: Path) -> None:
    result = run(tmp_path, FIRST | unfused(Y) | head(Y), FIRST | head(Y))
    assert result.verdict == "no-divergence"
    off = Y | {"Max": 2.1}
    result = run(tmp_path, FIRST | unfused(Y) | head(Y), FIRST | head(off))
    assert result.cause is not None and result.cause.row.kind == "structure"
    assert "none that msprobe saw" in result.cause.why


def test_a_known_run_whose_result_nobody_takes_in_is_structure(tmp_path: Path) -> None:
    result = run(tmp_path, FIRST | unfused(tensor(high=5.0, shape=(4, 8))) | head(Y), FIRST | head(Y))
    assert result.cause is not None and result.cause.row.kind == "structure"


def test_runs_that_are_on_no_list_are_a_region_where_they_take_in_and_hand_on_alike(tmp_path: Path) -> None:
    one = {"Torch.mine.0.forward": forward([X], [X]), "Torch.mine2.0.forward": forward([X], [Y])}
    other = {"NPU.npu_theirs.0.forward": forward([X], [Y])}
    result = run(tmp_path, FIRST | one | head(Y), FIRST | other | head(Y))
    assert result.verdict == "no-divergence"
    assert comparison_document(result)["replaced"][0]["name"] == ""


def test_runs_with_nothing_alike_are_structure(tmp_path: Path) -> None:
    one = {"Torch.mine.0.forward": forward([tensor(shape=(3,))], [tensor(shape=(3,))])}
    other = {"NPU.npu_theirs.0.forward": forward([tensor(shape=(5,))], [tensor(shape=(5,))])}
    result = run(tmp_path, FIRST | one | head(Y), FIRST | other | head(Y))
    assert result.cause is not None and result.cause.row.kind == "structure"


def test_going_backward_a_run_is_a_region_where_its_forward_calls_are(tmp_path: Path) -> None:
    def gradients(*names: str) -> Json:
        return {f"{name}.backward": backward([Y], [X, W]) for name in names}

    after = {"Torch.first.0.backward": backward([X], [X])}
    before = FIRST | unfused(Y) | head(Y) | gradients("Functional.linear.0")
    left = before | gradients("Tensor.__mul__.1", "Tensor.__mul__.0", "Torch.rsqrt.0") | after
    right = FIRST | fused(Y) | head(Y) | gradients("Functional.linear.0", "NPU.npu_rms_norm.0") | after
    result = run(tmp_path, left, right)
    assert result.verdict == "no-divergence"
    assert [region.name for region in result.parts[0].replaced] == ["rms_norm", "rms_norm"]


def test_inside_a_module_its_own_output_is_the_result(tmp_path: Path) -> None:
    def module(y: Json) -> Json:
        return {"Module.norm.RMSNorm.forward.0": forward([X], [y], {"weight": W})}

    construct = {name: "Module.norm.RMSNorm.forward.0" for name in unfused(Y)}
    write(tmp_path / "b", FIRST | unfused(Y) | module(Y), level="mix", construct=construct)
    write(tmp_path / "c", FIRST | module(Y), level="mix")
    write(tmp_path / "off", FIRST | module(Y | {"Max": 2.5}), level="mix")
    assert compare(tmp_path / "b", tmp_path / "c", Policy()).verdict == "no-divergence"
    off = compare(tmp_path / "b", tmp_path / "off", Policy())
    assert off.cause is not None and off.cause.row.kind == "structure"


def test_a_regions_result_is_held_against_all_that_precedes_it(tmp_path: Path) -> None:
    """What a region takes in is not paired: by its call alone it would seem to take in no error."""
    torch = pytest.importorskip("torch")
    sides = []
    for side, run_of_calls in (("b", unfused(Y)), ("c", fused(Y))):
        data = {**FIRST, **run_of_calls, **head(Y)}
        folder = write(tmp_path / side, data, task="tensor")
        files = folder / "dump_tensor_data"
        files.mkdir()
        off = 1.0 + 1e-4 * (side == "c")
        for name, entry in data.items():
            for key in ("input_args", "output"):
                for at, leaf in enumerate(entry[key]):
                    if "shape" in leaf:
                        leaf["data_name"] = f"{name}.{key}.{at}.pt"
                        torch.save(torch.full(leaf["shape"], off), files / leaf["data_name"])
        write(tmp_path / side, data, task="tensor")
        sides.append(read_dump(Part(folder)))
    judged = judge(*sides, pair(*sides), Policy())
    line = judge_regions(judged)[0].lines[0]
    assert judged.pairing.regions[0].boundary is not None
    assert incoming(judged, errors_of(judged)).e[line] == pytest.approx(1e-4, rel=0.01)
    assert arbitrate(judged, line, 2.0**-24) is None


# -- the list


ATTENTION = ["matmul", "__truediv__", "masked_fill", "softmax", "matmul"]


@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        (ATTENTION, ["npu_fusion_attention"], "attention"),
        (["scaled_dot_product_attention"], ["npu_fusion_attention"], "attention"),
        (["pow", "mean", "__add__", "rsqrt", "__mul__", "__mul__"], ["npu_rms_norm"], "rms_norm"),
        (["cat", "__mul__", "neg", "__mul__", "__add__"], ["npu_rotary_mul"], "rotary"),
        (["chunk", "silu", "__mul__"], ["npu_swiglu"], "swiglu"),
        (["matmul", "matmul", "cat"], ["npu_grouped_matmul"], "grouped_matmul"),
        (["argsort", "index_select"], ["npu_moe_token_permute"], "permute"),
        (["mean", "__sub__", "pow", "mean", "rsqrt", "__mul__"], ["layer_norm"], "layer_norm"),
        (
            ["__mul__", "__mul__", "__add__", *ATTENTION],
            ["npu_rotary_mul", "npu_fusion_attention"],
            "rotary, attention",
        ),
    ],
)
def test_known_replacements_are_named_in_either_direction(left: list[str], right: list[str], name: str) -> None:
    for one, other in ((left, right), (right, left)):
        found = name_of(one, other, known_replacements())
        assert found is not None and found[0] == name


@pytest.mark.parametrize(("left", "right"), [(["gelu"], []), (["__mul__"], ["__add__"]), (["matmul"], ["npu_swiglu"])])
def test_what_is_on_no_list_has_no_name(left: list[str], right: list[str]) -> None:
    assert name_of(left, right, known_replacements()) is None


def test_the_note_on_attention_tells_of_its_inverted_mask_and_status_outputs() -> None:
    found = name_of(ATTENTION, ["npu_fusion_attention"], known_replacements())
    assert found is not None and "inverted" in found[1] and "status" in found[1]


@pytest.mark.parametrize(("spelt", "name"), [("__iadd__", "add"), ("add_", "add"), ("bmm", "matmul"), ("gelu", "gelu")])
def test_spellings_of_one_operation_are_one(spelt: str, name: str) -> None:
    assert canonical(spelt) == name


def test_an_entry_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="mine: expected fused, needs"):
        read_replacements({"mine": {"fused": ["a"]}})
