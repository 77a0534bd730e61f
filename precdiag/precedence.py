"""Which of the origins found in several steps and ranks is the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precdiag.inspection import PartSurvey
from precdiag.origin import BETWEEN, GENERATED, INPUT_KIND, PARAMETER_KIND, Origin
from precdiag.ranks import earliest


def earliest_origin(parts: Sequence[PartSurvey]) -> Origin | None:
    """Name the first origin: the earliest step wins, among its ranks the order of communication.

    `also` names what cannot be told apart. Gradients are averaged between ranks by work that no hook sees
    (DistributedDataParallel's reducer): a rank to which they merely arrived gives way to one that generated something
    in the same step. `parts` are in order.
    """
    first = next((part.at for part in parts if part.origin is not None), None)
    here = {at: part for at, part in enumerate(parts) if part.at == first}
    origins = {at: part.origin for at, part in here.items() if part.origin is not None}
    if first is None:
        return None
    winners = earliest(
        {at: origin.row.order for at, origin in origins.items()},
        {at: part.communications for at, part in here.items()},
    )
    made = [at for at in winners if not _arrived(origins[at])]
    kept = [_settled(origins[at], len(here)) for at in made or winners]
    if kept[0].kind == PARAMETER_KIND:
        kept[0] = _after_earlier_steps(kept[0], parts, first)
    return replace(kept[0], also=tuple(other.row for other in kept[1:]))


def _arrived(origin: Origin) -> bool:
    return origin.kind in (BETWEEN, PARAMETER_KIND) or origin.row.phase == "parameters_grad"


def _settled(origin: Origin, ranks: int) -> Origin:
    """A collective's output whose every member is at hand and finite before: the reduction itself overflowed."""
    if origin.kind != INPUT_KIND or not origin.is_output or ranks < 2:
        return origin
    why = "the inputs of no rank at hand hold it: the reduction itself overflowed, or a rank not dumped sent it"
    return replace(
        origin, kind=GENERATED, why=why, next_step="reduce in a wider dtype; collect every rank of the group"
    )


def _after_earlier_steps(origin: Origin, parts: Sequence[PartSurvey], at: tuple[str, int]) -> Origin:
    earlier = [part for part in parts if part.at[0] == at[0] and part.at < at and part.part.rank == origin.row.rank]
    if not earlier or earlier[-1].error is not None:
        return origin
    why = f"{origin.why}; {earlier[-1].part.label} is finite up to its end, so an update after it made it so"
    return replace(origin, why=why)
