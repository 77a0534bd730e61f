"""Reading logs: each format's traps, compression and damage, a user's own pattern, event files, bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precdiag.curves import LossLog
from precdiag.errors import UnreadableError, UsageError
from precdiag.losslog import read_curves

Factory = pytest.TempPathFactory
LOGS = Path(__file__).parent / "data" / "loss_logs"
MEGATRON = " iteration {0:8d}/ 1000 | consumed samples: {0} | lm loss: {1:.6E} | grad norm: 1.25 |"


def read(folder: Path, text: str, name: str = "train.log", pattern: str | None = None) -> LossLog:
    """Write a text as it is and read it as a log."""
    path = folder / name
    path.write_bytes(text.encode())
    return read_curves(path, pattern=pattern)


def megatron(steps: range) -> str:
    return "".join(MEGATRON.format(n, 10 / n) + "\n" for n in steps)


def points(found: LossLog, series: str = "loss") -> dict[int, float]:
    curve = found.find(series)
    return {} if curve is None else dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


# -- text in every wrapping


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, ends: str, bom: str) -> None:
    found = read(tmp_path, bom + megatron(range(1, 6)).replace("\n", ends))
    assert found.format == "megatron" and list(points(found)) == [1, 2, 3, 4, 5]


def test_colours_are_no_part_of_a_number(tmp_path: Path) -> None:
    line = "\x1b[31m[rank0]:\x1b[0mstep: \x1b[36m{:2d}\x1b[0m  loss: \x1b[32m{:8.5f}\x1b[0m  grad_norm: 0.5\n"
    found = read(tmp_path, "".join(line.format(n, 5 / n) for n in range(1, 5)))
    assert found.format == "torchtitan" and points(found) == {1: 5.0, 2: 2.5, 3: 1.66667, 4: 1.25}


def test_ranks_that_repeat_a_row_are_one_curve_and_their_nan_is_kept(tmp_path: Path) -> None:
    rows = [
        f"[rank{rank}]: step: {n}  loss: {'nan' if (n, rank) == (3, 1) else 4 / n}"
        for n in (1, 2, 3)
        for rank in (0, 1)
    ]
    found = read(tmp_path, "\n".join([*rows, ""]))
    assert list(points(found)) == [1, 2, 3] and np.isnan(points(found)[3])
    assert any("another rank" in note for note in found.notes)


def test_gzip_is_told_by_its_content_and_a_cut_stream_is_read_up_to_there(tmp_path: Path) -> None:
    packed = gzip.compress(megatron(range(1, 2001)).encode(), mtime=0)
    (tmp_path / "log").write_bytes(packed)
    assert len(points(read_curves(tmp_path / "log"))) == 2000
    (tmp_path / "log").write_bytes(packed[: len(packed) // 2])
    found = read_curves(tmp_path / "log")
    assert 100 < len(points(found)) < 2000
    assert any("cut off or damaged" in note for note in found.notes)


def test_an_unfinished_last_line_gives_no_half_number(tmp_path: Path) -> None:
    whole = "".join(json.dumps({"step": n, "loss": 1.5}) + "\n" for n in range(5))
    found = read(tmp_path, whole + '{"step": 5, "loss": 1')
    assert list(points(found)) == [0, 1, 2, 3, 4]
    found = read(tmp_path, megatron(range(1, 5)) + " iteration 5/ 1000 | lm loss: 1.2")
    assert list(points(found)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2", "overflow"),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", "overflow"),
        ("Current loss scale already at minimum - cannot decrease scale anymore.", "minimum"),
        ("rank 3: found NaN in local grad norm", "message"),
        ("Function 'MulBackward0' returned nan values in its 0th output.", "message"),
        ("Loss is nan, stopping training", "message"),
        ("Loss is information", None),
        ("buffer overflow in a tokenizer", None),
    ],
)
def test_what_frameworks_say_of_an_overflow_is_an_event(tmp_path: Path, line: str, kind: str | None) -> None:
    events = read(tmp_path, megatron(range(1, 5)) + line + "\n").events
    assert [(each.kind, each.after) for each in events] == ([] if kind is None else [(kind, 4)])


# -- formats


def test_the_last_of_a_step_that_comes_twice_counts(tmp_path: Path) -> None:
    found = read(tmp_path, megatron(range(1, 9)) + megatron(range(5, 7)).replace("E+00", "E+01"))
    assert points(found)[5] == 20.0 and points(found)[8] == 1.25
    assert any("a restart" in note for note in found.notes)


def test_a_vanished_megatron_loss_is_a_nan_but_not_on_a_skipped_step(tmp_path: Path) -> None:
    rows = megatron(range(1, 4)) + " iteration 4/ 1000 | consumed samples: 4 | grad norm: nan |{}\n"
    assert np.isnan(points(read(tmp_path, rows.format("")))[4])
    skipped = " number of skipped iterations: 1 | number of nan iterations: 0 |"
    assert 4 not in points(read(tmp_path, rows.format(skipped)))


def test_null_rows_and_empty_cells_are_no_nan(tmp_path: Path) -> None:
    found = read(tmp_path, "step,loss,val_loss\n1,2.5,\n2,,1.5\n3,2.25,\n", "m.csv")
    assert found.format == "csv" and points(found) == {1: 2.5, 3: 2.25}
    found = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n{"step": 3, "loss": NaN}\n')
    assert points(found)[1] == 2.5 and list(points(found)) == [1, 3] and np.isnan(points(found)[3])


def test_sub_losses_and_validation_are_other_series(tmp_path: Path) -> None:
    row = "Epoch(train) [{}][{:3d}/3] lr: 1e-4 eta: 0:01:00 loss: {} loss_cls: 0.5 grad_norm: nan\n"
    text = "".join(row.format(epoch, i, epoch * 10 + i) for epoch in (1, 2) for i in (1, 2, 3))
    found = read(tmp_path, text)
    assert found.format == "mmengine" and points(found) == {1: 11, 2: 12, 3: 13, 4: 21, 5: 22, 6: 23}
    assert np.isnan(list(points(found, "grad_norm").values())).all()
    assert {"loss", "loss_cls", "grad_norm", "lr"} <= set(found.series) and "eta" not in found.series


def test_wrapped_numbers_and_a_negative_policy_loss(tmp_path: Path) -> None:
    row = "(TaskRunner pid=1) step:{} - actor/pg_loss:np.float64(-0.0{}) - actor/grad_norm:0.5 - perf/time:3.5\n"
    found = read(tmp_path, "".join(row.format(n, n) for n in (1, 2, 3)))
    assert found.format == "verl" and points(found) == {1: -0.01, 2: -0.02, 3: -0.03}


def test_a_users_pattern_names_step_and_series(tmp_path: Path) -> None:
    text = "".join(f"it {n}: L={9 / n} g=nan\n" for n in range(1, 4))
    found = read(tmp_path, text)
    assert found.format is None and not found.series and any("--pattern" in note for note in found.notes)
    found = read(tmp_path, text, pattern=r"it (?P<step>\d+): L=(?P<loss>\S+) g=(?P<grad_norm>\S+)")
    assert points(found) == {1: 9.0, 2: 4.5, 3: 3.0} and np.isnan(points(found, "grad_norm")[1])
    assert points(read(tmp_path, text, pattern=r"L=(?P<loss>\S+)")) == {1: 9.0, 2: 4.5, 3: 3.0}
    for wrong in ("(", r"loss (\d+)", r"(?P<step>\d+)"):
        with pytest.raises(UsageError, match="--pattern"):
            read(tmp_path, text, pattern=wrong)


def event(step: int, value: float) -> bytes:
    """One scalar event in the TFRecord framing of an event file, without checksums that anybody checks."""
    summary_value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(summary_value)]) + summary_value
    body = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<Q", len(body)) + b"\0" * 4 + body + b"\0" * 4


def test_event_files_of_a_folder_are_one_log(tmp_path: Path) -> None:
    head = b"\x09" + b"\0" * 8 + b"\x1a\x0dbrain.Event:2"
    start = struct.pack("<Q", len(head)) + b"\0" * 4 + head + b"\0" * 4
    (tmp_path / "events.out.tfevents.1").write_bytes(start + event(1, 2.5) + event(2, 2.0))
    (tmp_path / "events.out.tfevents.2").write_bytes(start + event(3, 1.5) + event(4, 1.0)[:-9])
    found = read_curves(tmp_path)
    assert found.format == "tensorboard" and points(found) == {1: 2.5, 2: 2.0, 3: 1.5}


@pytest.mark.parametrize("name", ["nowhere.log", ".", "bytes.bin"])
def test_what_cannot_be_read_is_an_error_and_no_empty_curve(tmp_path: Path, name: str) -> None:
    (tmp_path / "bytes.bin").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(UnreadableError):
        read_curves(tmp_path / name)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_read_with_anything_but_a_log_or_an_error(tmp_path_factory: Factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "log"
    path.write_bytes(data)
    with contextlib.suppress(UnreadableError):
        assert read_curves(path).path == str(path)


def test_memory_grows_with_the_points_and_not_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.log.gz"
    chatter = ("some rank says something of no interest at all, again and again " * 3 + "\n") * 500
    with gzip.open(path, "wt", compresslevel=1) as log:
        for n in range(1, 201):
            log.write(MEGATRON.format(n, 5.0) + "\n" + chatter)  # 19 MB
    tracemalloc.start()
    found = read_curves(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(points(found)) == 200 and peak < 12 * 2**20
