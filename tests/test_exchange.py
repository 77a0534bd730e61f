"""Ranks that hand a fault on, with the real msprobe under torchrun: the one that made it is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from collecting import free_port

from precdiag.collect import SideCommand, collect
from precdiag.compare import compare
from precdiag.judge import Policy
from precdiag.parts import Selection
from precdiag.session import Request

SCRIPT = Path(__file__).parent / "data" / "scripts" / "exchange.py"
POISON = "Tensor.__mul__.0.forward.input.1"
# What each step of exchange.py does, and where the fault first shows on the rank that it reaches.
ARRIVES = {
    "all_reduce": "Distributed.all_reduce.0.forward.output.0",
    "send": "Distributed.recv.0.forward.output.0",
    "isend": "Distributed.irecv.0.forward.output.0",
    "batch_isend_irecv": None,  # returns before anything has arrived: the next call sees it
    "all_reduce in a group": "Distributed.all_reduce.0.forward.output.0",
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Collect the script on two ranks, as it is and with rank 1 poisoned."""
    folder = tmp_path_factory.mktemp("exchange")
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port")
    commands = {
        side: SideCommand((*launch, str(free_port()), str(SCRIPT), *poisoned))
        for side, poisoned in (("baseline", ()), ("candidate", ("1",)))
    }
    collection = collect(folder / "x", Request(steps=(0, 1, 2, 3, 4)), commands, quiet=True)
    assert all(side.verified for side in collection.sides)
    return folder / "x/baseline", folder / "x/candidate"


@pytest.mark.parametrize(("step", "arrives"), list(enumerate(ARRIVES.values())), ids=ARRIVES)
def test_the_rank_that_poisoned_an_exchange_is_named_alone(
    two_ranks: tuple[Path, Path], step: int, arrives: str | None
) -> None:
    result = compare(*two_ranks, Policy(), Selection(steps=(step,)))
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name, result.cause.also) == (1, POISON, ())
    first = {part.place.rank: part.cause.row.name for part in result.parts if part.cause is not None}
    assert first.keys() == {0, 1}
    assert arrives is None or first[0] == arrives


@pytest.mark.parametrize(("step", "reached"), [(0, {0, 1, 3}), (1, {3}), (2, {3}), (3, {3}), (4, {3})], ids=ARRIVES)
def test_among_four_ranks_the_poisoned_one_is_named_alone(
    real: Callable[[str], Path], step: int, reached: set[int]
) -> None:
    folder = real("exchange4")
    result = compare(folder / "baseline", folder / "candidate", Policy(), Selection(steps=(step,)))
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name, result.cause.also) == (2, POISON, ())
    assert {part.place.rank for part in result.parts if part.cause is not None} == {2, *reached}
