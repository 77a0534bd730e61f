"""Order first differences across ranks through the communication that binds them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from precdiag.communication import Communication, communications_of, gradient_reduction, hash_of, members_of
from precdiag.judge import Judged

# A channel and the number within it: what the same collective, or the two ends of one message, have in common.
Meeting = tuple[str, tuple[int, int] | None, str, int]
_NEVER = math.inf


def earliest(
    differences: Mapping[int, int], communications: Mapping[int, tuple[Communication, ...]]
) -> tuple[int, ...]:
    """Return the keys of the first differences that no other precedes; several where that cannot be told.

    `differences`: the line of each differing rank's first difference; `communications`: those of all ranks, by the same
    keys. One difference precedes another where it can have reached it (Lamport's happened-before): the rank gave to a
    collective or a message after it, another took from that, and so on, before it differed itself. Two that precede
    each other (a receive that was posted early) are not told apart.
    """
    before = preceding(differences, communications)
    return tuple(key for key in differences if all(key in before[other] for other in before[key]))


def communications_in(judged: Judged, *, differs: bool = True) -> tuple[Communication, ...]:
    """Return the baseline's communication, placed by the lines of a comparison.

    `differs`: the rank has a difference to hand on; only then the averaging of gradients is looked for in its stacks.
    """
    import numpy as np

    at = judged.rows["baseline"].to_numpy()
    line = np.empty(len(judged.baseline.rows), dtype=np.int64)
    line[at[at >= 0]] = np.flatnonzero(at >= 0)
    reduction = gradient_reduction(judged.baseline, line) if differs else None
    found = (*communications_of(judged.baseline, line), *([reduction] if reduction else []))
    return tuple(sorted(found, key=lambda each: each.gives if each.gives is not None else each.takes or 0))


def preceding(
    differences: Mapping[int, int], communications: Mapping[int, tuple[Communication, ...]]
) -> dict[int, set[int]]:
    """Return, for each differing rank, the others whose first difference precedes its own."""
    meetings = meetings_of(communications)
    members: dict[Meeting, list[int]] = {}
    for key, met in meetings.items():
        for meeting, _ in met:
            members.setdefault(meeting, []).append(key)
    bit = {key: 1 << at for at, key in enumerate(differences)}
    brought: dict[Meeting, int] = {}
    reached = dict.fromkeys(differences, 0)
    waiting = dict.fromkeys(communications)  # ranks to walk, in order: again whenever something new is brought to them
    while waiting:
        key = next(iter(waiting))
        del waiting[key]
        line = differences.get(key, _NEVER)
        reached[key], new = _walk(meetings[key], line, bit.get(key, 0), brought)
        waiting.update(dict.fromkeys(other for meeting in new for other in members[meeting] if other != key))
    return {key: {other for other in differences if other != key and reached[key] & bit[other]} for key in differences}


def _walk(
    meetings: list[tuple[Meeting, Communication]], line: float, own: int, brought: dict[Meeting, int]
) -> tuple[int, list[Meeting]]:
    """Walk one rank's communications: bring to each what can be in the rank's work, and take what others brought.

    Differences are bits, `own` the rank's own, which exists from `line` on. Returns those that had reached the rank by
    then, and the meetings to which it brought new ones.
    """
    carried = reached = 0
    new = []
    for meeting, communication in meetings:
        there = brought.get(meeting, 0)
        if communication.gives is not None:
            given = carried | (own if line <= communication.gives else 0)
            if given & ~there:
                brought[meeting] = there | given
                new.append(meeting)
        if communication.takes is not None:
            carried |= there
            if communication.takes <= line:
                reached = carried
    return reached, new


def meetings_of(
    communications: Mapping[int, tuple[Communication, ...]],
) -> dict[int, list[tuple[Meeting, Communication]]]:
    """Return, with each rank's communications, what each meets: equal for all members of a collective, both ends of a
    message. Groups are told by the ranks in them, a channel's communications are numbered in order.
    """
    names = _group_names(communications)
    meetings: dict[int, list[tuple[Meeting, Communication]]] = {}
    for key, of_rank in communications.items():
        counts: dict[tuple[str, tuple[int, int] | None, str], int] = {}
        met = meetings[key] = []
        for communication in of_rank:
            channel = (
                names.get(communication.group, communication.group),
                communication.peers,
                communication.tag,
            )
            counts[channel] = counts.get(channel, -1) + 1
            met.append(((*channel, counts[channel]), communication))
    return meetings


def _group_names(communications: Mapping[int, tuple[Communication, ...]]) -> dict[str, str]:
    """Map every way to write a group, default group and hash included, to one.

    All ranks that are known of are the default group: two groups of the same ranks run their collectives in the same
    order, so taking them for one loses nothing.
    """
    groups = {communication.group for of_rank in communications.values() for communication in of_rank}
    ranks = {communication.rank for of_rank in communications.values() for communication in of_rank}
    world = str(sorted(ranks.union(*map(members_of, groups))))
    names = {"": world}
    for group in {world, *groups}:
        if members := members_of(group):
            sorted_text = str(sorted(members))
            names[group] = sorted_text
            names[f"#{hash_of(group)}"] = sorted_text
    return names
