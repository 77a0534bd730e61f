"""Which rank differs first: what one rank's work can have reached through collectives and messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from handmade import Json, forward, group, scalar, tensor, write

from precdiag.communication import Communication, communications_of, gradient_reduction
from precdiag.compare import compare
from precdiag.dump import read_dump
from precdiag.judge import Policy
from precdiag.layout import Part, open_run
from precdiag.parts import Selection
from precdiag.ranks import earliest, preceding
from precdiag.uninitialised import uninitialised

X = tensor()


def joined(rank: int, line: int, group: str = "") -> Communication:
    """A collective whose input stands at `line` and whose output behind it."""
    return Communication(rank, "Distributed.all_reduce.0.forward", group, None, "", line, line + 1)


def sent(rank: int, to: int, line: int, tag: str = "0", group: str = "") -> Communication:
    return Communication(rank, "Distributed.send.0.forward", group, (rank, to), tag, line, None)


def received(rank: int, source: int, line: int, tag: str = "0", group: str = "") -> Communication:
    return Communication(rank, "Distributed.recv.0.forward", group, (source, rank), tag, None, line)


# -- order


def test_a_difference_before_a_collective_precedes_one_behind_it_on_another_rank() -> None:
    through = {0: (joined(0, 10),), 1: (joined(1, 10),)}
    assert earliest({0: 11, 1: 3}, through) == (1,)
    assert earliest({0: 11, 1: 10}, through) == (1,)
    assert earliest({0: 10, 1: 3}, through) == (0, 1)
    assert earliest({0: 11, 1: 11}, through) == (0, 1)


def test_only_the_collectives_of_a_shared_group_bind() -> None:
    apart = {0: (joined(0, 5, "[0, 1]"),), 1: (joined(1, 5, "[0, 1]"),), 2: (joined(2, 5, "[2, 3]"),)}
    assert earliest({0: 9, 2: 1}, apart) == (0, 2)
    assert earliest({0: 9, 1: 1}, apart) == (1,)


def test_the_order_goes_on_through_ranks_that_do_not_differ_before() -> None:
    chain = {0: (sent(0, 1, 4),), 1: (received(1, 0, 2), sent(1, 2, 6)), 2: (received(2, 1, 8),)}
    assert earliest({0: 1, 2: 9}, chain) == (0,)
    assert earliest({0: 5, 2: 9}, chain) == (0, 2)


def test_a_message_carries_one_way() -> None:
    messages = {0: (sent(0, 1, 4),), 1: (received(1, 0, 4),)}
    assert earliest({0: 1, 1: 9}, messages) == (0,)
    assert earliest({0: 9, 1: 1}, messages) == (0, 1)


def test_messages_match_in_order_by_sender_receiver_group_and_tag() -> None:
    tags = {0: (sent(0, 1, 2, "7"), sent(0, 1, 4, "8")), 1: (received(1, 0, 3, "8"), received(1, 0, 9, "7"))}
    assert earliest({0: 1, 1: 4}, tags) == (0,)
    assert earliest({0: 3, 1: 4}, tags) == (0,)
    assert earliest({0: 4, 1: 4}, {**tags, 1: (received(1, 0, 3, "7"), received(1, 0, 9, "8"))}) == (0, 1)


def test_a_receive_that_was_posted_early_leaves_two_ranks_together_and_a_third_out() -> None:
    """Each of 0 and 1 posts its receive, differs, and sends; 2 hears of both."""
    messages = {
        0: (received(0, 1, 1), sent(0, 1, 8), sent(0, 2, 9)),
        1: (received(1, 0, 1), sent(1, 0, 8)),
        2: (received(2, 0, 1),),
    }
    assert earliest({0: 4, 1: 4, 2: 5}, messages) == (0, 1)


def test_one_group_written_in_three_ways_is_one_group() -> None:
    """The default group, its ranks, and msprobe's CRC-32 of their text."""
    through = {0: (joined(0, 5),), 1: (joined(1, 5, "[0, 1]"),)}
    assert earliest({0: 9, 1: 1}, through) == (1,)
    hashed = {0: (received(0, 1, 5),), 1: (sent(1, 0, 5, group="#77849d8c"),)}
    assert earliest({0: 9, 1: 1}, hashed) == (1,)


def test_many_ranks_are_ordered_in_time_linear_in_what_they_exchange() -> None:
    """A pipeline of 256 ranks, 64 microbatches there and back: the last to be reached is walked a few times only."""
    count, batches = 256, 64
    of: dict[int, list[Communication]] = {rank: [] for rank in range(count)}
    for batch in range(batches):
        for rank in range(count):
            line = 100 * batch
            if rank:
                of[rank].append(received(rank, rank - 1, line + 1))
            if rank < count - 1:
                of[rank].append(sent(rank, rank + 1, line + 3))
    communications = {rank: tuple(each) for rank, each in of.items()}
    differences = {rank: 0 if rank == 3 else 2 for rank in range(3, count)}
    assert earliest(differences, communications) == (3,)
    assert preceding(differences, communications)[255] == set(range(3, 255))


# -- what a dump says of its communication


def communication(folder: Path, data: dict[str, Json], rank: int = 1) -> list[tuple[object, ...]]:
    dump = read_dump(Part(write(folder, data), rank=rank))
    found = communications_of(dump, dump.rows["order"].to_numpy())
    return [(each.group, each.peers, each.tag, each.gives is not None, each.takes is not None) for each in found]


def test_collectives_say_who_gives_and_who_takes(tmp_path: Path) -> None:
    data = {
        "Distributed.all_reduce.0.forward": forward([X, group(1, 3)], [X]),
        "Distributed.broadcast.0.forward": forward([X], [X], src=scalar(0)),
        "Distributed.broadcast.1.forward": forward([X, scalar(1)], [X]),
        "Distributed.reduce.0.forward": forward([X], [X], group_dst=scalar(1), group=group(1, 3)),
        "Distributed.new_in_torch.0.forward": forward([X], [X]),
    }
    assert communication(tmp_path, data) == [
        ("[1, 3]", None, "", True, True),
        ("", None, "", False, True),
        ("", None, "", True, True),
        ("[1, 3]", None, "", True, False),
        ("", None, "", True, True),
    ]


def test_messages_say_sender_receiver_and_tag(tmp_path: Path) -> None:
    data = {
        "Distributed.send.0.forward": forward([X, scalar(0)], [X]),
        "Distributed.irecv.0.forward": forward([None], [X], src=scalar(2), tag=scalar(5)),
        "Distributed.isend.0.forward": forward([X], [None], group_dst=scalar(0), group=group(4, 1)),
        "Distributed.recv.0.forward": forward([None], [X]),
    }
    assert communication(tmp_path, data) == [
        ("", (1, 0), "0", True, False),
        ("", (2, 1), "5", False, True),
        ("[4, 1]", (1, 4), "0", True, False),
    ]


def operation(kind: str, peer: int, entry: Json) -> Json:
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": entry,
        "op": kind,
        "peer": peer,
        "tag": 0,
        "group_id": "77849d8c",
    }


def test_a_batch_is_its_messages_and_what_is_not_received_yet_proves_nothing(tmp_path: Path) -> None:
    batch = [operation("isend", 0, X), operation("irecv", 2, X)]
    data = {"Distributed.batch_isend_irecv.0.forward": forward([batch], [batch])}
    assert communication(tmp_path, data) == [
        ("#77849d8c", (1, 0), "0", True, False),
        ("#77849d8c", (2, 1), "0", False, True),
    ]
    dump = read_dump(Part(tmp_path, rank=1))
    marked = np.flatnonzero(uninitialised(dump)).tolist()
    assert [str(dump.rows["slot"].iat[at]) for at in marked] == ["input.0.1.tensor", "output.0.1.tensor"]


# -- what no hook sees


def test_gradients_that_ddp_averaged_are_inherited(real: Callable[[str], Path], tmp_path: Path) -> None:
    """The same runs without the all_reduce of their loss: nothing dumped binds the two ranks."""
    shutil.copytree(real("ddp"), tmp_path / "ddp")
    for path in tmp_path.rglob("dump.json"):
        document = json.loads(path.read_text())
        del document["data"]["Distributed.all_reduce.0.forward"]
        path.write_text(json.dumps(document))
    result = compare(tmp_path / "ddp/A", tmp_path / "ddp/C", Policy(), Selection(steps=(0,)))
    first = {part.place.rank: part.cause.row for part in result.parts if part.cause is not None}
    assert first[0].name == "Tensor.add_.0.forward.input.1"
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.kind, result.cause.also) == (1, "parameter", ())


def test_without_data_parallelism_an_optimizer_binds_nobody(real: Callable[[str], Path]) -> None:
    dump = read_dump(open_run(real("exchange4") / "baseline").parts[0])
    assert gradient_reduction(dump, dump.rows["order"].to_numpy()) is None
    wrapped = read_dump(open_run(real("ddp") / "A").parts[0])
    found = gradient_reduction(wrapped, wrapped.rows["order"].to_numpy())
    assert found is not None and found.call == "Tensor.add_.0.forward"
