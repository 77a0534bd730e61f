"""Bridge module paths that differ by a wrapper's prefix, or by a name that one side gave a module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

# Attributes under which wrappers keep the module they wrap: DDP and Megatron, torch.compile, FSDP, checkpoint_wrapper.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_MODULE = "Module."


@dataclass(frozen=True)
class Renames:
    """Subjects of the baseline (`Functional.linear`, `Module.net.fc`) by what the candidate calls them.

    `mapped`: the user said so. `bridged`: but for wrappers they are the same path. `learnt`: modules of one class that
    stand in one place of the sequence under two names. `forced`: calls by name, which pair whatever they are.
    """

    mapped: Mapping[str, str] = field(default_factory=dict)
    bridged: Mapping[str, str] = field(default_factory=dict)
    learnt: Mapping[str, str] = field(default_factory=dict)
    forced: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, str]:
        """Every rename, the user's word first."""
        return {**self.learnt, **self.bridged, **self.mapped}


def bridge(baseline: Iterable[str], candidate: Iterable[str]) -> dict[str, str]:
    """Pair module subjects that stand on one side only and are one path without wrappers (and model chunk numbers).

    Only what is unmistakable: where two paths of one side are the same without wrappers, neither is bridged.
    """
    left, right = orphans(baseline, candidate)
    bridged: dict[str, str] = {}
    for bare in (_without_wrappers, _without_chunk):
        names = [_unique(bare, side) for side in (left, right)]
        found = {names[0][path]: names[1][path] for path in names[0] if path in names[1]}
        bridged |= found
        left, right = left - found.keys(), right - set(found.values())
    return bridged


def orphans(baseline: Iterable[str], candidate: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the module subjects that stand on one side only."""
    sides = [{subject for subject in side if subject.startswith(_MODULE)} for side in (baseline, candidate)]
    return sides[0] - sides[1], sides[1] - sides[0]


def learn(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return renames from subjects that stood in one place, where each went to one other and no two to the same."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for left, right in pairs:
        votes[left][right] += 1
    chosen = {left: counter.most_common(1)[0][0] for left, counter in votes.items()}
    taken = Counter(chosen.values())
    return {left: right for left, right in chosen.items() if taken[right] == 1}


def _without_wrappers(subject: str) -> str:
    return ".".join(token for token in subject.split(".") if token not in WRAPPERS)


def _without_chunk(subject: str) -> str:
    """Drop the number that stands before every path when a list of models was given to msprobe."""
    kind, _, path = _without_wrappers(subject).partition(".")
    head, _, rest = path.partition(".")
    return f"{kind}.{rest}" if head.isdecimal() and rest else f"{kind}.{path}"


def _unique(bare: Callable[[str], str], subjects: set[str]) -> dict[str, str]:
    named: dict[str, list[str]] = defaultdict(list)
    for subject in subjects:
        named[bare(subject)].append(subject)
    return {short: names[0] for short, names in named.items() if len(names) == 1}
