"""The table of generators against torch itself: what it says of a call is what the call did, with its numbers."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from handmade import Json, backward, forward, scalar, write
from torch import Tensor
from torch.nn import functional

from precdiag.generators import BACKWARD, FORWARD, Generator, explain
from precdiag.inspection import survey_part
from precdiag.layout import open_run
from precdiag.operands import Numbers

NAN, INF = float("nan"), float("inf")
ones = torch.ones(3)
half = torch.float16


def entry(value: Any) -> Json:
    """What msprobe writes of a tensor or scalar."""
    if not isinstance(value, Tensor):
        return scalar(value)
    filled = value.numel() > 0
    whole = value.detach().to(torch.float64)
    return {
        "type": "torch.Tensor",
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "Max": whole.max().item() if filled else None,
        "Min": whole.min().item() if filled else None,
        "Mean": whole.mean().item() if filled else None,
        "Norm": whole.norm().item() if filled else None,
        "requires_grad": value.requires_grad,
    }


def explained(folder: Path, name: str, calls: dict[str, Json]) -> str:
    """The reason given for the origin, which is an output of the call."""
    origin = survey_part(open_run(write(folder / "step0/rank0", calls)).parts[0]).origin
    assert origin is not None and origin.kind == "generated"
    assert origin.row.call == name
    return origin.why


FORWARDS: list[tuple[str, Callable[..., Tensor], list[Any], dict[str, Any], str]] = [
    ("Torch.log", torch.log, [ones - 3], {}, "goes down to -2"),
    ("Tensor.log2", torch.log2, [ones - 1], {}, "the logarithm of zero"),
    ("Torch.log1p", torch.log1p, [ones - 3], {}, "at or below -1"),
    ("Torch.sqrt", torch.sqrt, [ones - 3], {}, "square root of a negative"),
    ("Torch.rsqrt", torch.rsqrt, [ones - 1], {}, "one over the square root of zero"),
    ("Tensor.__truediv__", torch.div, [ones, ones - 1], {}, "every divisor is 0"),
    ("Torch.div", torch.div, [ones, torch.tensor([-1.0, 0.0, 2.0])], {}, "the divisor goes from -1 to 2"),
    ("Torch.div", torch.div, [ones - 1, ones - 1], {}, "zero divided by zero: every element"),
    ("Tensor.div", torch.div, [ones, 0], {}, "every divisor is 0"),
    ("Torch.div", torch.div, [torch.arange(3.0), torch.arange(3)], {}, "zero divided by zero"),
    ("Torch.reciprocal", torch.reciprocal, [torch.arange(3.0)], {}, "one divided by zero"),
    ("Torch.pow", torch.pow, [ones - 3, 0.5], {}, "a negative base (-2) to a power that is no integer (0.5)"),
    ("Torch.pow", torch.pow, [torch.arange(3.0), -1.0], {}, "zero to a negative power (-1)"),
    ("Tensor.__pow__", torch.pow, [ones * 3e20, 2], {}, "3e+20 to the power 2 is beyond"),
    ("Torch.exp", torch.exp, [ones * 100], {}, "exp of 100 is beyond float32's 3.4028e+38: above 88.72"),
    ("Torch.cosh", torch.cosh, [ones * 100], {}, "its input reaches 100"),
    ("Functional.softmax", functional.softmax, [torch.full((2, 2), -INF), 1], {}, "nothing but -inf"),
    ("Functional.cross_entropy", functional.cross_entropy, [torch.eye(3), torch.full((3,), -100)], {}, "(-100)"),
    ("Functional.cross_entropy", functional.cross_entropy, [torch.eye(3), torch.zeros(3, dtype=torch.long)],
     {"ignore_index": 0}, "every label is the ignored one (0)"),
    ("Functional.nll_loss", functional.nll_loss, [torch.eye(3), torch.arange(3), torch.zeros(3)], {}, "weighted"),
    ("Torch.mean", torch.mean, [torch.ones(0)], {}, "its input is empty"),
    ("Torch.std", torch.std, [torch.ones(1, 3)], {"dim": 0}, "deviation of one element"),
    ("Torch.acos", torch.acos, [ones * 2], {}, "from -1 to 1, and its input goes from 2 to 2"),
    ("Torch.acosh", torch.acosh, [ones - 1], {}, "from 1 on"),
    ("Torch.atanh", torch.atanh, [ones], {}, "inside -1 to 1 only"),
    ("Torch.logit", torch.logit, [ones - 1], {}, "inside 0 to 1 only"),
    ("Functional.normalize", functional.normalize, [torch.zeros(2, 2)], {"eps": 0.0}, "length zero"),
    ("Functional.group_norm", functional.group_norm, [torch.ones(1, 2, 3), 1], {"eps": 0.0}, "variance of a constant"),
    ("Functional.kl_div", functional.kl_div, [ones, ones - 3], {}, "which goes down to -2"),
    ("Tensor.half", Tensor.half, [ones * 1e5], {}, "its input reaches 100000, beyond float16's 65504"),
    ("Torch.matmul", torch.matmul, [torch.full((2, 8), 300.0, dtype=half), torch.full((8, 2), 300.0, dtype=half)],
     {}, "300 and 300, and 8 such products"),
    ("Functional.linear", functional.linear,
     [torch.full((2, 8), 99.0, dtype=half), torch.full((4, 8), 99.0, dtype=half)], {}, "99 and 99, and 8 such"),
    ("Functional.conv2d", functional.conv2d,
     [torch.full((1, 2, 4, 4), 99.0, dtype=half), torch.full((1, 2, 3, 3), 99.0, dtype=half)], {}, "and 18 such"),
    ("Tensor.__mul__", torch.mul, [ones.half() * 600, ones.half() * 600], {}, "600 and 600: the product is beyond"),
    ("Torch.square", torch.square, [ones.half() * 600], {}, "the product is beyond float16's"),
    ("Tensor.__add__", torch.add, [ones.half() * 6e4, ones.half() * 6e4], {}, "60000 and 60000: beyond float16's"),
    ("Tensor.sum", torch.sum, [torch.full((4,), 6e4, dtype=half)], {}, "60000 over 4 elements"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:std\\(\\)", "ignore:reduction")
@pytest.mark.parametrize(("call", "function", "inputs", "keywords", "words"), FORWARDS)
def test_a_forward_call_is_explained(
    tmp_path: Path, call: str, function: Callable[..., Tensor], inputs: list[Any], keywords: dict[str, Any], words: str
) -> None:
    result = function(*inputs, **keywords)
    assert not result.isfinite().all()
    data = {f"{call}.0.forward": forward([entry(x) for x in inputs], [entry(result)])}
    data[f"{call}.0.forward"]["input_kwargs"] = {key: scalar(value) for key, value in keywords.items()}
    if inputs and isinstance(inputs[0], Tensor) and (inputs[0] == -INF).any():  # as a fill made it
        data = {"Tensor.fill_.0.forward": forward([scalar(-INF)], [entry(inputs[0])])} | data
    assert words in explained(tmp_path, f"{call}.0.forward", data)


BACKWARDS: list[tuple[str, Callable[..., Tensor], list[Any], Tensor, str]] = [
    ("Torch.sqrt", torch.sqrt, [torch.arange(3.0)], ones, "the derivative of sqrt at 0 is infinite"),
    ("Torch.sqrt", torch.sqrt, [torch.arange(3.0)], ones - 1, "0 * inf = nan"),
    ("Torch.log", torch.log, [torch.tensor([0.0, 1.0])], torch.zeros(2), "derivative at 0 is infinite"),
    ("Tensor.pow", torch.pow, [torch.arange(3.0), 0.5], ones, "x ** 0.5 at 0 is infinite"),
    ("Torch.div", torch.div, [ones, torch.arange(3.0)], ones, "divides by the divisor again"),
    ("Torch.acos", torch.acos, [ones], ones, "derivative at -1 and 1 is infinite"),
    ("Torch.std", lambda x: torch.std(x, dim=0), [torch.ones(1, 3)], ones, "deviation of one element divides by zero"),
    (
        "Torch.mul",
        torch.mul,
        [ones.half() * 600, ones.half()],
        ones.half() * 600,
        "the gradient that comes in reaches 600",
    ),
]


@pytest.mark.filterwarnings("ignore:std\\(\\)")
@pytest.mark.parametrize(("call", "function", "inputs", "gradient", "words"), BACKWARDS)
def test_a_backward_call_is_explained(
    tmp_path: Path, call: str, function: Callable[..., Tensor], inputs: list[Any], gradient: Tensor, words: str
) -> None:
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
    result = function(*leaves)
    result.backward(gradient)
    gradients = [x.grad for x in leaves if isinstance(x, Tensor)]
    assert not all(gradient.isfinite().all() for gradient in gradients if gradient is not None)
    finite = torch.nan_to_num(result.detach(), posinf=1.0, neginf=-1.0)  # the forward's own fault is another test's
    data = {
        f"{call}.0.forward": forward([entry(x) for x in leaves], [entry(finite)]),
        f"{call}.0.backward": backward([entry(gradient)], [entry(x) for x in gradients]),
    }
    why = explained(tmp_path, f"{call}.0.backward", data)
    assert words in why and why.startswith("the forward pass is finite")


def test_an_operation_that_is_not_in_the_table_is_named_without_a_guess(tmp_path: Path) -> None:
    assert explain("npu_unheard_of", False, "nan", Numbers()) is None
    data = {"NPU.npu_unheard_of.0.forward": forward([entry(ones)], [entry(ones * NAN)])}
    why = explained(tmp_path, "NPU.npu_unheard_of.0.forward", data)
    assert why == "every tensor that went in is free of nan, and this came out"


def test_finite_reasons_are_not_given_where_the_numbers_speak_against_them(tmp_path: Path) -> None:
    data = {"Torch.sqrt.0.forward": forward([entry(ones)], [entry(ones * NAN)])}
    assert "negative" not in explained(tmp_path, "Torch.sqrt.0.forward", data)


@pytest.mark.parametrize("line", [*FORWARD, *BACKWARD], ids=lambda line: ",".join(sorted(line.operations)[:2]))
def test_every_line_of_the_table_can_be_said(line: Generator) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse(line.sentence) if name}
    assert all(hasattr(Numbers(dtype="float16"), name.removeprefix("n.")) for name in fields)
    assert line.do and line.sentence.format(n=Numbers(dtype="float16"))
    line.holds(Numbers())  # nothing known: no error
