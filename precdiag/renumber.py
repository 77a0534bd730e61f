"""Call the ranks that a dump's communication names by the numbers of the other side, where ranks are paired by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from precdiag.communication import BATCH, FROM_ONE, RECEIVES, SENDS, TO_ONE, hash_of, members_of, of_communication
from precdiag.dump import Dump
from precdiag.rows import OUTPUT

if TYPE_CHECKING:
    import pandas as pd

_PEERS = {
    **dict.fromkeys(SENDS | RECEIVES, ("input.1", "input.dst", "input.src")),
    **FROM_ONE,
    **TO_ONE,
}
# Given out as it was taken in, in no fixed place: nothing is lost by comparing the inputs alone.
_REPEATED = "-"


def renumbered(dump: Dump, ranks: Mapping[int, int]) -> Dump:
    """Return the dump with the ranks in the arguments of its Distributed calls renumbered; others keep their numbers.

    Peers, groups (told by the ranks in them, sorted) and the hashes of groups. What such a call gives out of its
    arguments is blanked, so both sides need this, the one whose numbers count with each its own. Without ranks nothing
    is done.
    """
    if not ranks:
        return dump
    chosen = dump.rows[of_communication(dump) & ~dump.rows["tensor"].to_numpy()]
    if not len(chosen):
        return dump
    operations = dump.calls["operation"].to_numpy()[chosen["call"].cat.codes]
    entries = zip(chosen["slot"].astype(str), chosen["type"].astype(str), chosen["value"], chosen["io"], strict=True)
    hashes = _hashes(chosen, ranks)
    value = dump.rows["value"].copy()
    value.loc[chosen.index] = [
        _REPEATED if io == OUTPUT else _renumbered(operation, slot, kind, text, ranks, hashes)
        for operation, (slot, kind, text, io) in zip(operations, entries, strict=True)
    ]
    return replace(dump, rows=dump.rows.assign(value=value))


def _renumbered(
    operation: str, slot: str, kind: str, text: str | None, ranks: Mapping[int, int], hashes: Mapping[str, str]
) -> str | None:
    if text is None:
        return None
    if kind.endswith("ProcessGroup"):
        return _group(text, ranks)
    if operation == BATCH and slot.endswith(".group_id"):
        return hashes.get(text, text)
    peer = slot in _PEERS.get(operation, ()) or (operation == BATCH and slot.endswith(".peer"))
    return str(ranks.get(int(text), int(text))) if peer and text.isdecimal() else text


def _group(text: str, ranks: Mapping[int, int]) -> str:
    members = members_of(text)
    return str(sorted(ranks.get(member, member) for member in members)) if members else text


def _hashes(rows: pd.DataFrame, ranks: Mapping[int, int]) -> dict[str, str]:
    """Map msprobe's hash of each group at hand, and of all ranks that are paired, to that of its renumbered ranks."""
    listed = rows.loc[rows["type"].astype(str).str.endswith("ProcessGroup"), "value"].dropna().unique()
    groups = {*map(str, listed), str(sorted(ranks))}
    return {hash_of(group): hash_of(_group(group, ranks)) for group in groups}
