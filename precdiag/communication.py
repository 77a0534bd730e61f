"""The communication of one rank: what each Distributed call gives to other ranks, takes from them, and over what."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.rows import OUTPUT, UPDATE_SCOPES

if TYPE_CHECKING:
    import numpy as np

# torch.distributed, by name: who puts data in and who gets it out. Every other operation is taken to join all members.
SENDS = frozenset({"send", "isend"})
RECEIVES = frozenset({"recv", "irecv"})
FROM_ONE = {"broadcast": ("input.1", "input.src"), "scatter": ("input.2", "input.src")}
TO_ONE = {"reduce": ("input.1", "input.dst"), "gather": ("input.2", "input.dst")}
BATCH = "batch_isend_irecv"

# Positional slots and keywords of the peer, and of the tag, of a message.
_PEER = ("input.1", "input.dst", "input.src")
_GROUP_PEER = ("input.group_dst", "input.group_src")
_TAG = ("input.3", "input.tag")
_DATA_PARALLEL = re.compile(r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py")
_OPTIMIZER = re.compile(r"torch[/\\]optim[/\\]")
_P2POP = re.compile(r"(input(?:\.0)?\.\d+)\.op\Z|(input\.p2p_op_list\.\d+)\.op\Z")


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective or message of one rank.

    `group` names the ranks as text, `[0, 1]`, "" for the default group, `#crc32` where only the hash stands in the
    dump. `peers` is (sender, receiver) of a message, None for a collective; with `tag`, messages of one channel match
    in order. `gives`: up to which line the rank's work goes into it, `takes`: from which line on it may hold other
    ranks' work; None where it does not.
    """

    rank: int
    call: str
    group: str
    peers: tuple[int, int] | None
    tag: str
    gives: int | None
    takes: int | None


def communications_of(dump: Dump, line: np.ndarray) -> tuple[Communication, ...]:
    """Return the communication of a dump's forward Distributed calls, in the order of the file.

    `line`: where each row of `dump.rows` stands in the order that is meant, int of len(rows): `dump.rows["order"]`, or
    the lines of a comparison. A message whose sender or receiver the dump does not name is left out.
    """
    import numpy as np

    here = np.flatnonzero(of_communication(dump))
    if not len(here) or dump.part.rank is None:
        return ()
    mine = dump.rows.iloc[here]
    entries = zip(
        mine["call"].cat.codes.tolist(),
        mine["slot"].astype(str),
        mine["type"].astype(str),
        (mine["io"] == OUTPUT).tolist(),
        mine["value"],
        line[here].tolist(),
        strict=True,
    )
    by_call: dict[int, list[_Entry]] = {}
    for call, *entry in entries:
        by_call.setdefault(call, []).append(_Entry(*entry))
    return tuple(
        communication
        for call, call_entries in by_call.items()
        for communication in _of_call(
            dump.part.rank, dump.call_cell("name", call), dump.call_cell("operation", call), call_entries
        )
    )


def of_communication(dump: Dump) -> np.ndarray:
    """Mark the rows of forward Distributed calls: bool of len(rows)."""
    import numpy as np

    distributed = ((dump.calls["kind"] == "Distributed") & (dump.calls["phase"] == "forward")).to_numpy()
    return np.asarray(distributed[dump.rows["call"].cat.codes])


def gradient_reduction(dump: Dump, line: np.ndarray) -> Communication | None:
    """Return the averaging of gradients by DistributedDataParallel, which no hook sees, None where there is none.

    Its reducer works while the backward pass goes on, and what it gave is in the gradients that the optimizer takes in.
    Told by the frames of the stacks: DistributedDataParallel's forward, and torch.optim's step behind the last backward
    call. `line` as for communications_of.
    """
    import numpy as np

    calls, rank = dump.calls, dump.part.rank
    phase = calls["phase"].to_numpy()
    backward = np.flatnonzero(phase != "forward")
    if rank is None or not len(backward):
        return None
    before = np.flatnonzero(phase[: backward[0]] == "forward")
    if not _passes(dump, before, _DATA_PARALLEL):
        return None
    behind = np.arange(backward[-1] + 1, len(calls))
    optimizer = next((at for at in behind.tolist() if _optimizes(dump, at)), None)
    if optimizer is None:
        return None
    call = dump.rows["call"].cat.codes.to_numpy()
    gives = int(line[np.isin(call, backward)].max(initial=0))
    return Communication(
        rank, str(calls["name"].iat[optimizer]), "", None, "gradients", gives, int(line[call == optimizer].min())
    )


def _optimizes(dump: Dump, at: int) -> bool:
    return dump.call_cell("scope", at) in UPDATE_SCOPES or _passes(dump, [at], _OPTIMIZER)


def _passes(dump: Dump, calls: Iterable[int], file: re.Pattern[str]) -> bool:
    return any(file.search(frame) for at in calls for frame in dump.stack(dump.call_cell("name", at)))


@dataclass(frozen=True, slots=True)
class _Entry:
    slot: str
    type: str
    output: bool
    value: str | None
    line: int


def _of_call(rank: int, call: str, operation: str, entries: list[_Entry]) -> Iterator[Communication]:
    first = min(entry.line for entry in entries)
    given = max((entry.line for entry in entries if not entry.output), default=first)
    taken = min((entry.line for entry in entries if entry.output), default=given)
    arguments = {entry.slot: str(entry.value) for entry in entries if not entry.output}
    groups = [str(entry.value) for entry in entries if entry.type.endswith("ProcessGroup") and not entry.output]
    group = groups[0] if groups else ""
    if operation == BATCH:
        yield from _messages(rank, call, arguments, given, taken)
    elif operation in SENDS | RECEIVES:
        peer = _peer(arguments, group)
        if peer is not None:
            tag = _first(arguments, _TAG) or "0"
            sends = operation in SENDS
            yield _message(rank, call, group, peer, tag, given if sends else None, None if sends else taken)
    else:
        root = _root(operation, arguments, group)
        gives = operation not in FROM_ONE or root in (rank, None)
        takes = operation not in TO_ONE or root in (rank, None)
        yield Communication(rank, call, group, None, "", given if gives else None, taken if takes else None)


def _messages(rank: int, call: str, arguments: Mapping[str, str], given: int, taken: int) -> Iterator[Communication]:
    """Yield the messages of a batch_isend_irecv: one P2POp each."""
    for slot, operation in arguments.items():
        if not (match := _P2POP.match(slot)):
            continue
        of = match[1] or match[2]
        peer = arguments.get(f"{of}.peer", "")
        if not peer.isdecimal():
            continue
        group = f"#{arguments.get(f'{of}.group_id', '')}"
        sends = operation in SENDS
        tag = arguments.get(f"{of}.tag", "0")
        yield _message(rank, call, group, int(peer), tag, given if sends else None, None if sends else taken)


def _message(
    rank: int, call: str, group: str, peer: int, tag: str, gives: int | None, takes: int | None
) -> Communication:
    peers = (rank, peer) if gives is not None else (peer, rank)
    return Communication(rank, call, group, peers, tag, gives, takes)


def _peer(arguments: Mapping[str, str], group: str) -> int | None:
    return _global(_first(arguments, _PEER), _first(arguments, _GROUP_PEER), group)


def _root(operation: str, arguments: Mapping[str, str], group: str) -> int | None:
    """Return the rank that alone gives (broadcast, scatter) or takes (reduce, gather), None where it is not said."""
    slots = FROM_ONE.get(operation) or TO_ONE.get(operation) or ()
    return _global(_first(arguments, slots), _first(arguments, _GROUP_PEER), group)


def _global(rank: str | None, in_group: str | None, group: str) -> int | None:
    if rank is not None and rank.isdecimal():
        return int(rank)
    if in_group is None or not in_group.isdecimal():
        return None
    members = members_of(group)
    if not members:
        return int(in_group)
    return members[int(in_group)] if int(in_group) < len(members) else None


def members_of(group: str) -> tuple[int, ...]:
    """Return the ranks that a group's text names, () for the default group or a hash."""
    return tuple(int(rank) for rank in re.findall(r"\d+", group)) if group.startswith("[") else ()


def hash_of(group: str) -> str:
    """Return msprobe's hash of a group, the CRC-32 of the text of its ranks: eight hexadecimal digits."""
    return f"{zlib.crc32(group.encode()):08x}"


def _first(arguments: Mapping[str, str], slots: tuple[str, ...]) -> str | None:
    return next((arguments[slot] for slot in slots if slot in arguments), None)
