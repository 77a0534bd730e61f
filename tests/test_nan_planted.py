"""Planted faults under the real msprobe: the origin is exact, forward, backward, in place and on two ranks."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from precdiag.parts import Selection
from precdiag.survey import Survey, survey

SCRIPTS = Path(__file__).parent / "data" / "scripts"
# How many uses of infinity masks.py holds, and those that hold none that is dumped.
HEALTHY_USES, WITHOUT_INFINITY = 27, 3
HEALTHY = None
Expected = dict[str, tuple[str, str, str] | None]

ATTENTION: Expected = {
    "healthy": HEALTHY,
    "added mask": HEALTHY,
    "mask in place": HEALTHY,
    "embedding scaled by inf": ("Tensor.__mul__.0.forward.input.1", "argument", "inf"),
    "setitem": ("Tensor.__setitem__.0.forward.input.2", "argument", "nan"),
    "setitem of a tensor": ("Torch.log.0.forward.output.0", "generated", "nan"),
    "fill": ("Tensor.fill_.0.forward.input.1", "argument", "nan"),
    "data written behind the hooks": ("Tensor.__setitem__.0.forward.input.2", "input", "nan"),
    "numpy write": ("Torch.sin.0.forward.input.0", "between calls", "inf"),
    "scores overflow": ("Torch.exp.0.forward.output.0", "generated", "inf"),
    "fully masked row": ("Torch.softmax.0.forward.output.0", "generated", "nan"),
    "mask times infinity": ("Tensor.__mul__.0.forward.input.1", "argument", "-inf"),
    "log of a negative": ("Torch.log.0.forward.output.0", "generated", "nan"),
    "sqrt of a negative": ("Tensor.sqrt.0.forward.output.0", "generated", "nan"),
    "division by zero": ("Tensor.__truediv__.1.forward.output.0", "generated", "inf"),
    "zero over zero": ("Torch.div.0.forward.output.0", "generated", "nan"),
    "in-place division": ("Tensor.div_.0.forward.output.0", "generated", "inf"),
    "where": ("Torch.sqrt.0.backward.output.0", "generated", "nan"),
    "sqrt at zero": ("Torch.sqrt.0.backward.output.0", "generated", "inf"),
    "killed by nan_to_num": ("Torch.log.0.forward.output.0", "generated", "nan"),
    "a mask that reaches a sum": ("Tensor.masked_fill.1.forward.input.2", "argument", "-inf"),
    "every label ignored": ("Functional.cross_entropy.0.forward.output.0", "generated", "nan"),
    "loss scaled into overflow": ("Tensor.__mul__.0.forward.output.0", "generated", "inf"),
    "weight": ("Module.qkv.Linear.forward.0.parameters.weight", "parameter", "nan"),
}
EXPERTS: Expected = {
    "healthy": HEALTHY,
    "router all masked": ("Functional.softmax.0.forward.output.0", "generated", "nan"),
    "router entropy": ("Torch.log.0.forward.output.0", "generated", "-inf"),
    "normalised by zero": ("Tensor.__truediv__.0.forward.output.0", "generated", "nan"),
    "an expert without tokens": ("Torch.mean.0.forward.output.0", "generated", "nan"),
    "deviation of one token": ("Torch.std.0.forward.output.0", "generated", "nan"),
    "expert overflows": ("Torch.exp.0.forward.output.0", "generated", "inf"),
    "fp16 product overflows": ("Torch.matmul.0.forward.output.0", "generated", "inf"),
    "cast overflows": ("Tensor.__mul__.1.forward.input.0", "between calls", "inf"),
    "norm of zero": ("Tensor.pow.1.backward.output.0", "generated", "inf"),
    "power of a negative": ("Torch.pow.0.forward.output.0", "generated", "nan"),
    "inverse of a square root": ("Torch.rsqrt.0.forward.output.0", "generated", "inf"),
    "logarithm of one plus": ("Torch.log1p.0.forward.output.0", "generated", "nan"),
    "arc cosine": ("Torch.acos.0.forward.output.0", "generated", "nan"),
    "infinity minus infinity": ("Torch.exp.0.forward.output.0", "generated", "inf"),
    "autograd function": ("Tensor.__mul__.5.forward.input.1", "argument", "nan"),
    "data": ("Functional.linear.0.forward.input.0", "input", "nan"),
    "binary cross entropy of weights": ("Functional.nll_loss.0.forward.output.0", "generated", "nan"),
    "expert weight": ("Functional.linear.4.forward.input.1", "parameter", "inf"),
}
CONVOLUTION: Expected = {
    "loss scale": ("Torch.matmul.0.backward.output.0", "generated", "inf"),
    "healthy": HEALTHY,
    "max over minus infinity": HEALTHY,
    "group norm of a constant": ("Functional.group_norm.0.forward.output.0", "generated", "nan"),
    "in place by inf": ("Tensor.mul_.0.forward.input.1", "argument", "inf"),
    "clamp of nothing": ("Torch.reciprocal.0.forward.output.0", "generated", "inf"),
    "normalised without eps": ("Functional.normalize.0.forward.output.0", "generated", "nan"),
    "square root of the variance": ("Tensor.sqrt.0.backward.output.0", "generated", "-inf"),
    "image": ("Module.one.Conv2d.forward.0.input.0", "input", "inf"),
    "target": ("Tensor.__setitem__.0.forward.input.2", "argument", "nan"),
    "divergence": ("Functional.kl_div.0.forward.output.0", "generated", "nan"),
    "gradient hook": ("Tensor.__truediv__.0.forward.output.0", "generated", "inf"),
    "bias": ("Module.two.Conv2d.forward.0.parameters.bias", "parameter", "-inf"),
    "running mean": ("Functional.batch_norm.0.forward.input.1", "parameter", "nan"),
}
PARALLEL: Expected = {
    "healthy": HEALTHY,
    "broadcast from rank 0": ("Torch.log.0.forward.output.0", "generated", "nan"),
    "rank 1 before the reduction": ("Torch.sqrt.0.forward.output.0", "generated", "nan"),
    "reduction overflows": ("Distributed.all_reduce.0.forward.output.0", "generated", "inf"),
    "rank 0 behind the reduction": ("Torch.log.0.forward.output.0", "generated", "nan"),
    "both behind the reduction": ("Torch.acos.0.forward.output.0", "generated", "nan"),
    "rank 1 in the backward": ("Torch.sqrt.0.backward.output.0", "generated", "nan"),
    "replicas": HEALTHY,
    "replica of rank 1, backward": ("Torch.sqrt.0.backward.output.0", "generated", "nan"),
}
RANKS = {
    "broadcast from rank 0": 0,
    "rank 1 before the reduction": 1,
    "rank 0 behind the reduction": 0,
    "rank 1 in the backward": 1,
    "replica of rank 1, backward": 1,
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

Collect = Callable[..., Path]


def candidate(folder: Path, options: Sequence[str], words: Sequence[object]) -> Path:
    """Collect what Python runs with `words` as the candidate; return the side's folder."""
    collect = ("-m", "precdiag", "collect", "--out", folder / "run", "--quiet", "--side", "candidate", *options)
    command = map(str, (sys.executable, *collect, "--", sys.executable, *words))
    run = subprocess.run(list(command), capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stdout
    return folder / "run" / "candidate"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collect:
    """Collect a model with its faults, one process a rank and one fault a step; return the dump's folder."""

    @functools.cache
    def collect(model: str, *options: str) -> Path:
        faults = list(globals()[model.upper()])
        launcher = TORCHRUN if model == "parallel" else ()
        words = (*launcher, SCRIPTS / "planted.py", model, *faults)
        return candidate(tmp_path_factory.mktemp(model), (*options, "--step", f"0-{len(faults) - 1}"), words) / "dump"

    return collect


def named(found: Survey) -> tuple[str, str, str] | None:
    return None if found.origin is None else (found.origin.row.name, found.origin.kind, found.origin.value)


def of_steps(dump: Path, faults: Expected) -> dict[str, Survey]:
    return {fault: survey(dump, Selection(steps=(step,))) for step, fault in enumerate(faults)}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("attention", ("--level", "mix")),
        ("experts", ("--level", "L1", "--summary", "md5")),
        ("convolution", ("--level", "mix", "--task", "tensor")),
        ("parallel", ("--level", "L1")),
    ],
)
def test_the_origin_is_exact(collected: Collect, model: str, options: tuple[str, ...]) -> None:
    faults: Expected = globals()[model.upper()]
    surveys = of_steps(collected(model, *options), faults)
    assert {fault: named(found) for fault, found in surveys.items()} == faults
    assert {f: found.exit_code for f, found in surveys.items()} == {f: int(faults[f] is not None) for f in faults}
    ranks = {fault: found.origin.row.rank for fault, found in surveys.items() if found.origin and fault in RANKS}
    assert ranks == {fault: rank for fault, rank in RANKS.items() if fault in faults}


@pytest.mark.parametrize(
    ("model", "fault", "words"),
    [
        ("attention", "scores overflow", ["exp of ", "is beyond float32's 3.4028e+38"]),
        ("attention", "fully masked row", ["nothing but -inf"]),
        ("attention", "every label ignored", ["the ignored one (-100)"]),
        ("attention", "loss scaled into overflow", ["60000", "beyond float16's 65504"]),
        ("attention", "a mask that reaches a sum", ["Tensor.sum.0.forward mixed it"]),
        ("attention", "numpy write", ["Torch.tanh.0.forward.output.0 gave it out finite"]),
        ("attention", "zero over zero", ["zero divided by zero"]),
        ("attention", "where", ["forward pass is finite", "0 * inf = nan"]),
    ],
)
def test_the_reason_has_the_numbers_at_hand(collected: Collect, model: str, fault: str, words: list[str]) -> None:
    dump = collected(model, "--level", "mix")
    origin = survey(dump, Selection(steps=(list(ATTENTION).index(fault),))).origin
    assert origin is not None
    assert [word for word in words if word not in origin.why] == []
    assert origin.source is not None and origin.source.file.endswith("planted.py")


def test_a_tensor_dump_shows_elements_and_what_went_in(collected: Collect) -> None:
    dump = collected("convolution", "--level", "mix", "--task", "tensor")

    def metrics(fault: str) -> dict[str, Any]:
        origin = survey(dump, Selection(steps=(list(CONVOLUTION).index(fault),))).origin
        assert origin is not None and origin.row.metrics is not None
        return origin.row.metrics

    image = metrics("image")
    assert (image["non_finite"], image["elements"], image["index"], image["inputs"]) == (
        1,
        4 * 3 * 81,
        [1, 2, 3, 3],
        [],
    )
    divided = metrics("clamp of nothing")
    assert divided["inputs"] == [{"name": "Torch.reciprocal.0.forward.input.0", "value": 0.0}]
    root = metrics("square root of the variance")
    assert {"name": "Tensor.sqrt.0.forward.input.0", "value": 0.0} in root["inputs"]


def test_a_loss_scale_that_overflows_once_and_recovers_is_healthy(collected: Collect) -> None:
    dump = collected("convolution", "--level", "mix", "--task", "tensor")
    steps = [list(CONVOLUTION).index(fault) for fault in ("loss scale", "healthy")]
    alone = survey(dump, Selection(steps=(steps[0],)))
    assert alone.origin is not None and "loss scale of 65536" in alone.origin.why
    both = survey(dump, Selection(steps=tuple(steps)))
    assert (both.verdict, both.origin) == ("finite", None)
    assert "loss scale of 65536" in both.excluded[0].why and "recovered" in both.excluded[0].why


def test_ranks_that_cannot_be_told_apart_are_listed_together(collected: Collect) -> None:
    dump = collected("parallel", "--level", "L1")
    tied = survey(dump, Selection(steps=(list(PARALLEL).index("both behind the reduction"),))).origin
    assert tied is not None
    assert [row.rank for row in (tied.row, *tied.also)] == [0, 1]
    alone = survey(dump, Selection(steps=(list(PARALLEL).index("rank 1 before the reduction"),), ranks=(0,))).origin
    assert alone is not None
    assert (alone.row.name, alone.kind) == ("Distributed.all_reduce.0.forward.output.0", "input")
    assert "received from another rank" in alone.why


def test_what_was_turned_finite_again_is_listed(collected: Collect) -> None:
    dump = collected("attention", "--level", "mix")
    found = survey(dump, Selection(steps=(list(ATTENTION).index("killed by nan_to_num"),)))
    assert [(event.what, event.row.name) for event in found.events] == [
        ("generated", "Torch.log.0.forward.output.0"),
        ("killed", "Torch.nan_to_num.0.forward.input.0"),
    ]
    assert any("Torch.nan_to_num.0.forward turns it finite again" in note for note in found.notes)


def test_the_collections_own_log_is_read_where_no_step_is_chosen(collected: Collect) -> None:
    dump = collected("attention", "--level", "mix")
    whole = survey(dump.parent)
    assert whole.origin is not None
    assert "the log agrees: loss is nan at step 3 of log.txt" in whole.notes
    clean = survey(dump / "step0")
    assert (clean.verdict, clean.exit_code, clean.origin) == ("non-finite", 1, None)
    assert any("the dump holds no NaN but the loss does: loss is nan at step 3" in note for note in clean.notes)
    assert any("--step iter:3" in note for note in clean.notes)
    assert survey(dump.parent, Selection(steps=(0,))).exit_code == 0


def test_healthy_uses_of_infinity_raise_no_alarm(tmp_path: Path) -> None:
    found = survey(candidate(tmp_path, ("--step", f"0-{HEALTHY_USES - 1}"), [SCRIPTS / "masks.py"]))
    assert {part.part.step: part.origin.row.name for part in found.parts if part.origin is not None} == {}
    assert len(found.parts) == HEALTHY_USES
    assert sum(bool(part.excluded) for part in found.parts) == HEALTHY_USES - WITHOUT_INFINITY


def test_the_first_steps_of_a_grad_scaler_are_healthy_once_it_has_recovered(tmp_path: Path) -> None:
    side = candidate(tmp_path, ("--level", "mix", "--step", "0-5"), [SCRIPTS / "scaler.py"])
    whole = survey(side)
    assert (whole.verdict, whole.exit_code, whole.origin) == ("finite", 0, None)
    assert [each.row.step for each in whole.excluded] == [0, 1, 2, 3]
    assert "loss scale of 16777216" in whole.excluded[0].why and "step 4 is finite" in whole.excluded[0].why
    not_yet = survey(side, Selection(steps=(0, 1)))
    assert not_yet.origin is not None and "loss scale of 16777216" in not_yet.origin.why
    assert "dump the next steps too" in not_yet.origin.next_step
