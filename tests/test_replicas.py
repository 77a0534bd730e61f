"""Which rank of one dump is wrong: ranks that should agree are held against each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from handmade import Json, forward, group, tensor, write

from precdiag.comparison import Comparison
from precdiag.document import comparison_document
from precdiag.errors import UsageError
from precdiag.judge import Policy
from precdiag.parallelism import Parallelism
from precdiag.replicas import compare_replicas

A, B, C = tensor(high=1.0), tensor(high=2.0), tensor(high=3.0)
WEIGHT = "Module.net.fc.Linear.forward.0.parameters.weight"
REDUCED = "Distributed.all_reduce.0.forward.output.0"


def rank_data(number: int, weight: Json = B, reduced: Json = C, group: Json | None = None) -> Json:
    """A rank with data of its own, one module with a weight, and one all_reduce."""
    own = tensor(high=10.0 + number)
    extra = {} if group is None else {"group": group}
    return {
        "Module.net.fc.Linear.forward.0": forward([own], [own], {"weight": weight}),
        "Distributed.all_reduce.0.forward": forward([own], [reduced], **extra),
    }


def run(folder: Path, *ranks: Json, layout: Parallelism | None = None) -> Comparison:
    for number, data in enumerate(ranks):
        write(folder / f"step0/rank{number}", data, level="mix")
    return compare_replicas(folder / "step0", Policy(), layout=layout)


def test_replicas_that_agree_are_no_divergence_whatever_their_own_data(tmp_path: Path) -> None:
    result = run(tmp_path, *map(rank_data, range(4)))
    assert (result.verdict, result.exit_code, result.cause) == ("no-divergence", 0, None)
    assert result.coverage.equal == 3 * 2


@pytest.mark.parametrize("wrong", [0, 2])
def test_the_rank_that_the_majority_contradicts_is_named(tmp_path: Path, wrong: int) -> None:
    result = run(tmp_path, *(rank_data(number, weight=A if number == wrong else B) for number in range(4)))
    assert result.cause is not None and result.exit_code == 1
    assert (result.cause.row.rank, result.cause.row.name, result.cause.row.kind) == (wrong, WEIGHT, "parameter")
    assert result.cause.row.module == "net.fc"
    others = {0: "1-3", 2: "0-1,3"}[wrong]
    assert f"outvoted on this parameter: rank {wrong} against ranks {others}, which agree" in result.cause.why
    assert result.cause.row.metrics is not None
    assert (result.cause.row.metrics["baseline"], result.cause.row.metrics["candidate"]) == (2.0, 1.0)


def test_several_ranks_that_are_outvoted_are_named_together(tmp_path: Path) -> None:
    weights = (B, A, B, C, B)
    result = run(tmp_path, *(rank_data(number, weight=weight) for number, weight in enumerate(weights)))
    assert result.cause is not None
    assert [row.rank for row in (result.cause.row, *result.cause.also)] == [1, 3]


def test_two_ranks_that_differ_cannot_say_which_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, rank_data(0), rank_data(1, weight=A))
    assert result.cause is not None and result.exit_code == 1
    assert (result.cause.row.rank, result.cause.row.name) == (None, WEIGHT)
    assert "without a majority the dump cannot say which" in result.cause.why
    assert [row.rank for row in result.cause.also] == [0, 1]


def test_a_tie_of_two_against_two_names_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, *(rank_data(number, weight=A if number % 2 else B) for number in range(4)))
    assert result.cause is not None and result.cause.row.rank is None
    assert "ranks 0,2 against ranks 1,3" in result.cause.why


def test_a_collective_that_gave_one_rank_something_else_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, *(rank_data(number, reduced=A if number == 1 else C) for number in range(3)))
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name, result.cause.row.kind) == (1, REDUCED, "introduced")


def test_the_first_disagreement_in_the_order_of_work_counts(tmp_path: Path) -> None:
    """Rank 1 got something else from the collective, rank 3 holds another weight before it."""
    ranks = [rank_data(0), rank_data(1, reduced=A), rank_data(2), rank_data(3, weight=A), rank_data(4)]
    result = run(tmp_path, *ranks)
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name, result.cause.also) == (3, WEIGHT, ())


def test_collectives_bind_their_group_alone(tmp_path: Path) -> None:
    """Two groups reduce to other values; only within a group must they agree."""
    groups = (group(0, 1, 2), group(3, 4, 5))
    fine = [rank_data(number, reduced=(A, C)[number // 3], group=groups[number // 3]) for number in range(6)]
    assert run(tmp_path / "fine", *fine).exit_code == 0
    fine[4] = rank_data(4, reduced=B, group=groups[1])
    result = run(tmp_path / "faulty", *fine)
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name) == (4, REDUCED)


def test_with_a_layout_only_data_parallel_replicas_share_parameters(tmp_path: Path) -> None:
    """tp=2, pp=2, two replicas of each: ranks 0 and 2, 1 and 3, 4 and 6, 5 and 7 hold the same."""
    layout = Parallelism(tp=2, pp=2)

    def ranks(odd: int | None) -> list[Json]:
        held = (A, B, A, B, C, tensor(high=4.0), C, tensor(high=4.0))
        return [rank_data(n, weight=tensor(high=9.0) if n == odd else weight) for n, weight in enumerate(held)]

    assert run(tmp_path / "fine", *ranks(None), layout=layout).exit_code == 0
    result = run(tmp_path / "faulty", *ranks(6), layout=layout)
    assert result.cause is not None
    assert (result.cause.row.rank, [row.rank for row in result.cause.also]) == (None, [4, 6])


def test_a_rank_that_cannot_be_read_forbids_a_pass(tmp_path: Path) -> None:
    (tmp_path / "step0/rank3").mkdir(parents=True)
    result = run(tmp_path, *map(rank_data, range(3)))
    assert result.exit_code == 2
    assert any("rank3" in note for note in result.notes)


def test_one_rank_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two ranks"):
        run(tmp_path, rank_data(0))


def test_real_ranks_that_agree_agree(real: Callable[[str], Path]) -> None:
    """Their data differ; so do the halves that the last step's groups reduced to."""
    result = compare_replicas(real("exchange4") / "candidate", Policy())
    assert (result.verdict, result.coverage.different) == ("no-divergence", 0)
    assert result.coverage.equal == 51 + 14


def test_on_the_command_line_real_replicas_of_two_ranks_say_where_they_differ_first(
    real: Callable[[str], Path],
) -> None:
    command = [sys.executable, "-m", "precdiag", "compare", str(real("ddp") / "C/step0"), "--replicas"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 1, done.stderr
    assert "Module.module.0.Linear.forward.0.parameters.weight" in done.stdout
    assert "rank 0 against rank 1" in " ".join(done.stdout.split())
    document = comparison_document(compare_replicas(real("ddp") / "C", Policy()))
    jsonschema.validate(document, json.loads((Path(__file__).parent / "data" / "compare.schema.json").read_text()))
    cause = document["first_cause"]
    assert (cause["step"], cause["rank"], [other["rank"] for other in cause["also"]]) == (0, None, [0, 1])


# -- layouts


@pytest.mark.parametrize("layout", [Parallelism(), Parallelism(tp=2, pp=4), Parallelism(tp=4, pp=2, vpp=2)])
def test_places_and_ranks_are_each_others_inverse(layout: Parallelism) -> None:
    places = [layout.place(rank, 16) for rank in range(16)]
    assert len(set(places)) == 16
    assert [layout.rank_at(*place, 16) for place in places] == list(range(16))


def test_tensor_parallel_ranks_stand_next_to_each_other_and_stages_furthest_apart() -> None:
    layout = Parallelism(tp=2, pp=2)
    assert [layout.place(rank, 8) for rank in (0, 1, 2, 4)] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert layout.replicas(range(8)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(UsageError, match="no multiple"):
        layout.width(6)
