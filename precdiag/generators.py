"""What is known to generate NaN and Inf: a table of operations, conditions on the numbers at hand, and sentences.

To add one, add a line. The first line that fits explains; an operation without one is named without a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from precdiag.operands import Numbers

NAN, INF = "nan", "inf"  # inf stands for both signs
ANY = (NAN, INF)


@dataclass(frozen=True)
class Generator:
    """One line of the table: the operations and values it explains, when, in which words, and what to do about it."""

    operations: frozenset[str]
    values: tuple[str, ...]
    holds: Callable[[Numbers], bool]
    sentence: str
    do: str


def explain(operation: str, backward: bool, value: str, numbers: Numbers) -> tuple[str, str] | None:
    """Return why a call generated `nan`, `inf` or `-inf`, with its numbers, and what to do; None without a line for it.

    `operation`: as in the call's name (`softmax`), or a module's class.
    """
    wanted = INF if value.endswith(INF) else NAN
    for line in BACKWARD if backward else FORWARD:
        if operation in line.operations and wanted in line.values and line.holds(numbers):
            return line.sentence.format(n=numbers), line.do
    return None


def _named(*names: str) -> frozenset[str]:
    """Return operations with their in-place forms."""
    return frozenset(names) | {f"{name}_" for name in names if not name.startswith("_") and name[0].islower()}


def _spans_zero(n: Numbers) -> bool:
    return n.other_low <= 0 <= n.other_high


def _overflows(n: Numbers) -> bool:
    return n.most * (n.other if not math.isnan(n.other) else n.most) * n.terms > n.limit


def _narrows(n: Numbers) -> bool:
    return n.most > n.limit


_DIVISIONS = _named("div", "true_divide", "divide", "floor_divide", "fmod", "remainder") | {
    "__truediv__",
    "__div__",
    "__idiv__",
    "__itruediv__",
    "__floordiv__",
    "__mod__",
}
_RECIPROCALS = _named("reciprocal") | {"__rdiv__", "__rtruediv__"}
_SOFTMAXES = _named("softmax", "log_softmax", "softmin") | {
    "Softmax",
    "LogSoftmax",
    "npu_scaled_masked_softmax",
    "logsumexp",
}
_LOSSES = frozenset({"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "npu_cross_entropy_loss"})
_PRODUCTS = _named("matmul", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "einsum", "linear") | {
    "__matmul__",
    "Linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "npu_linear",
    "npu_grouped_matmul",
    "npu_bmmV2",
}
_TIMES = _named("mul", "multiply", "square", "addcmul") | {"__mul__", "__rmul__", "__imul__"}
_SUMS = frozenset({"sum", "cumsum", "mean", "norm", "linalg.norm", "linalg.vector_norm", "nansum"})
_ROOTS = _named("sqrt")
_NORMS = frozenset({"norm", "linalg.norm", "linalg.vector_norm", "cdist", "pairwise_distance", "dist"})
_CASTS = _named("half", "to", "bfloat16", "type_as", "npu_dtype_cast", "float")

_CLAMP = "clamp the input away from there, or add an eps where it is computed"
_DIVISOR = "add an eps to the divisor, or leave such elements out"

FORWARD: tuple[Generator, ...] = (
    Generator(_named("log", "log2", "log10"), (NAN,), lambda n: n.low < 0,
              "the logarithm of a negative number: its input goes down to {n.low:.6g}", _CLAMP),
    Generator(_named("log", "log2", "log10"), (INF,), lambda n: n.low == 0,
              "the logarithm of zero: its input goes down to 0", _CLAMP),
    Generator(_named("log1p"), ANY, lambda n: n.low <= -1,
              "log1p at or below -1: its input goes down to {n.low:.6g}", _CLAMP),
    Generator(_ROOTS, (NAN,), lambda n: n.low < 0,
              "the square root of a negative number: its input goes down to {n.low:.6g}", _CLAMP),
    Generator(_named("rsqrt"), (NAN,), lambda n: n.low < 0,
              "the square root of a negative number: its input goes down to {n.low:.6g}", _CLAMP),
    Generator(_named("rsqrt"), (INF,), lambda n: n.low == 0,
              "one over the square root of zero: its input goes down to 0", _CLAMP),
    Generator(_DIVISIONS, (NAN,), lambda n: n.low == n.high == n.other_low == n.other_high == 0,
              "zero divided by zero: every element of both inputs is 0", _DIVISOR),
    Generator(_DIVISIONS, ANY, lambda n: n.other_low == n.other_high == 0,
              "division by zero: every divisor is 0, the dividend goes from {n.low:.6g} to {n.high:.6g}", _DIVISOR),
    Generator(_DIVISIONS, (NAN,), _spans_zero,
              "zero divided by zero: the divisor goes from {n.other_low:.6g} to {n.other_high:.6g} and the dividend "
              "from {n.low:.6g} to {n.high:.6g}", _DIVISOR),
    Generator(_DIVISIONS, (INF,), _spans_zero,
              "division by zero: the divisor goes from {n.other_low:.6g} to {n.other_high:.6g}", _DIVISOR),
    Generator(_RECIPROCALS, (INF,), lambda n: n.low <= 0 <= n.high,
              "one divided by zero: its input goes from {n.low:.6g} to {n.high:.6g}", _DIVISOR),
    Generator(_named("pow", "float_power") | {"__pow__", "__ipow__"}, (NAN,), lambda n: n.low < 0,
              "a negative base ({n.low:.6g}) to a power that is no integer ({n.other_low:.6g})", _CLAMP),
    Generator(_named("pow", "float_power") | {"__pow__", "__ipow__"}, (INF,),
              lambda n: n.low <= 0 <= n.high and n.other_low < 0,
              "zero to a negative power ({n.other_low:.6g}): its base goes from {n.low:.6g} to {n.high:.6g}", _CLAMP),
    Generator(_named("pow", "float_power") | {"__pow__", "__ipow__"}, (INF,), lambda n: n.most > 1,
              "{n.most:.6g} to the power {n.other_high:.6g} is beyond {n.dtype}'s {n.limit:.5g}",
              "compute it in a wider dtype"),
    Generator(_named("exp", "expm1"), (INF,), lambda n: n.high > n.exponent_limit,
              "exp of {n.high:.6g} is beyond {n.dtype}'s {n.limit:.5g}: above {n.exponent_limit:.4g} it overflows",
              "subtract the maximum first, as softmax does, or bound the input"),
    Generator(_named("exp2", "cosh", "sinh"), (INF,), lambda n: n.most > n.exponent_limit,
              "its input reaches {n.most:.6g}: the result is beyond {n.dtype}'s {n.limit:.5g}", "bound the input"),
    Generator(_SOFTMAXES, (NAN,), lambda n: n.high == math.inf,
              "softmax of inf is inf/inf", "look at what made the score infinite"),
    Generator(_SOFTMAXES, (NAN,), lambda n: n.low == -math.inf,
              "softmax over a row that holds nothing but -inf is 0/0: the mask leaves no element of that row",
              "let every row keep one element, or zero such rows behind the softmax"),
    Generator(frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "npu_fusion_attention"}),
              (NAN,), lambda n: n.mask_ends[0] in (0.0, -math.inf),
              "attention over finite inputs gives NaN where the mask leaves no element of a row: its softmax is 0/0",
              "let every row of the mask keep one element"),
    Generator(_LOSSES, (NAN,), lambda n: n.labels[0] == n.labels[1] == n.ignored,
              "every label is the ignored one ({n.ignored:.0f}): the mean over no label is 0/0",
              "skip batches without labels, or sum and divide by max(count, 1)"),
    Generator(_LOSSES, (NAN,), lambda n: n.other_low == 0 and not math.isnan(n.labels[0]),
              "the mean is weighted, and the weights of the labels at hand sum to 0 (the smallest weight is 0): 0/0",
              "look at the class weights"),
    Generator(_LOSSES, (INF,), lambda n: n.low == -math.inf,
              "the logit or log-probability of a label is -inf: its loss is infinite",
              "do not mask the class of a label"),
    Generator(frozenset({"mean", "nanmean", "median", "std", "var", "std_mean", "var_mean"}), (NAN,),
              lambda n: n.elements == 0, "a mean over no element is 0/0: its input is empty",
              "leave the term out where nothing is chosen"),
    Generator(frozenset({"std", "var", "std_mean", "var_mean"}), (NAN,), lambda n: n.terms <= 1,
              "the unbiased deviation of one element divides by zero", "pass correction=0, or leave the term out"),
    Generator(_named("acos", "asin", "arccos", "arcsin"), (NAN,), lambda n: n.most > 1,
              "it is defined from -1 to 1, and its input goes from {n.low:.6g} to {n.high:.6g}", _CLAMP),
    Generator(_named("acosh", "arccosh"), (NAN,), lambda n: n.low < 1,
              "it is defined from 1 on, and its input goes down to {n.low:.6g}", _CLAMP),
    Generator(_named("atanh", "arctanh", "erfinv"), ANY, lambda n: n.most >= 1,
              "it is finite inside -1 to 1 only, and its input goes from {n.low:.6g} to {n.high:.6g}", _CLAMP),
    Generator(_named("logit"), ANY, lambda n: n.low <= 0 or n.high >= 1,
              "it is finite inside 0 to 1 only, and its input goes from {n.low:.6g} to {n.high:.6g}", _CLAMP),
    Generator(frozenset({"normalize", "cosine_similarity"}), ANY, lambda n: n.low <= 0 <= n.high,
              "a vector of length zero is divided by its length without an eps: the input goes from {n.low:.6g} to "
              "{n.high:.6g}", "leave eps at its default"),
    Generator(frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "BatchNorm2d"}), ANY,
              lambda n: n.low == n.high, "the variance of a constant ({n.low:.6g}) is 0, and eps does not save it",
              "raise eps"),
    Generator(frozenset({"kl_div"}), ANY, lambda n: n.other_low < 0,
              "kl_div takes the logarithm of its target, which goes down to {n.other_low:.6g}",
              "give probabilities as the target: (log-probabilities, probabilities) is the order"),
    Generator(_CASTS, (INF,), _narrows,
              "its input reaches {n.most:.6g}, beyond {n.dtype}'s {n.limit:.5g}",
              "use bfloat16, or scale before the cast"),
    Generator(_CASTS, (NAN,), lambda n: n.dtype.startswith("float8") and n.most > n.limit,
              "its input reaches {n.most:.6g}, beyond {n.dtype}'s {n.limit:.5g}, which has no infinity",
              "scale before the cast"),
    Generator(_PRODUCTS, ANY, _overflows,
              "its inputs reach {n.most:.6g} and {n.other:.6g}, and {n.terms} such products may be summed: beyond "
              "{n.dtype}'s {n.limit:.5g}", "use a dtype with more range (bfloat16, float32), or scale the inputs"),
    Generator(_TIMES, (INF,), _overflows,
              "its inputs reach {n.most:.6g} and {n.other:.6g}: the product is beyond {n.dtype}'s {n.limit:.5g}",
              "use a dtype with more range, or a smaller factor"),
    Generator(_named("add", "sub") | {"__add__", "__sub__", "__radd__", "__iadd__", "__isub__"}, (INF,),
              lambda n: n.most + n.other > n.limit,
              "its inputs reach {n.most:.6g} and {n.other:.6g}: beyond {n.dtype}'s {n.limit:.5g}",
              "use a dtype with more range"),
    Generator(_SUMS, (INF,), lambda n: n.most * max(n.terms, n.most) > n.limit,
              "its input reaches {n.most:.6g} over {n.terms} elements: the sum is beyond {n.dtype}'s {n.limit:.5g}",
              "sum in a wider dtype"),
)  # fmt: skip

BACKWARD: tuple[Generator, ...] = (
    Generator(_ROOTS, ANY, lambda n: n.low == 0,
              "the derivative of sqrt at 0 is infinite, and its forward input goes down to 0; where the gradient is 0, "
              "as behind a `where`, a mask or a relu, that is 0 * inf = nan",
              "put the mask or clamp before the sqrt (sqrt(where(ok, x, 1)), or x + eps), not behind it"),
    Generator(_named("rsqrt", "reciprocal", "log", "log2", "log10"), ANY, lambda n: n.low <= 0 <= n.high,
              "its derivative at 0 is infinite, and its forward input goes down to {n.low:.6g}",
              "put the mask or clamp before the call, not behind it"),
    Generator(_named("pow", "float_power") | {"__pow__"}, ANY, lambda n: n.low <= 0 <= n.high and n.other_low < 1,
              "the derivative of x ** {n.other_low:.6g} at 0 is infinite, and its forward input goes from {n.low:.6g} "
              "to {n.high:.6g}", "put a clamp or an eps before the power"),
    Generator(_NORMS, ANY, lambda n: n.low <= 0 <= n.high,
              "the derivative of a norm at zero is 0/0, and its forward input goes from {n.low:.6g} to {n.high:.6g}",
              "add an eps under the root"),
    Generator(frozenset({"std", "var", "std_mean", "var_mean"}), ANY, lambda n: n.terms <= 1,
              "the derivative of the unbiased deviation of one element divides by zero",
              "pass correction=0, or leave the term out"),
    Generator(_DIVISIONS, ANY, _spans_zero,
              "its derivative divides by the divisor again, which goes from {n.other_low:.6g} to {n.other_high:.6g}",
              "put the mask or clamp before the division"),
    Generator(_named("acos", "asin", "atanh", "arccos", "arcsin"), ANY, lambda n: n.most >= 1,
              "its derivative at -1 and 1 is infinite, and its forward input goes from {n.low:.6g} to {n.high:.6g}",
              _CLAMP),
    Generator(_LOSSES, (NAN,), lambda n: n.labels[0] == n.labels[1] == n.ignored,
              "every label is the ignored one ({n.ignored:.0f}): the gradient of a mean over no label is 0/0",
              "skip batches without labels"),
    Generator(_SOFTMAXES, (NAN,), lambda n: n.low == -math.inf,
              "the forward input holds rows of nothing but -inf: their softmax is 0/0",
              "let every row keep one element"),
    Generator(_CASTS | _PRODUCTS | _TIMES | _SUMS, (INF,),
              lambda n: n.gradient * max(n.most, n.other, 1) * n.terms > n.limit,
              "the gradient that comes in reaches {n.gradient:.6g}: the result is beyond {n.dtype}'s {n.limit:.5g}",
              "lower the loss scale, or use a dtype with more range"),
)  # fmt: skip
