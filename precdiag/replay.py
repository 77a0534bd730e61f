"""One dumped call rebuilt as a call of torch: function, arguments, outputs; and run again, in float64 for one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precdiag.dump import Dump
from precdiag.errors import one_line
from precdiag.operations import is_random
from precdiag.rows import INPUT, OUTPUT, PARAMETER
from precdiag.source import forward_of
from precdiag.torchfile import load

if TYPE_CHECKING:
    from torch import Tensor, dtype

_NAMESPACES = {"Functional": "torch.nn.functional", "Torch": "torch", "Tensor": "torch.Tensor"}
# Functions whose values follow from their arguments alone.
_PLAIN = frozenset(
    {"linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "outer", "addmm", "baddbmm", "einsum", "__matmul__"}
    | {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
    | {"scaled_dot_product_attention", "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "normalize"}
    | {"gelu", "silu", "relu", "leaky_relu", "elu", "selu", "mish", "hardswish", "softplus", "sigmoid", "tanh", "glu"}
    | {"logsigmoid", "softsign", "hardtanh", "relu6", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal"}
    | {"sin", "cos", "erf", "abs", "neg", "square", "pow", "add", "sub", "mul", "div", "true_divide", "addcmul", "lerp"}
    | {"__add__", "__sub__", "__mul__", "__truediv__", "__div__", "__pow__", "__neg__", "__radd__", "__rsub__"}
    | {"__rmul__", "__rtruediv__", "__rpow__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "add_", "sub_"}
    | {"mul_", "div_", "sum", "mean", "var", "std", "norm", "prod", "cumsum", "logsumexp", "amax", "amin", "clamp"}
    | {"embedding", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"}
    | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "masked_fill", "where"}
    | {"cat", "stack", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "maximum", "minimum", "tril"}
)
# Standard modules whose constructor's arguments do not change what they compute, or by their defaults: the function,
# and what it takes behind the inputs. A module built with others is off on both sides alike, which proves nothing.
_MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Linear": ("linear", ("weight", "bias")),
    "LayerNorm": ("layer_norm", ("shape", "weight", "bias")),
    "RMSNorm": ("rms_norm", ("shape", "weight")),
    "Conv1d": ("conv1d", ("weight", "bias")),
    "Conv2d": ("conv2d", ("weight", "bias")),
    "Conv3d": ("conv3d", ("weight", "bias")),
    **{name: (name.lower(), ()) for name in ("GELU", "SiLU", "ReLU", "Sigmoid", "Tanh", "Softplus", "Mish")},
    "CrossEntropyLoss": ("cross_entropy", ()),
    "MSELoss": ("mse_loss", ()),
}


class UnreplayableError(Exception):
    """A call that cannot be rebuilt: says why in a few words."""


@dataclass(frozen=True)
class Call:
    """One call of one side as it was dumped.

    `function` is a dotted name in torch. `outputs` are what it gave out, by slot. Of a backward call `gradient` is what
    came in, `names` what each argument is called (`0`, `weight`), and `outputs` the gradients.
    """

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Mapping[str, Tensor]
    gradient: Tensor | None = None
    names: tuple[str, ...] = ()
    whole: bool = False
    """Gradients of the whole call; else of its last operation, which is what msprobe hooks of a function."""


def rebuild(dump: Dump, name: str) -> Call:
    """Rebuild a dumped call, forward or backward, from the files beside its dump.json.

    Raises UnreplayableError where it is no plain function or standard module, or something of it was not dumped.
    """
    rows = _rows_of(dump, name)
    phase = str(dump.calls["phase"].iat[_position(dump, name)])
    if phase == "forward":
        return _forward(dump, name)
    call = _forward(dump, forward_of(name))
    outputs = {slot: _tensor(dump, row) for slot, row, io in rows if io == OUTPUT and _is_tensor(dump, row)}
    gradient = _gradient(dump, name, phase)
    module = name.startswith("Module.")
    return Call(call.function, call.args, call.kwargs, outputs, gradient, call.names, whole=module)


def run(call: Call, kind: dtype | None = None) -> dict[str, Tensor]:
    """Run a rebuilt call again on the CPU, in `kind` for every float (None: as dumped): what it gives out, by slot.

    Raises UnreplayableError where torch refuses, or the gradients have other shapes than the dumped ones.
    """
    import torch

    function = _resolve(call.function)
    backward = call.gradient is not None
    args = [_prepared(value, kind, backward) for value in call.args]
    kwargs = {key: _prepared(value, kind, backward) for key, value in call.kwargs.items()}
    try:
        with torch.enable_grad() if backward else torch.no_grad():
            given = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
            made = function(*given, **kwargs)
            found = _gradients(call, args, made, kind) if backward else _listed(made)
    except Exception as error:  # whatever torch says to arguments that do not fit
        raise UnreplayableError(one_line(error)) from error
    fitting = {slot: _reduced(found[slot], was) for slot, was in call.outputs.items() if slot in found}
    fitting = {slot: value for slot, value in fitting.items() if value.shape == call.outputs[slot].shape}
    if not fitting:
        raise UnreplayableError("what it gives out has other shapes")
    return fitting


def perturbed(call: Call, u: float) -> Call:
    """Return the call with each float it takes in moved by at most u, relative, at random (a fixed seed)."""
    from dataclasses import replace

    import torch

    generator = torch.Generator().manual_seed(0)

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        wide = value.double()
        return wide * (1 + u * (2 * torch.rand(wide.shape, generator=generator, dtype=torch.float64) - 1))

    kwargs = {key: moved(value) for key, value in call.kwargs.items()}
    gradient = None if call.gradient is None else moved(call.gradient)
    return replace(call, args=tuple(map(moved, call.args)), kwargs=kwargs, gradient=gradient)


def _forward(dump: Dump, name: str) -> Call:
    rows = _rows_of(dump, name)
    kind, operation = (str(dump.calls[key].iat[_position(dump, name)]) for key in ("kind", "operation"))
    if kind != "Module" and (kind not in _NAMESPACES or operation not in _PLAIN):
        raise UnreplayableError(f"{operation} is no plain function")
    arguments = {slot: str(dump.cell("value", row)) for slot, row, _ in rows if not _is_tensor(dump, row)}
    if kind != "Module" and is_random(operation, arguments):
        raise UnreplayableError(f"{operation} draws random numbers")
    given: dict[str, Any] = {}
    for slot, row, io in rows:
        if io == INPUT:
            _place(given, slot.split(".")[1:], _value(dump, row))
    outputs = {slot: _tensor(dump, row) for slot, row, io in rows if io == OUTPUT and _is_tensor(dump, row)}
    parameters = {slot.partition(".")[2]: _tensor(dump, row) for slot, row, io in rows if io == PARAMETER}
    positional = [_nested(given[key]) for key in sorted((key for key in given if key.isdecimal()), key=int)]
    kwargs = {key: _nested(value) for key, value in given.items() if not key.isdecimal()}
    names = tuple(str(at) for at in range(len(positional)))
    if kind == "Module":
        return _module(operation, positional, kwargs, parameters, outputs)
    return Call(f"{_NAMESPACES[kind]}.{operation}", tuple(positional), kwargs, outputs, names=names)


def _module(
    operation: str, inputs: list[Any], kwargs: dict[str, Any], parameters: dict[str, Tensor], outputs: dict[str, Tensor]
) -> Call:
    if operation == "Embedding" and len(inputs) == 1:
        table = parameters["weight"]
        return Call("torch.nn.functional.embedding", (inputs[0], table), kwargs, outputs, names=("0", "weight"))
    if operation not in _MODULES or kwargs or any("." in name for name in parameters):
        raise UnreplayableError(f"{operation} is no standard module")
    function, taken = _MODULES[operation]
    extra = {"shape": list(parameters["weight"].shape) if "weight" in parameters else None, **parameters}
    names = (*(str(at) for at in range(len(inputs))), *taken)
    args = (*inputs, *(extra.get(name) for name in taken))
    return Call(f"torch.nn.functional.{function}", args, {}, outputs, names=names)


def _gradient(dump: Dump, name: str, phase: str) -> Tensor:
    """What comes in backward: of a parameter's gradient that of its module's only backward call."""
    if phase == "parameters_grad":
        stem = name.partition(".parameters_grad")[0]
        calls = [call for call in dump.calls["name"] if str(call).startswith(f"{stem}.backward.")]
        if len(calls) != 1:
            raise UnreplayableError("its module was called more than once")
        name = str(calls[0])
    incoming = [row for _, row, io in _rows_of(dump, name) if io == INPUT and _is_tensor(dump, row)]
    if len(incoming) != 1:
        raise UnreplayableError("more than one gradient comes in")
    return _tensor(dump, incoming[0])


def _gradients(call: Call, args: list[Any], made: Any, kind: dtype | None) -> dict[str, Tensor]:
    import torch

    if not isinstance(made, torch.Tensor) or call.gradient is None:
        raise UnreplayableError("more than one output")
    gradient = call.gradient.to(kind or made.dtype)
    if not call.whole and made.grad_fn is not None:
        found = made.grad_fn(gradient)
        found = found if isinstance(found, tuple) else (found,)
        return {f"output.{at}": each for at, each in enumerate(found) if each is not None}
    leaves = {name: arg for name, arg in zip(call.names, args, strict=False) if _needs_gradient(arg)}
    found = torch.autograd.grad(made, list(leaves.values()), gradient, allow_unused=True)
    return {
        f"output.{name}" if name.isdecimal() else name: each
        for name, each in zip(leaves, found, strict=True)
        if each is not None
    }


def _reduced(found: Tensor, was: Tensor) -> Tensor:
    """Add up a gradient over what its argument was broadcast along, as autograd does behind the operation."""
    if found.shape == was.shape:
        return found
    try:
        return found.sum_to_size(was.shape)
    except RuntimeError:  # no broadcasting leads from the one to the other
        return found


def _needs_gradient(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.requires_grad


def _prepared(value: Any, kind: dtype | None, backward: bool) -> Any:
    import torch

    if isinstance(value, list):
        return [_prepared(item, kind, backward) for item in value]
    if isinstance(value, torch.dtype) and kind is not None and value.is_floating_point:
        return kind
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    own = value.detach().to(kind or value.dtype, copy=True)
    return own.requires_grad_(backward)


def _listed(made: Any) -> dict[str, Tensor]:
    import torch

    values = made if isinstance(made, tuple | list) else (made,)
    return {f"output.{at}": value for at, value in enumerate(values) if isinstance(value, torch.Tensor)}


def _resolve(name: str) -> Any:
    import torch

    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if found is None:
        raise UnreplayableError(f"this torch has no {name}")
    return found


def _position(dump: Dump, name: str) -> int:
    at = int(dump.rows["call"].cat.categories.get_indexer([name])[0])
    if at < 0:
        raise UnreplayableError(f"{name} was not dumped")
    return at


def _rows_of(dump: Dump, name: str) -> list[tuple[str, int, int]]:
    rows = dump.rows[dump.rows["call"].cat.codes == _position(dump, name)]
    return [(str(slot), int(at), int(io)) for slot, at, io in zip(rows["slot"], rows.index, rows["io"], strict=True)]


def _is_tensor(dump: Dump, row: int) -> bool:
    return bool(dump.rows["tensor"].iat[row])


def _tensor(dump: Dump, row: int) -> Tensor:
    path = dump.tensor_path(row)
    if path is None:
        raise UnreplayableError("its tensors were not dumped")
    return load(path)


def _value(dump: Dump, row: int) -> Any:
    """Return a tensor, or an argument read back from its type and text."""
    if _is_tensor(dump, row):
        return _tensor(dump, row)
    kind, text = str(dump.rows["type"].iat[row]), str(dump.rows["value"].iat[row])
    if kind == "torch.dtype":
        import torch

        return getattr(torch, text.rpartition(".")[2])
    if kind == "torch.Size":
        return [int(size) for size in re.findall(r"\d+", text)]
    readers: dict[str, Any] = {"None": lambda _: None, "int": int, "float": float, "str": str}
    readers["bool"] = lambda word: word == "True"
    if kind not in readers:
        raise UnreplayableError(f"an argument of type {kind}")
    return readers[kind](text)


def _place(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _nested(value: Any) -> Any:
    """Turn what was flattened into slots back into lists."""
    if not isinstance(value, dict):
        return value
    if not all(key.isdecimal() for key in value):
        raise UnreplayableError("an argument that is a mapping")
    return [_nested(value[key]) for key in sorted(value, key=int)]
