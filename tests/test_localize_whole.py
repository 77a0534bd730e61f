"""Healthy curves are no pass for dumps beside them that were not looked at, and options that do nothing are refused."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from curves import falling
from handmade import forward, tensor, write
from test_cli import precdiag
from test_localize import document

from precdiag.cli import main

Refused = Callable[..., str]

NAN_OUT = forward([tensor(-1, 1)], [tensor(math.nan, math.nan)])


@pytest.fixture
def logs(tmp_path: Path) -> list[object]:
    """Two equal healthy logs, as options."""
    rows = "".join(json.dumps({"step": n, "loss": x}) + "\n" for n, x in enumerate(falling(30, noise=0), 1))
    for name in ("good", "bad"):
        (tmp_path / name).write_text(rows)
    return ["--candidate-log", tmp_path / "bad", "--baseline-log", tmp_path / "good"]


def dumps(folder: Path, steps: int = 2) -> Path:
    """A dump of equal, finite steps."""
    for step in range(steps):
        call = {f"Torch.log.{step}.forward": forward([tensor(1, 2)], [tensor(0, 1)])}
        write(folder / f"step{step}" / "rank0", call)
    return folder


def test_healthy_curves_and_whole_dumps_are_healthy(tmp_path: Path, logs: list[object]) -> None:
    both = ["--candidate", dumps(tmp_path / "c"), "--baseline", dumps(tmp_path / "b")]
    assert document(*logs, *both, status=0)["verdict"] == "healthy"
    assert document(*logs, "--candidate", tmp_path / "c", status=0)["verdict"] == "healthy"


@pytest.mark.parametrize("alone", [False, True])
def test_a_step_that_cannot_be_read_is_no_health(tmp_path: Path, logs: list[object], alone: bool) -> None:
    file = dumps(tmp_path / "c") / "step1" / "rank0" / "dump.json"
    file.write_bytes(file.read_bytes()[:-40])
    words = ["--candidate", tmp_path / "c"] + ([] if alone else ["--baseline", dumps(tmp_path / "b")])
    found = document(*logs, *words, status=2)
    assert (found["verdict"], found["step"]) == ("incomplete", None)
    assert any("cut short" in note for note in found["notes"])
    assert precdiag("localize", *logs, *words).stdout.startswith("INCOMPLETE\n")


def test_steps_of_one_side_alone_are_no_health(tmp_path: Path, logs: list[object]) -> None:
    both = ["--candidate", dumps(tmp_path / "c", 2), "--baseline", dumps(tmp_path / "b", 3)]
    found = document(*logs, *both, status=2)
    assert found["verdict"] == "incomplete" and found["notes"] == [
        "dumped on one side alone, and not looked at: step 2"
    ]
    found = document(*logs, "--baseline", tmp_path / "b", status=2)
    assert found["verdict"] == "incomplete" and found["notes"][0].startswith("no dump was looked at")


def test_a_nan_that_only_the_dump_shows_is_named_below_healthy_curves(tmp_path: Path, logs: list[object]) -> None:
    write(dumps(tmp_path / "c") / "step2" / "rank0", {"Torch.sqrt.0.forward": NAN_OUT})
    found = document(*logs, "--candidate", tmp_path / "c")
    assert (found["verdict"], found["step"]) == ("nan", 3)
    assert found["first_cause"]["name"] == "Torch.sqrt.0.forward.output.0"
    assert found["signals"][0]["what"].startswith("the dump is not finite although the curves do not show it")


def test_a_dump_that_cannot_be_read_is_not_said_to_hold_no_nan(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": NaN}\n')
    file = dumps(tmp_path / "c", 1) / "step0" / "rank0" / "dump.json"
    file.write_bytes(file.read_bytes()[:-40])
    notes = document("--candidate-log", tmp_path / "log", "--candidate", tmp_path / "c")["notes"]
    assert "the dumps could be looked at for NaN and Inf only in part" in notes
    assert "no NaN or Inf in the dumps" not in notes


def test_a_log_whose_rest_is_damaged_is_no_health(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"step": n, "loss": x}) + "\n" for n, x in enumerate(falling(20_000, noise=0.01), 1))
    packed = gzip.compress(rows.encode())
    (tmp_path / "log.gz").write_bytes(packed[: len(packed) // 2])
    found = document("--candidate-log", tmp_path / "log.gz", status=2)
    assert found["verdict"] == "incomplete" and found["curve"]["points"] > 1000
    assert any("the gzip stream is cut off" in note for note in found["notes"])
    run = precdiag("nan", dumps(tmp_path / "c"), "--log", tmp_path / "log.gz")
    assert run.returncode == 2 and "read only in part" in run.stdout


# -- options


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Run the command here and return what it says, which is one line and a hint, with status 2."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["precdiag", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (2, "")
        assert printed.err.startswith("precdiag: ") and len(printed.err.splitlines()) <= 2
        return printed.err

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "x"], "--out goes with --run"),
        (["--float32", "--fp32"], "--float32 goes with --run"),
        (["--timeout", "5"], "--timeout goes with --run"),
        (["--max-bytes", "5"], "--max-bytes goes with --run"),
        (["--plot", "--format", "json"], "--plot draws for a terminal"),
        (["--list-series", "--series", "loss"], "--list-series prints every curve"),
        (["--list-series", "--run"], "--list-series prints every curve"),
        (["--continue", "x"], "--continue goes on with what its search began with"),
        (["--continue", "x", "--run"], "--continue goes on with what its search began with"),
    ],
)
def test_an_option_that_does_nothing_here_is_refused(
    logs: list[object], words: list[str], said: str, refused: Refused
) -> None:
    assert said in refused("localize", *logs, *words)


def test_the_same_log_for_both_sides_is_refused(tmp_path: Path, logs: list[object], refused: Refused) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "good")
    both = ["--candidate-log", tmp_path / "link", "--baseline-log", tmp_path / "good"]
    assert "are the same file" in refused("localize", *both)


def test_a_file_in_place_of_a_collection_is_named(tmp_path: Path, logs: list[object], refused: Refused) -> None:
    said = refused("localize", tmp_path / "good")
    assert "a file, not a folder" in said and "--candidate-log" in said


def test_a_pattern_needs_the_log_it_reads(tmp_path: Path, refused: Refused) -> None:
    assert "--pattern reads --log" in refused("nan", dumps(tmp_path / "c"), "--pattern", "loss (?P<loss>.*)")


def test_a_pattern_that_matches_nothing_is_said_to(tmp_path: Path, logs: list[object]) -> None:
    found = document(*logs[:2], "--pattern", r"loss=(?P<loss>\S+)", status=2)
    assert found["notes"][0] == r"--pattern 'loss=(?P<loss>\S+)' matches no row"
