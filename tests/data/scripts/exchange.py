"""Ranks that hand work to each other, another way every step; it knows nothing of precdiag.

    torchrun --nproc-per-node N exchange.py [POISONED_RANK]

A step is one layer on each rank's own batch, an exchange, and one more layer on what arrived. The poisoned rank scales
what its first layer gave, so that every other rank differs only behind the exchange.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, count = dist.get_rank(), dist.get_world_size()
poisoned = int(sys.argv[1]) if len(sys.argv) > 1 else None
after, before = (rank + 1) % count, (rank - 1) % count
# every even rank with the one behind it: the last step keeps to its pair
pairs = [dist.new_group([first, first + 1]) for first in range(0, count, 2)]


def reduced(mine: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(mine)
    return mine


def sent(mine: torch.Tensor) -> torch.Tensor:
    """Even ranks send first, so that nobody waits for ever."""
    theirs = torch.empty_like(mine)
    for send_now in (rank % 2 == 0, rank % 2 == 1):
        if send_now:
            dist.send(mine, after)
        else:
            dist.recv(theirs, src=before)
    return theirs


def posted(mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    for work in (dist.isend(mine, dst=after, tag=7), dist.irecv(theirs, src=before, tag=7)):
        work.wait()
    return theirs


def batched(mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, theirs, before)]
    ):
        work.wait()
    return theirs


def reduced_in_pairs(mine: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(mine, group=pairs[rank // 2])
    return mine


torch.manual_seed(0)
first, second = nn.Linear(8, 8), nn.Linear(8, 8)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.0)
for exchange in (reduced, sent, posted, batched, reduced_in_pairs):
    torch.manual_seed(rank)
    hidden = first(torch.randn(4, 8)) * (1.5 if rank == poisoned else 1.0)
    with torch.no_grad():
        arrived = exchange(hidden.clone())
    loss = second(arrived).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
