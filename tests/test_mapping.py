"""--map: exact and pattern renames of calls and modules, our own replacements, and msprobe's mapping files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import Json, forward, tensor, write

from precdiag.align import pair
from precdiag.compare import Calls, compare
from precdiag.dump import Dump, read_dump
from precdiag.errors import UsageError
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.mapping import CallMap, read_map


def call(value: float = 1.0) -> Json:
    return forward([tensor(high=value)], [tensor(high=value)])


def dump(folder: Path, *names: str, **more: Any) -> Dump:
    return read_dump(Part(write(folder, {name: call(at) for at, name in enumerate(names)}, **more)))


def mapped(folder: Path, text: str) -> CallMap:
    (folder / "map.yaml").write_text(text, encoding="utf-8")
    return read_map(folder / "map.yaml")


def pairs(folder: Path, text: str, left: list[str], right: list[str]) -> list[tuple[str, str, str]]:
    first, second = dump(folder / "b", *left), dump(folder / "c", *right)
    lines = pair(first, second, mapped(folder, text)).calls
    lines = lines[lines["how"] != ""].sort_values("baseline")
    return [
        (first.calls["name"].iat[line.baseline], second.calls["name"].iat[line.candidate], line.how)
        for line in lines.itertuples()
    ]


def test_a_call_is_renamed_exactly(tmp_path: Path) -> None:
    left, right = (
        ["Functional.linear.0.forward", "Torch.z.0.forward"],
        ["NPU.npu_linear.0.forward", "Torch.z.0.forward"],
    )
    assert pairs(tmp_path, "calls: {Functional.linear: NPU.npu_linear}", left, right) == [
        (left[0], right[0], "map"),
        (left[1], right[1], "name"),
    ]


def test_a_pattern_carries_over_what_its_star_stood_for(tmp_path: Path) -> None:
    left = ["Torch.my_add.0.forward", "Torch.my_mul.0.forward"]
    right = ["NPU.npu_add.0.forward", "NPU.npu_mul.0.forward"]
    assert [how for *_, how in pairs(tmp_path, "calls: {Torch.my_*: NPU.npu_*}", left, right)] == ["map", "map"]


def test_a_module_is_renamed_with_all_inside_it(tmp_path: Path) -> None:
    left = ["Module.encoder.layers.0.fc.Linear.forward.0", "Module.encoder.layers.1.fc.Linear.forward.0"]
    right = ["Module.enc.blocks.0.fc.Dense.forward.0", "Module.enc.blocks.1.fc.Dense.forward.0"]
    found = pairs(tmp_path, "modules: {encoder.layers: enc.blocks}", left, right)
    assert found == [(left[0], right[0], "map"), (left[1], right[1], "map")]
    assert pairs(tmp_path, "modules: {encoder.layers.*.fc: enc.blocks.*.fc}", left, right) == found


def test_one_call_is_paired_with_one_call_wherever_it_stands(tmp_path: Path) -> None:
    left = [f"Torch.a{at}.0.forward" for at in range(5)]
    right = ["NPU.b.0.forward", *left[:4]]
    found = pairs(tmp_path, "calls: {Torch.a4.0.forward: NPU.b.0.forward}", left, right)
    assert found[-1] == ("Torch.a4.0.forward", "NPU.b.0.forward", "map")
    assert len(found) == 5


def test_a_replacement_of_ones_own_makes_a_region(tmp_path: Path) -> None:
    first, last = {"Torch.f.0.forward": call()}, {"Torch.z.0.forward": call(3.0)}
    gate = {"Torch.mine.0.forward": call(2.0), "Torch.other.0.forward": call(3.0)}
    write(tmp_path / "b", first | gate | last)
    write(tmp_path / "c", first | last)
    text = "replaced: {gate: {fused: [npu_gate], needs: [mine, other]}}"
    assert compare(tmp_path / "b", tmp_path / "c", Policy()).exit_code == 1
    result = compare(tmp_path / "b", tmp_path / "c", Policy(), calls=Calls(mapped(tmp_path, text)))
    assert result.exit_code == 0
    assert result.parts[0].replaced[0].name == "gate"


def test_msprobes_api_mapping_goes_from_candidate_to_baseline(tmp_path: Path) -> None:
    text = "ms_api: Functional.abs\npt_api: Torch.abs\nms_args: [0]\npt_args: [0]\n"
    found = pairs(tmp_path, text, ["Torch.abs.0.forward"], ["Functional.abs.0.forward"])
    assert found == [("Torch.abs.0.forward", "Functional.abs.0.forward", "map")]
    assert (
        pairs(
            tmp_path,
            f"- {text}".replace("\n", "\n  ").rstrip() + "\n",
            ["Torch.abs.0.forward"],
            ["Functional.abs.0.forward"],
        )
        == found
    )


def test_msprobes_cell_mapping_by_name_and_by_piece(tmp_path: Path) -> None:
    left = ["Module.conv3.Conv2d.forward.0", "Module.net.TERow.forward.0", "Module.same.Linear.forward.0"]
    right = ["Cell.conv1.Conv2d.forward.0", "Cell.network.Row.forward.0", "Cell.same.Dense.forward.0"]
    text = "conv1.Conv2d: conv3.Conv2d\nnetwork: net\n"
    assert [how for *_, how in pairs(tmp_path, text, left, right)] == ["map", "map", "sequence"]


def test_msprobes_layer_mapping_renames_the_children_of_a_class(tmp_path: Path) -> None:
    text = "TopLayer: {network: module.model}\nParallelAttention: {qkv_proj: query_key_value, out.proj: dense}\n"
    left = [
        "Module.module.model.attn.query_key_value.Linear.forward.0",
        "Module.module.model.attn.dense.Linear.forward.0",
    ]
    right = ["Cell.network.attn.qkv_proj.Dense.forward.0", "Cell.network.attn.out.proj.Dense.forward.0"]
    left, right = (
        [*left, "Module.module.model.attn.Attention.forward.0"],
        [*right, "Cell.network.attn.ParallelAttention.forward.0"],
    )
    assert [how for *_, how in pairs(tmp_path, text, left, right)] == ["map", "map", "map"]


def test_msprobes_data_mapping_pairs_single_calls(tmp_path: Path) -> None:
    text = "Functional.fas.4.forward.input.0: NPU.npu_fusion_attention.2.forward.input.0\n"
    found = pairs(tmp_path, text, ["NPU.npu_fusion_attention.2.forward"], ["Functional.fas.4.forward"])
    assert found == [("NPU.npu_fusion_attention.2.forward", "Functional.fas.4.forward", "map")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("calls: [a, b]", "expected names to names"),
        ("calls: {a: {b: c}}", "expected names to names"),
        ("", "holds no mapping"),
        ("just words", "holds no mapping"),
        ("a: {b", "line 1"),
        ("replaced: {x: {fused: [a]}}", "x: expected fused, needs"),
        ("- {ms_api: A}", "ms_api and pt_api"),
        ("calls: {a: b}\nmodule: {c: d}\n", "unknown key module"),
    ],
)
def test_what_is_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--map: ") as raised:
        mapped(tmp_path, text)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.hint is not None and "modules" in raised.value.hint


def test_a_missing_mapping_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_map(tmp_path / "none.yaml")
