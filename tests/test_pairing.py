"""Which step and rank stands against which: by number, by hand, or as their data propose."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from handmade import Json, forward, group, scalar, tensor, write

from precdiag.compare import compare
from precdiag.comparison import Comparison
from precdiag.errors import UnreadableError, UsageError
from precdiag.judge import Policy
from precdiag.parts import Partners, Selection
from precdiag.report import comparison_text

B, C = tensor(high=2.0), tensor(high=3.0)


def tokens(highest: int) -> Json:
    return tensor(low=0, high=highest, dtype="torch.int64")


def rank(data: Json, weight: Json = B, y: Json = C) -> Json:
    """An embedding of what a rank was given."""
    return {"Functional.embedding.0.forward": forward([data, weight], [y])}


def run(folder: Path, **selection: object) -> Comparison:
    return compare(folder / "b", folder / "c", Policy(), Selection(**selection))  # type: ignore[arg-type]


def pairs(comparison: Comparison) -> list[tuple[str, str]]:
    return [(part.baseline.label, part.candidate.label) for part in comparison.parts]


@pytest.fixture
def shuffled(tmp_path: Path) -> Path:
    """Four ranks; the candidate's 1, 2 and 3 were given the data of the baseline's 2, 3 and 1."""
    for number, theirs in enumerate((0, 2, 3, 1)):
        write(tmp_path / f"b/step0/rank{number}", rank(tokens(10 + number), y=tensor(high=20.0 + number)))
        write(tmp_path / f"c/step0/rank{number}", rank(tokens(10 + theirs), y=tensor(high=20.0 + theirs)))
    return tmp_path


def test_ranks_that_were_given_each_others_data_are_proposed_as_partners(shuffled: Path) -> None:
    result = run(shuffled)
    assert (result.verdict, result.exit_code, result.cause) == ("not-comparable", 2, None)
    assert result.proposal == "--pair-rank 1=3,2=1,3=2"
    assert result.proposal in result.notes[0]
    assert result.proposal.replace(" ", "") in "".join(comparison_text(result).split("next")[-1].split())


def test_the_proposed_pairing_compares(shuffled: Path) -> None:
    result = run(shuffled, partners=Partners(ranks={1: 3, 2: 1, 3: 2}))
    assert (result.verdict, result.proposal) == ("no-divergence", None)
    assert pairs(result)[1] == ("step 0 rank 1", "step 0 rank 3")
    assert "ranks are paired by hand, baseline=candidate: 1=3; 2=1; 3=2" in result.notes


def test_data_that_no_other_rank_was_given_are_a_cause(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"b/step0/rank{number}", rank(tokens(10 + number)))
        write(tmp_path / f"c/step0/rank{number}", rank(tokens(10 + 5 * number)))
    result = run(tmp_path)
    assert result.cause is not None and result.proposal is None
    assert (result.cause.row.rank, result.cause.row.kind) == (1, "input")


def test_a_weight_that_differs_first_stays_the_cause_whatever_the_data(tmp_path: Path) -> None:
    for side, weight in (("b", B), ("c", C)):
        for number in range(2):
            data = {"Functional.linear.0.forward": forward([B, weight], [C])}
            given = number if side == "b" else 1 - number
            write(tmp_path / side / f"step0/rank{number}", data | rank(tokens(10 + given)))
    result = run(tmp_path)
    assert result.cause is not None and result.proposal is None
    assert result.cause.row.kind == "parameter"


def test_replicas_of_one_batch_are_paired_in_their_order(tmp_path: Path) -> None:
    """Two tensor-parallel ranks share a batch: 0 and 1 stand against 2 and 3."""
    for number in range(4):
        write(tmp_path / f"b/step0/rank{number}", rank(tokens(10 + number // 2)))
        write(tmp_path / f"c/step0/rank{number}", rank(tokens(10 + (1 - number // 2))))
    assert run(tmp_path).proposal == "--pair-rank 0=2,1=3,2=0,3=1"


# -- by hand


def test_what_is_not_named_keeps_its_number_or_stands_alone(tmp_path: Path) -> None:
    for number in range(3):
        for side in "bc":
            write(tmp_path / side / f"step0/rank{number}", rank(tokens(9)))
    result = run(tmp_path, partners=Partners(ranks={0: 1}))
    assert pairs(result) == [("step 0 rank 0", "step 0 rank 1"), ("step 0 rank 2", "step 0 rank 2")]
    assert {str(alone) for alone in result.one_sided} == {
        "step 0 rank 1 is only in the baseline",
        "step 0 rank 0 is only in the candidate",
    }
    assert result.exit_code == 2
    assert run(tmp_path, partners=Partners(ranks={0: 1}), ranks=(0, 2)).exit_code == 0


def test_steps_pair_by_hand_and_are_selected_by_the_baselines_numbers(tmp_path: Path) -> None:
    for number in (0, 1, 2):
        write(tmp_path / f"b/step{number}/rank0", rank(tokens(9 + number)))
        write(tmp_path / f"c/step{number + 10}/rank0", rank(tokens(9 + number)))
    partners = Partners(steps={0: 10, 1: 11, 2: 12})
    assert pairs(run(tmp_path, partners=partners))[2] == ("step 2 rank 0", "step 12 rank 0")
    assert pairs(run(tmp_path, partners=partners, steps=(1,))) == [("step 1 rank 0", "step 11 rank 0")]
    with pytest.raises(UnreadableError, match="no step and rank in common") as raised:
        run(tmp_path)
    assert "--pair-step" in (raised.value.hint or "")


def test_stages_pair_by_their_last_name(tmp_path: Path) -> None:
    for side, stage in (("b", "actor"), ("c", "actor_rollout")):
        for step in (1, 2):
            write(tmp_path / side / f"step_{step}/{stage}/step0/rank0", rank(tokens(step)))
    result = run(tmp_path, partners=Partners(stages={"actor": "actor_rollout"}))
    assert result.exit_code == 0
    assert pairs(result)[1] == ("step_2/actor step 0 rank 0", "step_2/actor_rollout step 0 rank 0")


@pytest.mark.parametrize(
    ("partners", "said"),
    [
        (Partners(ranks={0: 9}), "--pair-rank: .*c holds no rank 9"),
        (Partners(steps={5: 0}), "--pair-step: .*b holds no step 5"),
        (Partners(stages={"actor": "ref"}), "--pair-stage: .*b holds no stage actor"),
    ],
)
def test_a_partner_that_is_not_there_is_refused(tmp_path: Path, partners: Partners, said: str) -> None:
    for side in "bc":
        write(tmp_path / side / "step0/rank0", rank(tokens(9)))
    with pytest.raises(UsageError, match=said):
        run(tmp_path, partners=partners)


def sending(to: int, ranks: list[int], *, keyword: bool) -> Json:
    """A message to a peer, a reduction in a group, and a batch of one message, as msprobe writes them."""
    operation = {
        "class_type": "torch.distributed.P2POp",
        "tensor": B,
        "op": "isend",
        "peer": to,
        "tag": 0,
        "group_id": f"{zlib.crc32(str(ranks).encode()):08x}",
    }
    send = forward([B], [B, scalar(to)], dst=scalar(to)) if keyword else forward([B, scalar(to)], [B, scalar(to)])
    return {
        "Distributed.send.0.forward": send,
        "Distributed.all_reduce.0.forward": forward([B, group(*ranks)], [B, group(*ranks)]),
        "Distributed.batch_isend_irecv.0.forward": forward([[operation]], [[operation]]),
    }


@pytest.mark.parametrize("keyword", [True, False])
def test_peers_and_groups_are_told_by_the_ranks_that_are_paired(tmp_path: Path, keyword: bool) -> None:
    """The candidate's ranks 4 and 6 do what the baseline's 0 and 1 do."""
    for ours, theirs, to, peer in ((0, 4, 1, 6), (1, 6, 0, 4)):
        write(tmp_path / f"b/step0/rank{ours}", sending(to, [0, 1], keyword=keyword))
        write(tmp_path / f"c/step0/rank{theirs}", sending(peer, [4, 6], keyword=keyword))
    result = run(tmp_path, partners=Partners(ranks={0: 4, 1: 6}))
    assert (result.exit_code, result.coverage.different) == (0, 0)
    write(tmp_path / "c/step0/rank4", sending(4, [4, 6], keyword=keyword))  # it sends to itself
    cause = run(tmp_path, partners=Partners(ranks={0: 4, 1: 6})).cause
    assert cause is not None and (cause.row.kind, cause.row.rank) == ("argument", 0)
