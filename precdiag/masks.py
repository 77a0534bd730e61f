"""Intended infinities: fills and masks that a later softmax, max or comparison turns finite are no fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precdiag.dump import Dump, fingerprints
from precdiag.nonfinite import INFINITE, NAN, NEGATIVE, Classes, Flow, value_of
from precdiag.operations import is_weight_slot
from precdiag.rows import INPUT, OUTPUT

if TYPE_CHECKING:
    import numpy as np

# Calls that put a scalar where the caller says: an infinity handed to them is meant, as a mask or a start value.
FILLS = frozenset(
    {"masked_fill", "masked_fill_", "full", "full_like", "new_full", "fill", "fill_", "where", "__setitem__"}
    | {"index_fill", "index_fill_", "index_put", "index_put_", "scatter", "scatter_", "masked_scatter", "pad"}
    | {"constant_pad_nd", "fill_diagonal_", "scalar_tensor"}
)
# Calls that are there to turn masked places finite; over nothing but -inf they give NaN or -inf, which is a fault.
CONSUMERS = frozenset(
    {"softmax", "log_softmax", "softmin", "logsumexp", "gumbel_softmax", "scaled_dot_product_attention", "max", "amax"}
    | {"maximum", "topk", "npu_scaled_masked_softmax", "npu_fusion_attention", "npu_moe_gating_top_k_softmax"}
    | {"multi_head_attention_forward", "max_pool1d", "max_pool2d", "max_pool3d", "npu_dropout_with_add_softmax"}
)
# Calls that mix elements: an infinity that comes out of one has spread beyond the places that were masked.
MIXERS = frozenset(
    {"sum", "mean", "matmul", "__matmul__", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "einsum", "linear", "conv1d"}
    | {"conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "norm", "var", "std"}
    | {"linalg.norm", "linalg.vector_norm", "prod", "cumsum", "cumprod", "cross_entropy", "nll_loss", "mse_loss"}
    | {"l1_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
)
# Of these, calls over which no infinity comes out finite: where the dump says so the tensor changed in between.
_NEVER_FINITE = MIXERS - {
    *("norm", "linalg.norm", "linalg.vector_norm", "cross_entropy", "nll_loss", "kl_div"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
# Calls that may turn one infinity's sign.
_SIGNED = frozenset(
    {"neg", "neg_", "negative", "__neg__", "mul", "mul_", "__mul__", "__rmul__", "__imul__", "sub", "sub_", "rsub"}
    | {"__sub__", "__rsub__", "__isub__", "div", "div_", "__truediv__", "true_divide"}
)
# Over a masked row it gives -inf at the masked places and finite values at the others, which is what is wanted.
_KEEPERS = frozenset({"log_softmax", "LogSoftmax"})
_LOGARITHMS = frozenset({"log", "log_", "log2", "log10"})


@dataclass
class Source:
    """Where an infinity was put by intention, and what became of it: positions of rows, positions of calls."""

    row: int
    rows: list[int] = field(default_factory=list)
    turned_finite_by: int | None = None
    spread_by: int | None = None
    outlived: bool = False

    @property
    def harmless(self) -> bool:
        """Whether a call turned it finite (log_softmax: kept it), or all else is finite, and none spread it."""
        return (self.turned_finite_by is not None or self.outlived) and self.spread_by is None


@dataclass(frozen=True)
class Masks:
    """The infinities of one dump that were put by intention. `harmless` marks their rows (bool of len(rows))."""

    sources: tuple[Source, ...]
    harmless: np.ndarray


def find_masks(dump: Dump, classes: Classes, flow: Flow) -> Masks:
    """Follow every infinity that was handed in, as a scalar to a filling call or as a tensor that is no parameter.

    Rows are followed by their fingerprints in the order in which work began; what a call wrote in place, and a view
    that no hook saw, by its class. A source is harmless if some call took it in and gave out finite values, and none
    mixed it into other elements; a fill that no dumped call takes in (a fused operation that no hook sees), if all else
    in the dump is finite and gradients behind it are among that.
    """
    import numpy as np

    found = classes.found
    order = dump.rows["order"].to_numpy()
    infinite = np.flatnonzero(((found & INFINITE) != 0) & ((found & NAN) == 0))
    walk = _Walk(dump, found, flow)
    for row in infinite[np.argsort(order[infinite])].tolist():
        walk.visit(row)
    _outlive(dump, found, walk.sources)
    harmless = np.zeros(len(found), dtype=bool)
    for source in walk.sources:
        if source.harmless:
            harmless[[source.row, *source.rows]] = True
    return Masks(tuple(walk.sources), harmless)


def describe(dump: Dump, source: Source, classes: Classes, flow: Flow) -> str:
    """Say in one sentence why a harmless source is no fault; `flow` is that of all classes."""
    value = f"an intended {value_of(int(classes.found[source.row]))} (a mask or fill)"
    by = source.turned_finite_by
    if by is None:
        return f"{value}: no dumped call takes it in, and everything else is finite, the gradients behind it included"
    call = dump.call_cell("name", by)
    if flow.outgoing[by] & NAN:
        return f"{value}: {call} takes it in, which gives NaN where it leaves nothing"
    does = "keeps it at the masked places" if dump.call_cell("operation", by) in _KEEPERS else "turns it finite"
    return f"{value}: {call} {does}"


def _outlive(dump: Dump, found: np.ndarray, sources: list[Source]) -> None:
    """Mark the fills that nothing takes in, where every infinity is accounted for and gradients come behind them."""

    tensor, order = dump.rows["tensor"].to_numpy(), dump.rows["order"].to_numpy()
    ours = [row for source in sources for row in (source.row, *source.rows)]
    others = tensor & (found != 0)
    others[ours] = False
    backward = (dump.calls["phase"] == "backward").to_numpy()[dump.rows["call"].cat.codes.to_numpy()]
    if others.any() or not backward.any():
        return
    last = int(order[backward].max())
    for source in sources:
        source.outlived = not tensor[source.row] and bool(order[[source.row, *source.rows]].max() < last)


class _Walk:
    """The state of one pass over the infinite rows of a dump."""

    def __init__(self, dump: Dump, found: np.ndarray, flow: Flow) -> None:
        rows = dump.rows
        self.sources: list[Source] = []
        self._dump, self._found, self._flow = dump, found, flow
        self._call = rows["call"].cat.codes.to_numpy()
        self._io, self._tensor = rows["io"].to_numpy(), rows["tensor"].to_numpy()
        self._operation = dump.calls["operation"].to_numpy()
        self._forward = (dump.calls["phase"] == "forward").to_numpy()
        self._prints = fingerprints(dump)
        self._by_print: dict[int, Source] = {}
        self._by_class: dict[int, Source] = {}
        self._of_call: dict[int, Source] = {}

    def visit(self, row: int) -> None:
        """Attribute one infinite row to a source, or leave it as a fault of its own."""
        call = int(self._call[row])
        if not self._tensor[row]:
            self._begin_argument(row, call)
        elif self._io[row] == OUTPUT:
            self._leave(row, call)
        elif self._io[row] == INPUT:
            self._enter(row, call)

    def _begin_argument(self, row: int, call: int) -> None:
        written = self._flow.outgoing[call] != 0 or not self._flow.returns[call]
        if self._operation[call] in FILLS and written:
            source = self._begin(row)
            self._of_call[call] = source
            self._by_class[int(self._found[row])] = source

    def _enter(self, row: int, call: int) -> None:
        operation, out = self._operation[call], int(self._flow.outgoing[call])
        turns = out == 0 and bool(self._flow.returns[call]) and operation not in _NEVER_FINITE
        below = self._found[row] == NEGATIVE
        turns |= below and ((bool(out & NAN) and operation in CONSUMERS) or (out == NEGATIVE and operation in _KEEPERS))
        spreads = out != 0 and not turns and operation in MIXERS
        source = self._by_print.get(int(self._prints[row]))
        if source is None and not spreads:  # by its class alone it is a mask only where it does no harm
            source = self._by_class.get(int(self._found[row]))
        if source is None and self._forward[call] and not self._is_parameter(row, call, turns):
            source = self._begin(row)
        if source is None:
            return
        self._hold(source, row)
        self._of_call.setdefault(call, source)
        if turns and source.turned_finite_by is None:
            source.turned_finite_by = call
        if spreads and source.spread_by is None:
            source.spread_by = call

    def _leave(self, row: int, call: int) -> None:
        source = self._of_call.get(call)
        own = int(self._found[row])
        if source is None:
            if self._is_log_of_mask(row, call):
                self._hold(self._begin(row), row)
            return
        brought = int(self._flow.incoming[call]) | int(self._flow.arguments[call])
        if self._operation[call] in _SIGNED:
            brought = INFINITE
        if own & ~brought == 0 and self._operation[call] not in MIXERS:
            self._hold(source, row)

    def _begin(self, row: int) -> Source:
        self.sources.append(Source(row))
        return self.sources[-1]

    def _hold(self, source: Source, row: int) -> None:
        if row != source.row:
            source.rows.append(row)
        self._by_class[int(self._found[row])] = source
        if self._prints[row]:
            self._by_print[int(self._prints[row])] = source

    def _is_parameter(self, row: int, call: int, turned_finite: bool) -> bool:
        """A weight slot; at L1 also a leaf that needs a gradient, but for one that the call turns finite."""
        leaf = self._dump.level == "L1" and int(self._dump.cell("requires_grad", row)) == 1
        slot = str(self._dump.cell("slot", row))
        return is_weight_slot(str(self._operation[call]), slot) or (leaf and not turned_finite)

    def _is_log_of_mask(self, row: int, call: int) -> bool:
        """The logarithm of a mask of zeros and ones is the mask to add."""
        if self._operation[call] not in _LOGARITHMS or int(self._dump.cell("requires_grad", row)) == 1:
            return False
        given = self._dump.rows[(self._call == call) & (self._io == INPUT) & self._tensor]
        return bool(len(given) and given["min"].iat[0] == 0 and given["max"].iat[0] == 1)
