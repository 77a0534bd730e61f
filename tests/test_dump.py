"""Reading dumps: every layout, key and form of argument, and one clear line for what cannot be read."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import forward, scalar, tensor, write
from hypothesis import given
from hypothesis import strategies as st

from precdiag.dump import begin_order, fingerprints, read_dump
from precdiag.errors import UnreadableError
from precdiag.layout import Part, open_run
from precdiag.rows import Columns, split_name


def read(folder: Path) -> Any:
    return read_dump(Part(folder))


def names(dump: Any) -> list[str]:
    """Row names in the order in which work began."""
    return [dump.name(int(row)) for row in np.argsort(dump.rows["order"])]


# -- layouts


@pytest.mark.parametrize(
    ("inside", "given_", "expected"),
    [
        ("step0/rank0", "", ("", 0, 0)),
        ("step12/proc4242", "", ("", 12, None)),
        ("step3/rank", "", ("", 3, None)),
        ("step3/rank1", "step3", ("", 3, 1)),
        ("step3/rank1", "step3/rank1", ("", 3, 1)),
        ("step3/rank1", "step3/rank1/dump.json", ("", 3, 1)),
        ("rank7", "", ("", None, 7)),
        ("copy of 步骤 a+b", "copy of 步骤 a+b", ("", None, None)),
        ("step_2/actor/step0/rank3", "", ("step_2/actor", 0, 3)),
        ("step_2/actor/step0/rank3", "step_2", ("actor", 0, 3)),
        ("dump/step1/proc9", "", ("", 1, None)),
    ],
)
def test_a_dump_is_found_wherever_the_user_points(
    tmp_path: Path, inside: str, given_: str, expected: tuple[str, int | None, int | None]
) -> None:
    write(tmp_path / "run" / inside, {"Torch.a.0.forward": forward([tensor()], [])})
    (part,) = open_run(tmp_path / "run" / given_).parts
    assert (part.stage, part.step, part.rank) == expected
    assert len(read_dump(part).rows) == 1


def test_steps_ranks_and_stages_are_in_numeric_order(tmp_path: Path) -> None:
    for place in ("step10/rank0", "step9/rank10", "step9/rank9", "step9/rank1"):
        write(tmp_path / place, {"Torch.a.0.forward": forward([tensor()], [])})
    assert [(p.step, p.rank) for p in open_run(tmp_path).parts] == [(9, 1), (9, 9), (9, 10), (10, 0)]


def test_a_step_folder_that_holds_nothing_is_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "step0/rank0", {"Torch.a.0.forward": forward([tensor()], [])})
    (tmp_path / "step1").mkdir()
    (tmp_path / "step2/rank0").mkdir(parents=True)
    parts = open_run(tmp_path).parts
    assert [part.step for part in parts] == [0, 1, 2]
    for part in parts[1:]:
        with pytest.raises(UnreadableError, match=r"dump\.json: missing"):
            read_dump(part)


def test_a_path_without_a_dump_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no such file or folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(UnreadableError, match=r"no dump\.json in it or below it"):
        open_run(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UnreadableError, match=r"expected dump\.json or a folder"):
        open_run(tmp_path / "notes.txt")


def test_every_version_is_read(real: Callable[[str], Path]) -> None:
    folders = sorted({path.parent for path in real("dumps").rglob("dump.json")})
    assert len(folders) == 90
    for folder in folders:
        assert len(read(folder).rows) >= 17


def test_a_moved_tensor_dump_finds_its_files(tmp_path: Path, real: Callable[[str], Path]) -> None:
    moved = tmp_path / "somewhere else"
    shutil.copytree(next(real("dumps").glob("26.2.0/tensor-L1/A/step0/*")), moved)
    dump = read(moved)
    rows = np.flatnonzero(dump.rows["file"].notna())
    assert len(rows) == 34
    assert all(dump.tensor_path(int(row)).is_file() for row in rows)


# -- forms of arguments


def test_nested_arguments_have_slots_as_msprobe_names_them(tmp_path: Path) -> None:
    call = {
        "input_args": [[tensor(), [None, scalar(2)]], None, {"key": tensor()}],
        "input_kwargs": {"p": scalar(0.5), "out": None},
        "output": [[tensor(), tensor()]],
    }
    dump = read(write(tmp_path, {"Torch.cat.0.forward": call}))
    assert [name.removeprefix("Torch.cat.0.forward.") for name in names(dump)] == [
        "input.0.0",
        "input.0.1.0",
        "input.0.1.1",
        "input.1",
        "input.2.key",
        "input.p",
        "input.out",
        "output.0.0",
        "output.0.1",
    ]


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        (None, "None", "None"),
        (scalar(0.1), "float", "0.1"),
        (scalar(True), "bool", "True"),
        (scalar("none"), "str", "none"),
        ({"type": "float", "value": float("nan")}, "float", "nan"),
        ({"type": "float", "value": float("-inf")}, "float", "-inf"),
        ({"type": "float", "value": -0.0}, "float", "0.0"),
        ({"type": "slice", "value": [None, 3, None]}, "slice", "[None, 3, None]"),
        ({"type": "torch.Size", "value": [2, 4]}, "torch.Size", "[2, 4]"),
        ({"type": "torch.dtype", "value": "torch.float16"}, "torch.dtype", "torch.float16"),
        ({"type": "torch.memory_format", "format": "preserve_format"}, "torch.memory_format", "preserve_format"),
        ({"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "9f"}, "torch.ProcessGroup", "[0, 1]"),
        ({"type": "Mine", "value": "<f at 0x7f00aa>"}, "Mine", "<f>"),
        ("bare", "str", "bare"),
        (7, "int", "7"),
    ],
)
def test_every_form_of_argument_is_a_row_of_text(tmp_path: Path, entry: Any, kind: str, text: str) -> None:
    row = read(write(tmp_path, {"Torch.a.0.forward": forward([entry], [])})).rows.iloc[0]
    assert (row["type"], row["value"], bool(row["tensor"])) == (kind, text, False)


def test_missing_and_null_keys_are_read(tmp_path: Path) -> None:
    data = {
        "Functional.dropout.0.forward": {"input_args": [tensor()], "input_kwargs": {}},
        "Tensor.__setitem__.0.forward": {"input_args": None, "input_kwargs": None, "output": None},
        "Torch.b.0.backward": {},
        "Torch.c.0.forward": None,
        "Module.x.Linear.parameters_grad": {"weight": [tensor()], "bias": [tensor()]},
        "Module.x.Linear.parameters_grad.0": {"weight": [tensor()], "bias": None},
    }
    assert [name for name in names(read(write(tmp_path, data))) if "Linear" in name or "dropout" in name] == [
        "Functional.dropout.0.forward.input.0",
        "Module.x.Linear.parameters_grad.weight",
        "Module.x.Linear.parameters_grad.bias",
        "Module.x.Linear.parameters_grad.0.weight",
        "Module.x.Linear.parameters_grad.0.bias",
    ]


def test_bare_nan_and_null_statistics_are_told_apart(tmp_path: Path) -> None:
    nan = tensor() | {"Max": float("nan"), "Mean": None}
    row = read(write(tmp_path, {"Torch.a.0.forward": forward([nan], [])})).rows.iloc[0]
    assert np.isnan(row["max"]) and np.isnan(row["mean"])
    assert [bool(row["known"] >> bit & 1) for bit in range(4)] == [True, True, False, True]


def test_integers_beyond_float64_keep_their_digits(tmp_path: Path) -> None:
    big = 2**60 + 1
    first = tensor(dtype="torch.int64") | {"Max": big, "Min": big}
    second = tensor(dtype="torch.int64") | {"Max": big + 1, "Min": big + 1}
    rows = read(write(tmp_path, {"Torch.a.0.forward": forward([first, second], [])})).rows
    assert rows["max"].iat[0] == rows["max"].iat[1]
    assert rows["value"].iat[0] != rows["value"].iat[1]


def test_a_stack_is_read_in_both_forms(real: Callable[[str], Path]) -> None:
    for version in ("1.2.2", "26.2.0"):
        dump = read(next(real("dumps").glob(f"{version}/statistics-L1/A/step0/*")))
        assert "train.py, line 15" in dump.stack("Functional.linear.1.forward")[-1]
        assert dump.stack("Functional.nothing.0.forward") == ()


@pytest.mark.parametrize("stack", ["", "{}", None])
def test_a_file_without_stacks_is_read_once(tmp_path: Path, stack: str | None) -> None:
    call, file = "Torch.add.0.forward", tmp_path / "stack.json"
    dump = read(write(tmp_path, {call: forward([tensor()], [tensor()])}))
    file.unlink() if stack is None else file.write_text(stack)
    assert dump.stack(call) == ()
    file.write_text(json.dumps({call: ["File train.py, line 1, in <module>"]}))
    assert dump.stack(call) == ()
    assert read(tmp_path).stack(call) != ()


# -- what cannot be read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("[]", "cut short or not what msprobe writes"),
        ("hello", "cut short or not what msprobe writes"),
        ('{"task": "statistics"}', "has no `data`"),
        ('{"data": []}', "cut short or not what msprobe writes"),
        ('{"task": "statistics", "data": {}}', "holds a head and no rows"),
        ('{"data": {"Torch.a.0.forward": {"input_args": [], "output": []}}}', "holds a head and no rows"),
        ('{"data": {"Torch.a.0.forward": {"input_args": [1]}, "Torch.b', "cut short .* (1 whole calls in it)"),
        ('{"data": {"a": {"input_args": [1]}, "a": {"input_args": [1]}}}', "names a call twice"),
        ("[" * 100_000, "cut short or not what msprobe writes"),
    ],
)
def test_an_unreadable_dump_names_the_file_and_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(UnreadableError) as raised:
        read(tmp_path)
    assert str(tmp_path / "dump.json") in str(raised.value)
    assert all(piece in str(raised.value) for piece in said.split(" .* "))
    assert "\n" not in str(raised.value)


def test_a_dump_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_bytes(b"\x80\x04\x95")
    with pytest.raises(UnreadableError, match="not UTF-8"):
        read(tmp_path)


@given(st.integers(min_value=0))
def test_a_dump_cut_anywhere_is_never_read_as_whole(cut: int) -> None:
    document = {"task": "t", "data": {f"Torch.a.{i}.forward": forward([tensor()], [None]) for i in range(3)}}
    for indent in (None, 1):  # as one line, and as msprobe lays it out
        whole = json.dumps(document, indent=indent)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "dump.json").write_text(whole[: cut % len(whole)])
            with pytest.raises(UnreadableError):
                read(Path(folder))


def test_a_broken_construct_costs_the_nesting_and_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"Torch.a.0.forward": forward([tensor()], [])})
    (tmp_path / "construct.json").write_text("{")
    (note,) = read(tmp_path).notes
    assert "construct.json: cannot be read" in note


# -- order


def test_a_module_begins_before_what_is_inside_it(tmp_path: Path) -> None:
    data = {
        "Functional.linear.0.forward": forward([tensor()], [tensor()]),
        "Module.net.0.Linear.forward.0": forward([tensor()], [tensor()], {"weight": tensor()}),
        "Functional.relu.0.forward": forward([tensor()], [tensor()]),
        "Module.net.Sequential.forward.0": forward([tensor()], [tensor()], {}),
        "Torch.mean.0.forward": forward([tensor()], [tensor()]),
    }
    construct = {
        "Functional.linear.0.forward": "Module.net.0.Linear.forward.0",
        "Module.net.0.Linear.forward.0": "Module.hidden.Unseen.forward.0",
        "Module.hidden.Unseen.forward.0": "Module.net.Sequential.forward.0",
        "Functional.relu.0.forward": "Module.net.Sequential.forward.0",
        "Module.net.Sequential.forward.0": None,
        "Torch.mean.0.forward": "Functional.linear.0.forward",  # stale: that call has finished
    }
    assert names(read(write(tmp_path, data, construct=construct, level="mix"))) == [
        "Module.net.Sequential.forward.0.input.0",
        "Module.net.0.Linear.forward.0.input.0",
        "Module.net.0.Linear.forward.0.parameters.weight",
        "Functional.linear.0.forward.input.0",
        "Functional.linear.0.forward.output.0",
        "Module.net.0.Linear.forward.0.output.0",
        "Functional.relu.0.forward.input.0",
        "Functional.relu.0.forward.output.0",
        "Module.net.Sequential.forward.0.output.0",
        "Torch.mean.0.forward.input.0",
        "Torch.mean.0.forward.output.0",
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.sampled_from(["input_args", "output"]), max_size=3))))
def test_the_order_is_a_permutation_whatever_the_parents(calls: list[tuple[int, list[str]]]) -> None:
    columns = Columns()
    for at, (_, keys) in enumerate(calls):
        columns.add_calls({f"Torch.a.{at}.forward": {key: [1] for key in keys}})
    rows = columns.frame()
    parents = np.array([at + 1 + jump if at + 1 + jump < len(calls) else -1 for at, (jump, _) in enumerate(calls)])
    assert sorted(begin_order(rows, parents.astype(np.int64))) == list(range(len(rows)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Functional.linear.1.forward", ("Functional", "linear", "", 1, "forward")),
        ("Tensor.__setitem__.0.backward", ("Tensor", "__setitem__", "", 0, "backward")),
        ("Module.blocks.0.proj.Linear.forward.3", ("Module", "Linear", "blocks.0.proj", 3, "forward")),
        ("Module.0.Linear.parameters_grad", ("Module", "Linear", "0", -1, "parameters_grad")),
        ("Module.forward.Net.backward.0", ("Module", "Net", "forward", 0, "backward")),
        ("strange", ("strange", "", "", -1, "")),
    ],
)
def test_a_name_is_split_into_its_parts(name: str, expected: tuple[str, str, str, int, str]) -> None:
    assert split_name(name) == expected


def test_equal_values_have_equal_fingerprints_and_arguments_none(tmp_path: Path) -> None:
    data = {
        "Torch.a.0.forward": forward([tensor(), scalar(1)], [tensor(high=2.0)]),
        "Torch.b.0.forward": forward([tensor(high=2.0)], [tensor(high=2.0, shape=(8,))]),
    }
    prints = fingerprints(read(write(tmp_path, data)))
    assert prints[2] == prints[3] != prints[4]
    assert prints[1] == 0 and prints[0] != 0


@pytest.mark.parametrize("behind", ["{}", '{"data": {}}', "x", "\0\0"])
def test_what_stands_behind_the_document_is_refused(tmp_path: Path, behind: str) -> None:
    write(tmp_path, {"Torch.a.0.forward": forward([tensor()], [])})
    with (tmp_path / "dump.json").open("a") as file:
        file.write("\n" + behind)
    with pytest.raises(UnreadableError, match="not what msprobe writes"):
        read_dump(Part(tmp_path))


def test_a_number_too_long_to_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"Torch.a.0.forward": forward([scalar(1)], [])}) / "dump.json"
    path.write_text(path.read_text().replace('"value": 1', f'"value": {"1" * 5000}'))
    with pytest.raises(UnreadableError, match="not what msprobe writes"):
        read_dump(Part(tmp_path))


def test_a_file_name_that_is_no_text_names_no_file(tmp_path: Path) -> None:
    write(tmp_path, {"Torch.a.0.forward": forward([tensor(data_name=5)], [])})
    assert read_dump(Part(tmp_path)).tensor_path(0) == tmp_path / "dump_tensor_data" / "5"


def test_characters_that_are_no_text_end_in_no_internal_error(tmp_path: Path) -> None:
    argument = write(tmp_path / "a", {"Torch.a.0.forward": forward([scalar("x\udc80")], [tensor()])})
    assert read_dump(Part(argument)).cell("value", 0) == "x\\udc80"
    name = write(tmp_path / "n", {"Module.\ud800.Lin.forward.0": forward([tensor()], [tensor()])})
    with pytest.raises(UnreadableError, match="no text"):
        read_dump(Part(name))
