"""The index beside a dump: the same dump again, quicker; never trusted blindly, never a reason to fail."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from handmade import forward, tensor, write
from test_decode import document

from precdiag import dump, index, reading
from precdiag.compare import compare
from precdiag.document import comparison_document
from precdiag.document_nan import survey_document
from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError
from precdiag.index import INDEX_FILE, load_index
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.survey import survey
from precdiag.workers import Resources

Real = Callable[[str], Path]


@pytest.fixture(autouse=True)
def every_dump_is_large_and_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGE_BYTES", 0)
    monkeypatch.setattr(index, "_SETTLED_SECONDS", -1e9)


def indexed(folder: Path) -> Dump:
    """The dump as it comes out of its index, which is written first."""
    reading.read(Part(folder), cache=True)
    found = load_index(Part(folder))
    assert found is not None
    return found


def assert_same(left: Dump, right: Dump) -> None:
    pd.testing.assert_frame_equal(left.rows, right.rows, check_exact=True)
    pd.testing.assert_frame_equal(left.calls, right.calls)
    for name in ("checksum", "value", "file"):
        assert left.rows[name].tolist() == right.rows[name].tolist()  # None stays None
    assert (left.task, left.level, left.framework, left.notes) == (
        right.task,
        right.level,
        right.framework,
        right.notes,
    )


@pytest.mark.parametrize("name", ["dumps", "cases", "falsepass", "ddp"])
def test_a_dump_comes_out_of_its_index_as_it_was_read(real: Real, tmp_path: Path, name: str) -> None:
    folders = [found.parent for found in sorted(real(name).rglob("dump.json"))]
    for at, folder in enumerate(folders[:: max(1, len(folders) // 12)]):
        copy = tmp_path / str(at)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("dump_tensor_data"))
        assert_same(read_dump(Part(copy)), indexed(copy))


def test_awkward_values_survive_the_index(tmp_path: Path) -> None:
    data = document(60)["data"]
    (tmp_path / "dump.json").write_text(json.dumps({"data": data, "task": "t"}), encoding="utf-8")
    (tmp_path / "construct.json").write_text("[]")
    assert_same(read_dump(Part(tmp_path)), indexed(tmp_path))


def small(folder: Path) -> Path:
    return write(folder, {f"Torch.a.{at}.forward": forward([tensor()], [tensor()]) for at in range(5)})


def test_the_second_reading_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reading.read(Part(small(tmp_path)), cache=True)

    def refuse(path: Path, take: object) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr(dump, "decode", refuse)
    assert_same(first, reading.read(Part(tmp_path), cache=True))
    with pytest.raises(AssertionError, match="decoded again"):
        reading.read(Part(tmp_path), cache=False)


@pytest.mark.parametrize("keep_times", [False, True])
def test_another_dump_in_the_same_place_is_read_anew(tmp_path: Path, keep_times: bool) -> None:
    indexed(small(tmp_path))
    before = (tmp_path / "dump.json").stat()
    text = (tmp_path / "dump.json").read_text()
    (tmp_path / "dump.json").write_text(text.replace('"Max": 1.0', '"Max": 2.0'))
    assert (tmp_path / "dump.json").stat().st_size == before.st_size
    if keep_times:
        os.utime(tmp_path / "dump.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load_index(Part(tmp_path)) is None
    assert reading.read(Part(tmp_path), cache=True).rows["max"].max() == 2.0
    assert indexed(tmp_path).rows["max"].max() == 2.0


def test_another_construct_is_read_anew(tmp_path: Path) -> None:
    small(tmp_path)
    indexed(tmp_path)
    (tmp_path / "construct.json").unlink()
    assert load_index(Part(tmp_path)) is None


def test_another_version_reads_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed(small(tmp_path))
    monkeypatch.setattr(index, "__version__", "another")
    assert load_index(Part(tmp_path)) is None


def test_a_damaged_index_is_as_none(tmp_path: Path) -> None:
    right = indexed(small(tmp_path))
    whole = (tmp_path / INDEX_FILE).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            (tmp_path / INDEX_FILE).write_bytes(damaged)
            found = load_index(Part(tmp_path))
            if found is not None:  # a byte that means nothing: a time in the archive
                assert_same(found, right)
    assert_same(reading.read(Part(tmp_path), cache=True), right)


@pytest.mark.parametrize("field", ["rows.call", "rows.order", "rows.slot", "calls.name"])
def test_positions_that_lead_nowhere_are_refused(tmp_path: Path, field: str) -> None:
    indexed(small(tmp_path))
    with np.load(tmp_path / INDEX_FILE) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays[field] = arrays[field] + 1000
    with (tmp_path / INDEX_FILE).open("wb") as file:
        np.savez(file, **arrays)
    assert load_index(Part(tmp_path)) is None


def test_no_pickle_is_run(tmp_path: Path) -> None:
    indexed(small(tmp_path))
    with (tmp_path / INDEX_FILE).open("wb") as file:
        np.savez(file, header=np.array([{}], dtype=object))
    assert load_index(Part(tmp_path)) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert len(reading.read(Part(small(tmp_path)), cache=True).rows) == 10
    assert sorted(found.name for found in tmp_path.iterdir()) == ["construct.json", "dump.json", "stack.json"]


def test_a_dump_written_just_now_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SETTLED_SECONDS", 2.0)
    reading.read(Part(small(tmp_path)), cache=True)
    assert not (tmp_path / INDEX_FILE).exists()
    old = time.time() - 60
    for name in ("dump.json", "construct.json"):
        os.utime(tmp_path / name, (old, old))
    reading.read(Part(tmp_path), cache=True)
    assert (tmp_path / INDEX_FILE).exists()


def test_a_dump_that_cannot_be_read_leaves_no_index(tmp_path: Path) -> None:
    for text in (None, "{", '{"data": {}}'):
        if text is not None:
            (tmp_path / "dump.json").write_text(text)
        with pytest.raises(UnreadableError):
            reading.read(Part(tmp_path), cache=True)
        assert not (tmp_path / INDEX_FILE).exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_comparison_says_the_same_with_the_index_and_without(real: Real, tmp_path: Path, workers: int) -> None:
    sides = []
    for name in ("A", "C"):
        shutil.copytree(real("ddp") / name, tmp_path / name)
        sides.append(tmp_path / name)
    texts = [
        comparison_document(compare(*sides, Policy(), resources=Resources(workers, cache=cache)))
        for cache in (False, True, True)
    ]
    assert len(list(tmp_path.rglob(INDEX_FILE))) == 8
    assert texts[0] == texts[1] == texts[2]


def test_nan_says_the_same_with_the_index_and_without(real: Real, tmp_path: Path) -> None:
    shutil.copytree(real("nan") / "statistics", tmp_path / "nan")
    found = [survey_document(survey(tmp_path / "nan", cache=cache)) for cache in (False, True, True)]
    assert list(tmp_path.rglob(INDEX_FILE))
    assert found[0] == found[1] == found[2]
    assert found[0]["verdict"] == "non-finite"
