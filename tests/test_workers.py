"""Workers change how long a comparison takes, never what it says; what goes wrong in one is said in one line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from handmade import forward, tensor, write

from precdiag.compare import compare
from precdiag.document import comparison_document
from precdiag.errors import PrecdiagError, UsageError
from precdiag.judge import Policy
from precdiag.reading import LARGE_BYTES, read_pair
from precdiag.report import comparison_text, json_text
from precdiag.workers import Resources, each

Real = Callable[[str], Path]


def said(baseline: Path, candidate: Path, resources: Resources, policy: Policy | None = None, limit: int = 1000) -> str:
    """Everything that a comparison says, as JSON and as a table."""
    result = compare(baseline, candidate, policy or Policy(), None, limit, resources=resources)
    return json_text(comparison_document(result)) + comparison_text(result)


@pytest.mark.parametrize("policy", [Policy(), Policy(max_rel=0.5)], ids=["bitwise", "band"])
@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [("ddp/A", "ddp/C"), ("ddp/A", "ddp/A"), ("unfinished/none", "unfinished/kill")],
)
def test_one_worker_and_several_say_the_same(real: Real, baseline: str, candidate: str, policy: Policy) -> None:
    sides = [real(side.partition("/")[0]) / side.partition("/")[2] for side in (baseline, candidate)]
    for limit in (2, 1000):
        alone = said(*sides, Resources(), policy, limit)
        assert said(*sides, Resources(3), policy, limit) == alone


def test_tensors_are_compared_alike_by_several_workers(real: Real, tmp_path: Path) -> None:
    for side in ("A", "C"):
        source = next((real("dumps") / "26.2.0" / "tensor-L1" / side / "step0").iterdir())
        for rank in range(2):
            shutil.copytree(source, tmp_path / side / "step0" / f"rank{rank}")
    alone = said(tmp_path / "A", tmp_path / "C", Resources())
    assert "bytes" in alone
    assert said(tmp_path / "A", tmp_path / "C", Resources(2)) == alone


def ranks(folder: Path, count: int, differing: tuple[int, ...], steps: int = 1) -> tuple[Path, Path]:
    """Runs of several ranks and steps, in which some ranks differ from step 0 on and their weights from step 1 on."""
    for side in ("baseline", "candidate"):
        for step in range(steps):
            for rank in range(count):
                here = side == "candidate" and rank in differing and step > 0
                weight = tensor(high=2.0 if here else 1.0, grad=True)
                data = {
                    f"Functional.linear.{at}.forward": forward([tensor(-at), weight], [tensor(at + here)])
                    for at in range(4)
                } | {"Functional.linear.0.backward": {"input": [tensor()], "output": [tensor()]}}
                write(folder / side / f"step{step}" / f"rank{rank}", data)
    return folder / "baseline", folder / "candidate"


def test_an_update_is_told_from_a_parameter_whatever_step_was_read_first(tmp_path: Path) -> None:
    sides = ranks(tmp_path, 3, (1,), steps=3)
    result = compare(*sides, Policy(), resources=Resources(4))
    assert result.cause is not None
    assert (result.cause.row.step, result.cause.row.rank, result.cause.row.kind) == (1, 1, "update")
    for limit in (1, 3, 1000):
        assert said(*sides, Resources(4), limit=limit) == said(*sides, Resources(), limit=limit)


def test_large_sides_are_read_at_the_same_time_and_come_out_alike(tmp_path: Path) -> None:
    data = {f"Torch.a.{at}.forward": forward([tensor(-at - 1.0)], [tensor(at + 1.0)]) for at in range(24_000)}
    (tmp_path / "a").mkdir()
    folder = write(tmp_path / "a", data, stack={name: [f"File x.py, line {at}, in f"] for at, name in enumerate(data)})
    assert (folder / "dump.json").stat().st_size > LARGE_BYTES
    shutil.copytree(folder, tmp_path / "b")
    changed = (tmp_path / "b" / "dump.json").read_text().replace('"Min": 20001.0', '"Min": 20001.5')
    (tmp_path / "b" / "dump.json").write_text(changed)
    alone = said(tmp_path / "a", tmp_path / "b", Resources())
    assert "Torch.a.20000.forward.output.0" in alone
    assert said(tmp_path / "a", tmp_path / "b", Resources(2)) == alone


def test_a_side_that_cannot_be_read_is_the_same_error_in_a_process_of_its_own(tmp_path: Path) -> None:
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "dump.json").write_bytes(b'{"data": {' + b" " * (LARGE_BYTES + 1))
    assert said(tmp_path / "a", tmp_path / "b", Resources(2)) == said(tmp_path / "a", tmp_path / "b", Resources())


def test_an_error_of_the_work_is_raised_as_it_is(tmp_path: Path) -> None:
    sides = ranks(tmp_path, 3, (1,))
    for resources in (Resources(), Resources(2)):
        with pytest.raises(UsageError, match="need tensors") as raised:
            compare(*sides, Policy(max_ulp=1), resources=resources)
        assert raised.value.hint is not None and "--task tensor" in raised.value.hint


def end_at(doomed: int, unit: int, resources: Resources) -> int:
    if unit == doomed:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit * unit


def test_a_worker_that_is_killed_is_one_line_not_a_wait() -> None:
    assert list(each(partial(end_at, -1), range(5), Resources(2))) == [0, 1, 4, 9, 16]
    with pytest.raises(PrecdiagError, match="ended from outside") as raised:
        list(each(partial(end_at, 3), range(5), Resources(2)))
    assert raised.value.hint is not None and "--workers 1" in raised.value.hint


def leave_a_mark(folder: Path, unit: int, resources: Resources) -> int:
    (folder / str(unit)).touch()
    time.sleep(0.05)
    return unit


def test_what_nobody_waits_for_is_not_begun(tmp_path: Path) -> None:
    results = each(partial(leave_a_mark, tmp_path), range(200), Resources(2))
    assert next(results) == 0
    results.close()
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 20


def test_progress_counts_steps_and_ranks(tmp_path: Path) -> None:
    sides = ranks(tmp_path, 3, ())
    for resources in (Resources(), Resources(2)):
        calls: list[tuple[str, int, int]] = []
        compare(*sides, Policy(), None, 1000, lambda *call: calls.append(call), resources)  # noqa: B023
        assert calls == [("steps and ranks", 1, 3), ("steps and ranks", 2, 3), ("steps and ranks", 3, 3)]


def test_what_is_told_to_the_workers_ends_with_the_command(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfrom precdiag.workers import Resources, each\n"
        "def work(unit, resources):\n    os.write(1, f'{os.getpid()}\\n'.encode())\n    time.sleep(60)\n"
        "list(each(work, range(2), Resources(2)))\n"
    )
    (tmp_path / "slow.py").write_text(script)
    with subprocess.Popen([sys.executable, str(tmp_path / "slow.py")], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 20
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, children))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_both_dumps_of_a_pair_may_be_read_by_one_process(real: Real) -> None:
    from precdiag.layout import open_run

    parts = [open_run(real("ddp") / side).parts[0] for side in ("A", "C")]
    left, right = read_pair(parts[0], parts[1], Resources(8))
    assert (left.part, right.part) == tuple(parts)
