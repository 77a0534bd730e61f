"""The arbiter and its reproduction, on real dumps of many functions and modules, each side wrong in turn."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from handmade import forward, scalar, tensor, write

from precdiag.align import pair
from precdiag.arbiter import BASELINE, BOTH, CANDIDATE, NEITHER, Ruling, arbitrate, distance, ruling_of
from precdiag.compare import compare
from precdiag.dump import Dump, read_dump
from precdiag.errors import PrecdiagError, UsageError
from precdiag.judge import Judged, Policy, Scrutiny, judge
from precdiag.layout import open_run
from precdiag.relative import roundoff
from precdiag.replay import rebuild, run
from precdiag.repro import script_of, write_repro
from precdiag.rows import OUTPUT

SCRIPT = Path(__file__).parent / "data" / "scripts" / "functions.py"
DTYPES = ("float32", "float16", "bfloat16")
FUNCTIONS = {
    *("linear", "conv1d", "conv2d", "matmul", "bmm", "addmm", "scaled_dot_product_attention", "softmax", "log_softmax"),
    *("layer_norm", "gelu", "silu", "relu", "softplus", "sigmoid", "tanh", "exp", "log", "rsqrt", "pow"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "sum", "mean", "masked_fill", "embedding", "cross_entropy"),
    *("mse_loss", "Embedding", "Linear", "LayerNorm", "GELU", "MSELoss"),
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dump a dtype of every function, as this machine computes it."""
    out = tmp_path_factory.mktemp("functions")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), *DTYPES],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wrong(right: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dumps with a quarter too much in everything that was computed, forward and backward."""
    out = tmp_path_factory.mktemp("wrong") / "functions"
    shutil.copytree(right, out)
    for file in out.rglob("*.pt"):
        if ".output." in file.name or ".parameters_grad." in file.name:
            tensor = torch.load(file)
            if tensor.is_floating_point():
                torch.save((tensor * 1.25).to(tensor.dtype), file)
    return out


def dump_of(folder: Path) -> Dump:
    return read_dump(open_run(folder).parts[0])


def judged(baseline: Path, candidate: Path) -> Judged:
    left, right = dump_of(baseline), dump_of(candidate)
    return judge(left, right, pair(left, right), Policy())


def rulings(pair_of_dumps: Judged) -> Iterator[tuple[str, str, Ruling]]:
    """Operation, phase and ruling of every output that can be ruled on."""
    dump = pair_of_dumps.baseline
    u, calls = roundoff(dump.rows["dtype"]), dump.rows["call"].cat.codes.to_numpy()
    for line, at in enumerate(pair_of_dumps.rows["baseline"].tolist()):
        if dump.rows["io"].iat[at] != OUTPUT or np.isnan(u[at]):
            continue
        coarsest = float(np.nanmax(u[calls == calls[at]]))
        ruling = arbitrate(pair_of_dumps, line, coarsest)
        if ruling is not None:
            call = dump.calls.iloc[calls[at]]
            yield str(call["operation"]), str(call["phase"]), ruling


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_side_that_is_off_is_named_for_every_function_forward_and_backward(
    right: Path, wrong: Path, dtype: str
) -> None:
    for baseline, candidate, expected in ((right, right, NEITHER), (right, wrong, CANDIDATE), (wrong, right, BASELINE)):
        seen: dict[str, set[str]] = {}
        for operation, phase, ruling in rulings(judged(baseline / dtype, candidate / dtype)):
            assert ruling.off == expected, (operation, phase, ruling)
            seen.setdefault(operation, set()).add(phase)
        assert set(seen) >= FUNCTIONS
        both_ways = {name for name, phases in seen.items() if {"forward", "backward"} <= phases}
        assert len(both_ways) >= 30 and "parameters_grad" in seen["Linear"]


def test_two_errors_within_a_factor_of_two_are_both_off_or_both_within_rounding() -> None:
    assert ruling_of(0.03, 0.05, 0.01).off == BOTH
    assert ruling_of(0.002, 0.009, 0.01).off == NEITHER
    assert ruling_of(0.02, 0.05, 0.01).off == CANDIDATE
    assert ruling_of(0.05, 0.02, 0.01).off == BASELINE
    assert ruling_of(0.001, math.nan, 0.01).off == CANDIDATE


def test_infinities_at_the_same_places_are_no_error_and_elsewhere_an_infinite_one() -> None:
    exact = torch.tensor([1.0, -math.inf])
    assert distance(exact, torch.tensor([1.0, -math.inf])) == 0
    assert distance(exact, torch.tensor([1.0, 2.0])) == math.inf


def test_a_sum_that_cancels_is_allowed_what_its_inputs_own_rounding_makes_of_it(tmp_path: Path, right: Path) -> None:
    dump = dump_of(right / "float32")
    call = rebuild(dump, "Functional.linear.0.forward")
    exact = run(call, torch.float64)["output.0"]
    assert exact.dtype == torch.float64 and exact.shape == call.outputs["output.0"].shape
    assert float((exact - call.outputs["output.0"]).norm()) > 0


def test_the_arbiter_decides_which_row_is_beyond_rounding_and_can_be_left_out(right: Path, wrong: Path) -> None:
    policies = Policy(), Policy(scrutiny=Scrutiny(arbiter=False))
    bases = []
    for policy in policies:
        rounding = compare(right / "float32", wrong / "float32", policy).rounding
        assert rounding is not None and rounding.beyond is not None
        bases.append((rounding.beyond.basis, rounding.beyond.ruling is not None))
    assert bases == [("arbiter", True), ("estimate", False)]


# Forward of a function, its last operation backward, a module backward, a parameter's gradient.
REPRODUCED = (
    "Functional.layer_norm.0.forward",
    "Functional.gelu.1.backward",
    "Module.fc.Linear.backward.0",
    "Module.norm.LayerNorm.parameters_grad.0",
)


@pytest.mark.parametrize("name", REPRODUCED)
def test_a_reproduction_runs_with_torch_alone_and_shows_who_is_off(
    right: Path, wrong: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "repro"
    script = write_repro(folder, dump_of(right / "bfloat16"), dump_of(wrong / "bfloat16"), (name, name))
    assert "precdiag" not in script.read_text(encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-I", str(script), "cpu"], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    lines = [line.split() for line in shown.splitlines()]
    errors = {side: [float(words[3]) for words in lines if words[0] == side] for side in ("baseline", "candidate")}
    again = [float(words[6]) for words in lines]
    assert lines and max(errors["baseline"]) < 2**-7 and min(errors["candidate"]) > 0.2
    assert max(again) < 2**-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_function_that_can_be_replayed_can_be_reproduced(right: Path, dtype: str) -> None:
    dump = dump_of(right / dtype)
    for name in dump.calls["name"]:
        if str(name).startswith("Functional") and "group_norm" not in name:
            compile(script_of(name, rebuild(dump, name)), "repro.py", "exec")


def test_a_folder_in_use_is_never_written_into(right: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    dump = dump_of(right / "float32")
    with pytest.raises(UsageError, match="in use"):
        write_repro(tmp_path, dump, dump, ("Functional.gelu.0.forward", "Functional.gelu.0.forward"))
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("Functional.nothing.0.forward", "was not dumped"), ("Functional.dropout.0.forward", "no plain function")],
)
def test_what_is_no_plain_function_is_refused_with_what_is(tmp_path: Path, name: str, why: str) -> None:
    entry = {"Functional.dropout.0.forward": forward([tensor(), scalar(0.5)], [tensor()])}
    dump = dump_of(write(tmp_path / "dump", entry))
    with pytest.raises(PrecdiagError, match=why):
        write_repro(tmp_path / "new", dump, dump, (name, name))
    assert not (tmp_path / "new").exists()
