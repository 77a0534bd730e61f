"""Tell which data each rank was given, and which ranks to pair where two ranks were merely given each other's."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precdiag.dump import Dump, fingerprints
from precdiag.rows import INPUT, OUTPUT

_INTEGERS = ("int", "uint", "long", "short")


@dataclass(frozen=True)
class Given:
    """What a pair of ranks was given: hashes of the data, 0 where a rank has none."""

    baseline_rank: int
    candidate_rank: int
    baseline: int
    candidate: int


def given_to(baseline: Dump, candidate: Dump) -> Given | None:
    """Say what a pair of dumps was given; None where one of them is of no numbered rank."""
    ranks = baseline.part.rank, candidate.part.rank
    if ranks[0] is None or ranks[1] is None:
        return None
    return Given(ranks[0], ranks[1], batch_of(baseline), batch_of(candidate))


def batch_of(dump: Dump) -> int:
    """Hash the integer tensors that forward calls take in and no dumped call gave out: tokens, labels, positions.

    By checksum or tensor file where there is one, else by Max and Min; equal for two dumps of any file names. 0 where
    there are none.
    """
    import numpy as np

    rows = dump.rows
    call = rows["call"].cat.codes.to_numpy()
    forward = (dump.calls["phase"] == "forward").to_numpy()[call]
    integral = rows["dtype"].cat.categories.str.removeprefix("torch.").str.lower().str.startswith(_INTEGERS)
    io = rows["io"].to_numpy()
    fresh = rows["tensor"].to_numpy() & (io == INPUT) & forward & np.asarray(integral)[rows["dtype"].cat.codes]
    if not fresh.any():
        return 0
    prints = fingerprints(dump)
    fresh &= ~np.isin(prints, prints[io == OUTPUT])
    chosen = rows[fresh].sort_values("order")
    texts = [
        f"{shape} {high} {low} {checksum} {_file_sum(dump, int(at))}"
        for at, shape, high, low, checksum in zip(
            chosen.index, chosen["shape"], chosen["max"], chosen["min"], chosen["checksum"], strict=True
        )
    ]
    return zlib.crc32("\n".join(texts).encode()) if texts else 0


def proposed_partners(given: Iterable[Given]) -> dict[int, int]:
    """Return the ranks to pair, baseline to candidate, among those that were given other data than their partners.

    Only where as many ranks of the candidate as of the baseline were given that data, and what is proposed is one
    rearrangement of the ranks it names; ranks given the same data are paired in their order.
    """
    there: dict[int, list[Given]] = {}
    here: dict[int, list[Given]] = {}
    for each in given:
        if each.baseline != each.candidate and each.baseline and each.candidate:
            here.setdefault(each.baseline, []).append(each)
            there.setdefault(each.candidate, []).append(each)
    partners = {
        left.baseline_rank: right.candidate_rank
        for batch, lefts in here.items()
        if len(lefts) == len(there.get(batch, ()))
        for left, right in zip(lefts, there[batch], strict=True)
    }
    return partners if set(partners) == set(partners.values()) else {}


def option_of(partners: Mapping[int, int]) -> str:
    """Return the option that pairs these ranks."""
    return "--pair-rank " + ",".join(f"{baseline}={candidate}" for baseline, candidate in sorted(partners.items()))


def _file_sum(dump: Dump, row: int) -> int | None:
    path = dump.tensor_path(row)
    try:
        return None if path is None else zlib.crc32(path.read_bytes())
    except OSError:
        return None
