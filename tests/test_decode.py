"""Decoding a dump.json: with msgspec and without it, in any layout, the same rows; what is broken stays broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from handmade import forward, scalar, tensor, write
from hypothesis import given, settings
from hypothesis import strategies as st

from precdiag.decode import PIECE_BYTES, MalformedError, decode, plain
from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError
from precdiag.layout import Part

msgspec = pytest.importorskip("msgspec")

AWKWARD = [
    tensor(float("-inf"), float("inf")) | {"Mean": float("nan"), "Norm": float("nan")},
    tensor() | {"Mean": None, "Norm": None},
    tensor(dtype="torch.int64") | {"Max": 2**63 + 1, "Min": -(2**63), "Mean": None, "Norm": None},
    tensor(dtype="torch.uint8") | {"Max": 2**70},
    tensor(dtype="torch.complex64") | {"Max": "(1+2j)", "Mean": "NaN"},
    tensor(dtype="torch.bool") | {"Max": True, "Min": False, "Mean": None, "Norm": None},
    tensor(md5="00c0ffee", data_name="a.pt"),
    tensor(placements="NaN", device_mesh=[0, 1]) | {"shape": "unknown"},
    {"type": "torch.Tensor", "dtype": None, "shape": [True, 2.0, None]},
    {"type": "torch.Size", "value": [1, 2]},
    {"type": "dict", "value": {"Max": float("inf"), "b": [float("nan")]}},
    {"type": "str", "value": 'said": NaN, and \\": -Infinity'},
    {"type": "str", "value": "\0text"},
    {"value": float("nan")},
    scalar(float("-inf")),
    scalar(10**30),
    scalar("näh \U0001f40d"),
    scalar("\ud800"),
    [tensor(), [None, {"x": tensor()}]],
    None,
    "text",
    float("inf"),
]


def document(calls: int = 3) -> dict[str, Any]:
    data = {f"Torch.a.{at}.forward": forward([AWKWARD[at % len(AWKWARD)]], [tensor(-at)]) for at in range(calls)}
    return {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}


def put(folder: Path, text: str) -> Path:
    (folder / "dump.json").write_text(text, encoding="utf-8", newline="")
    return folder


def assert_same(left: Dump, right: Dump) -> None:
    pd.testing.assert_frame_equal(left.rows, right.rows, check_exact=True)
    pd.testing.assert_frame_equal(left.calls, right.calls)
    assert (left.task, left.level, left.notes) == (right.task, right.level, right.notes)


def without_msgspec(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Dump:
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "msgspec", None)
        return read_dump(Part(folder))


@pytest.mark.parametrize("name", ["dumps", "cases", "falsepass", "ddp"])
def test_real_dumps_are_read_alike_with_and_without_msgspec(
    real: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folders = [found.parent for found in sorted(real(name).rglob("dump.json"))]
    assert len(folders) >= 2
    for folder in folders[:: max(1, len(folders) // 20)]:
        assert_same(read_dump(Part(folder)), without_msgspec(monkeypatch, folder))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4])
def test_every_layout_and_parser_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, newline: str
) -> None:
    folders = []
    for name, text in (
        ("reference", json.dumps(document(60))),
        ("laid-out", json.dumps(document(60), indent=indent).replace("\n", newline)),
    ):
        (tmp_path / name).mkdir()
        folders.append(put(tmp_path / name, text))
    reference = without_msgspec(monkeypatch, folders[0])
    assert_same(reference, read_dump(Part(folders[1])))
    assert_same(reference, without_msgspec(monkeypatch, folders[1]))


def test_a_file_of_many_pieces_is_read_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, json.dumps(document(3000), indent=1))
    assert (tmp_path / "dump.json").stat().st_size > 3 * PIECE_BYTES
    taken: list[dict[str, Any]] = []
    header = decode(tmp_path / "dump.json", taken.append)
    assert len(taken) > 3
    assert [name for calls in taken for name in calls] == list(document(3000)["data"])
    assert header == document(0)
    assert_same(read_dump(Part(tmp_path)), without_msgspec(monkeypatch, tmp_path))


def test_numbers_that_are_no_json_arrive_as_numbers(tmp_path: Path) -> None:
    calls: dict[str, Any] = {}
    decode(put(tmp_path, json.dumps(document(40), indent=1)) / "dump.json", calls.update)
    assert repr(plain(calls)) == repr(document(40)["data"])


@settings(deadline=None)
@given(cut=st.integers(min_value=0))
def test_a_laid_out_file_cut_anywhere_is_malformed(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = json.dumps(document(8), indent=1)
    folder = put(tmp_path_factory.mktemp("cut"), whole[: cut % len(whole)])
    with pytest.raises(MalformedError):
        decode(folder / "dump.json", lambda calls: None)


def test_a_call_named_twice_is_refused_however_far_apart(tmp_path: Path) -> None:
    for between in (0, 3000):
        text = json.dumps(document(between + 2), indent=1)
        twice = text.replace(f'"Torch.a.{between + 1}.forward"', '"Torch.a.0.forward"')
        assert twice != text
        with pytest.raises(UnreadableError, match="names a call twice"):
            read_dump(Part(put(tmp_path, twice)))


def test_keys_behind_data_are_read_and_do_not_hide_a_broken_end(tmp_path: Path) -> None:
    text = json.dumps(document(5), indent=1).removesuffix("\n}")
    whole = text + ',\n "level": "L0",\n "more": {\n  "Torch.x.0.forward": 1\n }\n}'
    assert read_dump(Part(put(tmp_path, whole))).level == "L0"
    assert len(read_dump(Part(tmp_path)).calls) == 5
    for broken in (text, text + ",", whole.replace('\n  "Torch.a.3', '\n  ]"Torch.a.3'), whole[:-1]):
        with pytest.raises(UnreadableError, match="cut short"):
            read_dump(Part(put(tmp_path, broken)))


def test_bytes_that_are_no_text_are_refused_with_either_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, document(3)["data"])
    text = (tmp_path / "dump.json").read_bytes().replace(b"dump_data_dir", b"dump\xffdata")
    laid_out = json.dumps(document(50), indent=1).encode().replace(b"torch.bool", b"torch.b\xff")
    for content in (text, laid_out):
        (tmp_path / "dump.json").write_bytes(content)
        with pytest.raises(UnreadableError, match="not UTF-8"):
            read_dump(Part(tmp_path))
        with pytest.raises(UnreadableError, match="not UTF-8"):
            without_msgspec(monkeypatch, tmp_path)
