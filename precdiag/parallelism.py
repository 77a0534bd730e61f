"""Where a rank stands in a model that is split over ranks: tensor, data and pipeline parallel coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from precdiag.errors import UsageError

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Parallelism:
    """How one side splits the model, in Megatron's order of ranks: tensor fastest, data (context included), pipeline.

    tp, cp, pp: tensor, context and pipeline parallel sizes. vpp: virtual chunks a pipeline stage, interleaved. sp: 1
    where activations are split along the sequence between tensor parallel ranks. The rest is data parallel.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    sp: int = 0

    @property
    def shards(self) -> tuple[int, int, int]:
        """What decides which part of a tensor a rank holds: two sides that agree in it hold the same parts."""
        return self.tp, self.cp, self.sp if self.tp > 1 else 0

    def __str__(self) -> str:
        sizes = (("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("vpp", self.vpp), ("sp", self.sp))
        return ",".join(f"{name}={size}" for name, size in sizes if size > 1 or (name == "sp" and size)) or "one piece"

    def width(self, world: int) -> int:
        """Return how many data parallel replicas `world` ranks are. Raises UsageError where they do not divide."""
        width, rest = divmod(world, self.tp * self.pp)
        if rest or not width:
            raise UsageError(
                f"{world} ranks are no multiple of tp x pp = {self.tp * self.pp}",
                hint="a layout is of one run's ranks, all of them: --baseline-layout, --candidate-layout",
            )
        return width

    def place(self, rank: int, world: int) -> tuple[int, int, int]:
        """Return a rank's tensor, data and pipeline parallel coordinates among `world` ranks."""
        width = self.width(world)
        return rank % self.tp, rank // self.tp % width, rank // (self.tp * width)

    def rank_at(self, tensor: int, data: int, stage: int, world: int) -> int:
        """Return the rank at these coordinates: the inverse of `place`."""
        return tensor + self.tp * (data + self.width(world) * stage)

    def replicas(self, ranks: Iterable[int]) -> list[list[int]]:
        """Group ranks that hold the same parameters: equal but for their data parallel coordinate."""
        ranks = sorted(ranks)
        world = world_of(ranks)
        groups: dict[tuple[int, int], list[int]] = {}
        for rank in ranks:
            tensor, _, stage = self.place(rank, world)
            groups.setdefault((tensor, stage), []).append(rank)
        return list(groups.values())


def parallelism_of(sizes: Mapping[Name, int]) -> Parallelism:
    """Return the layout that the settings give: tp, cp, pp, vpp and sp by name. Raises UsageError for a size of 0."""
    if none := [name for name, size in sizes.items() if not size and name != "sp"]:
        raise UsageError(f"{none[0]}=0: a layout splits into one piece at least", hint=f"{none[0]}=1, or leave it out")
    return Parallelism(**{str(name): size for name, size in sizes.items()})


def world_of(ranks: Iterable[int]) -> int:
    """Return how many ranks a run had, judged by those that dumped: one more than the last."""
    return max(ranks, default=0) + 1
