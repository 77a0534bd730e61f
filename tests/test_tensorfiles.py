"""Many tensor files are compared without torch, in any number of processes alike, and --first stops in time."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from handmade import forward, tensor, write

from precdiag import tensorfiles
from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.errors import UsageError
from precdiag.judge import Policy
from precdiag.tensorfiles import FilePair, compare_all, is_same_archive
from precdiag.tensors import TensorPair, compare_files
from precdiag.workers import Resources

Real = Callable[[str], Path]
SAME = TensorPair("equal", reason="told by bytes")


def saved(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def twins(folder: Path, content: object) -> tuple[Path, Path]:
    return saved(folder / "a" / "x.pt", content), saved(folder / "b" / "x.pt", content)


@pytest.mark.parametrize("elements", [0, 1, 3, 1000, (1 << 18) + 5, 3 << 18])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex64, torch.bool])
def test_the_same_tensor_saved_twice_is_told_by_its_bytes(tmp_path: Path, elements: int, dtype: torch.dtype) -> None:
    left, right = twins(tmp_path, torch.arange(elements).to(dtype))
    assert is_same_archive(left, right)
    assert compare_files(left, right).state == "equal"


@pytest.mark.parametrize("at", [0, 1, 70_000, 262_143, 262_144, 299_999])
def test_one_byte_anywhere_is_seen(tmp_path: Path, at: int) -> None:
    values = torch.zeros(300_000, dtype=torch.uint8)
    left, _ = twins(tmp_path, values)
    values[at] = 1
    assert not is_same_archive(left, saved(tmp_path / "b" / "x.pt", values))


@pytest.mark.parametrize(
    "content",
    [
        {"a": torch.zeros(3)},
        [1, 2],
        torch.nn.Parameter(torch.zeros(3)),
        torch.zeros(3).to_sparse(),
        torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    ],
    ids=["dict", "list", "parameter", "sparse", "quantized"],
)
def test_equal_files_of_anything_but_a_plain_tensor_are_left_to_torch(tmp_path: Path, content: object) -> None:
    assert not is_same_archive(*twins(tmp_path, content))


def test_equal_files_that_are_cut_empty_or_missing_are_never_equal(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a" / "x.pt", torch.arange(1000.0)).read_bytes()
    for length in (0, 10, 100, len(whole) // 2, len(whole) - 1):
        pair = []
        for side in ("a", "b"):
            saved(tmp_path / side / "x.pt", 0).write_bytes(whole[:length])
            pair.append(tmp_path / side / "x.pt")
        assert not is_same_archive(*pair), length
        assert next(compare_all([FilePair(*pair, SAME)], 1000, Resources())).state == "unknown"
    assert not is_same_archive(tmp_path / "no.pt", tmp_path / "no.pt")
    objects = tmp_path / "o.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    assert next(compare_all([FilePair(objects, objects, SAME)], 1, Resources())).state == "unknown"


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_from_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(tensorfiles, "WORTH_PROCESSES_ELEMENTS", 0)
    pairs = []
    for at in range(70):
        values = torch.zeros(8)
        left = saved(tmp_path / "a" / f"{at}.pt", values)
        values[0] = at % 3
        pairs.append(FilePair(left, saved(tmp_path / "b" / f"{at}.pt", values), SAME))
    found = list(compare_all(pairs, 70 * 8, Resources(workers)))
    assert [one.metrics.max_abs if one.metrics else one.reason for one in found] == [
        at % 3 or "told by bytes" for at in range(70)
    ]


@pytest.mark.parametrize("candidate", ["B", "C"])
def test_dumps_are_compared_alike_where_there_is_no_torch(real: Real, candidate: str) -> None:
    folder = real("dumps") / "26.2.0" / "tensor-L1"
    documents = []
    for without in ("import sys\nsys.modules['torch'] = None\n", ""):
        code = f"{without}from precdiag.cli import main\nmain()"
        command = [sys.executable, "-c", code, "compare", str(folder / "A"), str(folder / candidate)]
        ended = subprocess.run(
            [*command, "--format", "json", "--no-arbiter"], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (int(candidate == "C"), "")
        documents.append(json.loads(ended.stdout))
    assert documents[0] == documents[1]
    assert documents[0]["evidence"] == "bytes"


def test_torch_is_imported_only_to_replay_calls(real: Real) -> None:
    folder = real("dumps") / "26.2.0" / "tensor-L1"
    code = (
        "import sys\nfrom precdiag.cli import app\n"
        "try:\n    app()\nfinally:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    for candidate, options, imported in (("B", [], "False"), ("C", ["--no-arbiter"], "False"), ("C", [], "True")):
        command = [sys.executable, "-c", code, "compare", str(folder / "A"), str(folder / candidate), *options]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.stderr.strip() == imported


def test_the_command_that_ends_at_once_has_written_everything(real: Real) -> None:
    """With torch imported the process is not taken down in order (__main__.run)."""
    folder = real("dumps") / "26.2.0" / "tensor-L1"
    command = [sys.executable, "-m", "precdiag", "compare", str(folder / "A"), str(folder / "C"), "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr, document["verdict"]) == (1, "", "diverged")
    assert any(jump["arbiter"] for jump in document["jumps"])


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_leave_the_status(real: Real, closed: str) -> None:
    folder = real("dumps") / "26.2.0" / "tensor-L1"
    for candidate, status in (("B", 0), ("C", 1), ("none", 2)):
        words = [sys.executable, "-m", "precdiag", "compare", str(folder / "A"), str(folder / candidate)]
        ended = subprocess.run(f"{shlex.join(words)} {closed}", shell=True, capture_output=True, text=True, check=False)
        assert ended.returncode == status
        assert "Traceback" not in ended.stderr


# -- --first


def tensor_run(folder: Path, calls: int, changed: dict[str, dict[int, float]], step: int = 0) -> tuple[Path, Path]:
    """Two tensor dumps of a chain of calls; `changed`: by side, what is added to the output of which call."""
    for side in ("baseline", "candidate"):
        target = folder / side / f"step{step}" / "rank0"
        data = {}
        for at in range(calls):
            added = changed.get(side, {}).get(at, 0.0)
            names = [f"Torch.op.{at}.forward.{place}.0.pt" for place in ("input", "output")]
            for name, value in zip(names, (1.0 * at, 1.0 * at + 1 + added), strict=True):
                saved(target / "dump_tensor_data" / name, torch.full((4,), value))
            ends = [(1.0 * at,) * 2, (1.0 * at + 1 + added,) * 2]
            rows = [tensor(*end, shape=(4,), data_name=name) for end, name in zip(ends, names, strict=True)]
            data[f"Torch.op.{at}.forward"] = forward(rows[:1], rows[1:])
        write(target, data, task="tensor")
    return folder / "baseline", folder / "candidate"


def first(*sides: Path, workers: int = 1) -> Comparison:
    return compare(*sides, Policy(), resources=Resources(workers), first=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_first_names_the_same_cause_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(tensorfiles, "WORTH_PROCESSES_ELEMENTS", 0)
    sides = tensor_run(tmp_path, 100, {"candidate": {40: 0.5, 60: 0.5}})
    whole = compare(*sides, Policy())
    found = first(*sides, workers=workers)
    assert found.cause is not None and whole.cause is not None
    assert (found.cause.row, found.cause.why) == (whole.cause.row, whole.cause.why)
    assert (found.verdict, found.exit_code) == ("diverged", 1)
    assert found.coverage.compared == 82 and found.coverage.unknown == 118
    assert any("118 rows could not be judged: behind the first difference" in note for note in found.notes)


def test_first_reads_no_file_behind_the_cause(tmp_path: Path) -> None:
    sides = tensor_run(tmp_path, 10, {"candidate": {3: 0.5}})
    for side in sides:
        for at in range(4, 10):
            (side / "step0/rank0/dump_tensor_data" / f"Torch.op.{at}.forward.output.0.pt").write_bytes(b"broken")
    assert first(*sides).cause is not None
    assert any("cannot be read" in note for note in compare(*sides, Policy()).notes)
    assert not any("cannot be read" in note for note in first(*sides).notes)


def test_first_finds_nothing_in_equal_runs_and_looks_at_all_of_them(tmp_path: Path) -> None:
    result = first(*tensor_run(tmp_path, 10, {}))
    assert (result.verdict, result.exit_code, result.coverage.unknown) == ("no-divergence", 0, 0)


def test_first_stops_behind_the_step_that_differs(tmp_path: Path) -> None:
    for step, changed in enumerate(({}, {"candidate": {2: 1.0}}, {"candidate": {0: 1.0}})):
        sides = tensor_run(tmp_path, 4, changed, step)
    result = first(*sides)
    assert result.cause is not None and result.cause.row.step == 1
    assert [part.baseline.step for part in result.parts] == [0, 1]
    assert any("1 later steps and ranks were not looked at" in note for note in result.notes)
    assert result.exit_code == 1


def test_first_passes_over_what_proves_nothing(real: Real, tmp_path: Path) -> None:
    """An uninitialised buffer that differs is no cause: what stands behind it is looked at."""
    sides = tensor_run(tmp_path, 4, {"candidate": {1: 1.0, 3: 0.25}})
    for side in sides:
        path = side / "step0" / "rank0" / "dump.json"
        path.write_text(path.read_text().replace('Torch.op.1.forward"', 'Torch.empty.1.forward"'))
    result = first(*sides)
    assert result.cause is not None and result.cause.row.call == "Torch.op.3.forward"


def test_first_agrees_with_the_whole_comparison_on_real_dumps(real: Real, tmp_path: Path) -> None:
    pairs = [
        (real("dumps") / "26.2.0" / "tensor-L1" / "A", real("dumps") / "26.2.0" / "tensor-L1" / "C"),
        (real("dumps") / "26.2.0" / "tensor-mix" / "A", real("dumps") / "26.2.0" / "tensor-mix" / "C"),
        (real("falsepass") / "tensor" / "A", real("falsepass") / "tensor" / "C"),
    ]
    for sides in pairs:
        whole, found = compare(*sides, Policy()), first(*sides)
        assert whole.cause is not None and found.cause is not None
        assert (found.cause.row, found.verdict) == (whole.cause.row, whole.verdict)


def test_first_with_a_band_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which a band may allow"):
        compare(*tensor_run(tmp_path, 2, {}), Policy(max_abs=1.0), first=True)


def test_a_renamed_file_of_the_same_tensor_is_left_to_torch_and_equal(tmp_path: Path) -> None:
    left = saved(tmp_path / "one.pt", torch.arange(9.0))
    right = saved(tmp_path / "another.pt", torch.arange(9.0))
    assert not is_same_archive(left, right)
    assert next(compare_all([FilePair(left, right, SAME)], 9, Resources())) == compare_files(left, right)
    shutil.copy(left, right)
    assert is_same_archive(left, right)
