"""Alignment: by sequence and not by call counter, so that what one side did otherwise shifts no later pair."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Json, backward, forward, scalar, tensor, write
from hypothesis import given, settings
from hypothesis import strategies as st

from precdiag import sequence
from precdiag.align import Pairing, pair
from precdiag.compare import compare
from precdiag.document import comparison_document
from precdiag.dump import Dump, read_dump
from precdiag.edits import common_runs
from precdiag.errors import UnreadableError
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.report import comparison_text
from precdiag.sequence import align_sequences

# A call of a hand-made dump: what it calls and what it computes.
Call = tuple[str, float]


def dump(folder: Path, data: Json, **more: Any) -> Dump:
    return read_dump(Part(write(folder, data, **more)))


def numbered(calls: Sequence[Call]) -> Json:
    """Write calls as msprobe does, each API with a counter of its own."""
    data: Json = {}
    counters: dict[str, int] = {}
    for api, value in calls:
        at = counters[api] = counters.get(api, -1) + 1
        name = f"{api}.forward.{at}" if api.startswith("Module") else f"{api}.{at}.forward"
        data[name] = forward([tensor(high=value)], [tensor(high=value + 0.5)])
    return data


def paired(folder: Path, left: Sequence[Call], right: Sequence[Call]) -> Pairing:
    return pair(dump(folder / "b", numbered(left)), dump(folder / "c", numbered(right)))


def partners(pairing: Pairing) -> dict[int, int]:
    both = pairing.calls[pairing.calls["how"] != ""]
    return dict(zip(both["baseline"].tolist(), both["candidate"].tolist(), strict=True))


def named(first: Dump, second: Dump, pairing: Pairing) -> list[tuple[str, str, str]]:
    """The pairs by name, with how each came about."""
    both = pairing.calls[pairing.calls["how"] != ""].sort_values("baseline")
    columns = (first.calls["name"].iloc[both["baseline"]], second.calls["name"].iloc[both["candidate"]], both["how"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


FLOW: list[Call] = [("Torch.a", 1.0), ("Torch.b", 2.0), ("Torch.a", 3.0), ("Torch.c", 4.0), ("Torch.b", 5.0)]


@pytest.mark.parametrize("at", range(len(FLOW) + 1))
@pytest.mark.parametrize("extra", [("Torch.a", 9.0), ("Torch.new", 1.0)])
def test_a_call_inserted_anywhere_shifts_no_pair(tmp_path: Path, at: int, extra: Call) -> None:
    longer = [*FLOW[:at], extra, *FLOW[at:]]
    expected = {place: place + (place >= at) for place in range(len(FLOW))}
    assert partners(paired(tmp_path / "1", FLOW, longer)) == expected
    assert partners(paired(tmp_path / "2", longer, FLOW)) == {new: old for old, new in expected.items()}


def test_a_call_inserted_twice_leaves_two_one_sided_calls(tmp_path: Path) -> None:
    longer = [("Torch.a", 8.0), *FLOW[:3], ("Torch.a", 8.0), *FLOW[3:]]
    assert partners(paired(tmp_path, FLOW, longer)) == {0: 1, 1: 2, 2: 3, 3: 5, 4: 6}


def test_among_longest_alignments_equal_values_are_preferred_to_equal_names(tmp_path: Path) -> None:
    pairing = paired(tmp_path, [("Torch.a", 2.0)], [("Torch.a", 1.0), ("Torch.a", 2.0)])
    assert partners(pairing) == {0: 1}
    assert pairing.calls["how"].tolist() == ["sequence", ""]


def test_without_equal_values_equal_shapes_are_preferred_to_equal_names(tmp_path: Path) -> None:
    def call(high: float, *shape: int) -> Json:
        return forward([tensor(high=high, shape=shape)], [tensor(high=high, shape=shape)])

    left = dump(tmp_path / "b", {"Torch.a.0.forward": call(1.0, 3, 4)})
    right = dump(tmp_path / "c", {"Torch.a.0.forward": call(2.0, 5, 1), "Torch.a.1.forward": call(3.0, 3, 4)})
    assert partners(pair(left, right)) == {0: 1}


def test_without_anything_else_equal_names_are_preferred(tmp_path: Path) -> None:
    pairing = paired(tmp_path, [("Torch.a", 1.0)], [("Torch.a", 2.0), ("Torch.a", 3.0)])
    assert partners(pairing) == {0: 0}


def test_two_swapped_calls_pair_all_the_same_and_it_is_said(tmp_path: Path) -> None:
    swapped = [FLOW[0], FLOW[3], FLOW[2], FLOW[1], FLOW[4]]
    pairing = paired(tmp_path, FLOW, swapped)
    assert partners(pairing) == {0: 0, 1: 3, 2: 2, 3: 1, 4: 4}
    assert any("calls stand elsewhere in the order" in note for note in pairing.notes)


def test_swapped_calls_pair_too_where_no_value_is_equal(tmp_path: Path) -> None:
    left: list[Call] = [("Torch.a", 1.0), ("Torch.b", 2.0), ("Torch.c", 3.0)]
    right: list[Call] = [("Torch.b", 5.0), ("Torch.a", 4.0), ("Torch.c", 6.0)]
    assert partners(paired(tmp_path, left, right)) == {0: 1, 1: 0, 2: 2}


def test_a_module_pairs_by_its_path_whatever_its_class(tmp_path: Path) -> None:
    data = forward([tensor()], [tensor()])
    left = dump(tmp_path / "b", {"Module.net.fc.Linear.forward.0": data, "Torch.a.0.forward": data}, level="mix")
    right = dump(tmp_path / "c", {"Module.net.fc.NpuLinear.forward.0": data, "Torch.a.0.forward": data}, level="mix")
    assert named(left, right, pair(left, right))[0] == (
        "Module.net.fc.Linear.forward.0",
        "Module.net.fc.NpuLinear.forward.0",
        "sequence",
    )


def test_a_renamed_module_pairs_by_its_place_and_class(tmp_path: Path) -> None:
    def data(*names: str) -> Json:
        call = forward([tensor()], [tensor()])
        return {f"Module.{name}.forward.0": call for name in names} | {
            f"Module.{names[1]}.backward.0": backward([tensor()], [tensor()])
        }

    left = dump(tmp_path / "b", data("emb.Embedding", "up.Linear", "down.Linear", "norm.Norm"))
    right = dump(tmp_path / "c", data("emb.Embedding", "fc1.Linear", "down.Linear", "norm.Norm"))
    pairs = named(left, right, pair(left, right))
    assert len(pairs) == 5
    assert ("Module.up.Linear.forward.0", "Module.fc1.Linear.forward.0", "sequence") in pairs
    assert ("Module.up.Linear.backward.0", "Module.fc1.Linear.backward.0", "sequence") in pairs


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("Module.{}.Linear", "Module.module.{}.Linear"),
        ("Module.net.{}.Linear", "Module.module.net._orig_mod.{}.Linear"),
        ("Module.net.{}.Linear", "Module.0.module.net.{}.Linear"),
    ],
)
def test_a_wrappers_prefix_is_bridged_and_said(tmp_path: Path, plain: str, wrapped: str) -> None:
    call = forward([tensor()], [tensor()])
    for first, second in ((plain, wrapped), (wrapped, plain)):
        sides = [
            dump(tmp_path / str(len(first)) / side, {f"{name.format(at)}.forward.0": call for at in "ab"})
            for side, name in (("b", first), ("c", second))
        ]
        pairing = pair(sides[0], sides[1])
        assert [how for _, _, how in named(*sides, pairing)] == ["prefix", "prefix"]
        assert any("wrapper's prefix" in note for note in pairing.notes)


def test_two_chunks_of_one_model_are_not_bridged_onto_one_path(tmp_path: Path) -> None:
    call = forward([tensor()], [tensor()])
    both = {"Torch.a.0.forward": call}
    left = dump(tmp_path / "b", both | {"Module.fc.Linear.forward.0": call})
    right = dump(tmp_path / "c", both | {f"Module.{chunk}.fc.Mlp.forward.0": call for chunk in "01"})
    assert len(named(left, right, pair(left, right))) == 1


def test_parameters_grad_of_old_and_new_versions_pair_by_name(tmp_path: Path) -> None:
    grad = {"weight": [tensor()]}
    left = dump(tmp_path / "b", {"Module.fc.Linear.parameters_grad": grad}, level="L0")
    right = dump(tmp_path / "c", {"Module.fc.Linear.parameters_grad.0": grad}, level="L0")
    pairing = pair(left, right)
    assert named(left, right, pairing)[0][2] == "name"
    assert (pairing.rows[["baseline", "candidate"]] >= 0).all(axis=None)


def test_backward_calls_pair_by_sequence_although_recomputation_moved_their_counters(real: Any) -> None:
    folder = real("cases") / "p09_recompute_counts"
    left, right = (read_dump(Part(folder / side)) for side in ("bench", "npu"))
    pairs = named(left, right, pair(left, right))
    assert ("Functional.gelu.0.backward", "Functional.gelu.1.backward", "sequence") in pairs
    assert len(pairs) == 6


# -- where to stop


def test_where_too_little_matches_it_stops_and_names_both_neighbours(tmp_path: Path) -> None:
    head: list[Call] = [("Torch.a", float(at)) for at in range(10)]
    left = head + [(f"Torch.l{at}", 50.0) for at in range(30)] + [("Torch.same", 7.0)]
    right = head + [(f"Torch.r{at}", 60.0) for at in range(30)] + [("Torch.same", 8.0)]
    pairing = paired(tmp_path, left, right)
    assert partners(pairing) == {at: at for at in range(10)}
    assert pairing.stopped == (10, 10)
    said = "not comparable beyond here: Torch.l0.0.forward in the baseline, Torch.r0.0.forward in the candidate"
    assert any(note.startswith(said) for note in pairing.notes)


def test_what_only_one_side_did_stops_nothing(tmp_path: Path) -> None:
    more = FLOW + [(f"Torch.new{at}", 1.0) for at in range(40)] + [("Torch.z", 7.0)]
    pairing = paired(tmp_path, [*FLOW, ("Torch.z", 7.0)], more)
    assert pairing.stopped is None
    assert len(partners(pairing)) == len(FLOW) + 1


def test_two_dumps_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="nothing in common: 0 of 2 calls"):
        paired(tmp_path / "1", [("Torch.a", 1.0), ("Torch.b", 1.0)], [("Torch.c", 1.0), ("Torch.d", 1.0)])
    with pytest.raises(UnreadableError, match="nothing in common"):
        paired(
            tmp_path / "2",
            [(f"Torch.a{at}", 1.0) for at in range(20)] + [("Torch.z", 1.0)],
            [(f"Torch.b{at}", 1.0) for at in range(20)] + [("Torch.z", 1.0)],
        )


# -- properties

calls_of = st.lists(st.tuples(st.sampled_from(["Torch.a", "Torch.b", "Tensor.c"]), st.sampled_from([1.0, 2.0, 3.0])))


@settings(max_examples=60, deadline=None)
@given(base=calls_of.filter(bool), data=st.data())
def test_inserting_calls_yields_as_many_one_sided_calls_and_changes_no_pair(
    tmp_path_factory: pytest.TempPathFactory, base: list[Call], data: st.DataObject
) -> None:
    """The inserted calls differ from their neighbours: another operation, or values that stand nowhere else."""
    inserted = data.draw(
        st.lists(st.sampled_from([("Torch.a", 90.0), ("Tensor.c", 91.0), ("Torch.new", 1.0)]), max_size=5)
    )
    places = sorted(data.draw(st.lists(st.integers(0, len(base)), min_size=len(inserted), max_size=len(inserted))))
    longer: list[Call] = []
    expected: dict[int, int] = {}
    for at in range(len(base) + 1):
        longer += [call for call, place in zip(inserted, places, strict=True) if place == at]
        if at < len(base):
            expected[at] = len(longer)
            longer.append(base[at])
    pairing = paired(tmp_path_factory.mktemp("insert"), base, longer)
    found = partners(pairing)
    # Where two neighbours of the baseline are equal in everything, either may be called the partner of either.
    assert [longer[found[at]] for at in found] == [base[at] for at in found]
    assert len(found) == len(base)
    assert (pairing.calls["how"] == "").sum() == len(inserted)
    assert not {longer[at] for at in set(range(len(longer))) - set(found.values())} - set(inserted)
    if len(set(base)) == len(base):
        assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=30), st.integers(0, 2**32))
def test_an_alignment_is_a_longest_common_subsequence(left: list[int], right: list[int], seed: int) -> None:
    """Against the textbook recurrence, by every way that a gap can be solved."""
    lengths = np.zeros((len(left) + 1, len(right) + 1), dtype=int)
    for row, one in enumerate(left):
        for column, other in enumerate(right):
            inherited = max(lengths[row, column + 1], lengths[row + 1, column])
            lengths[row + 1, column + 1] = max(inherited, lengths[row, column] + (one == other))
    sides = [made(keys, np.random.default_rng(seed + at)) for at, keys in enumerate((left, right))]
    found = [align_sequences(sides[0], sides[1]), sequence.exact(sides[0], sides[1]), sequence.halved(*sides, cells=20)]
    runs = common_runs(sides[0].key, sides[1].key)
    assert runs is not None
    found.append((spelt_out(runs[:, 0], runs[:, 2]), spelt_out(runs[:, 1], runs[:, 2])))
    for at, against in found:
        assert len(at) == lengths[-1, -1]
        assert (np.diff(at) > 0).all() and (np.diff(against) > 0).all()
        assert (sides[0].key[at] == sides[1].key[against]).all()


def spelt_out(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    places = [np.arange(begin, begin + length) for begin, length in zip(begins, lengths, strict=True)]
    return np.concatenate([np.array([], dtype=np.int64), *places])


def made(keys: Sequence[int], rng: np.random.Generator) -> sequence.Sequence:
    size = len(keys)
    key = np.array(keys, dtype=np.int64)
    values = np.zeros((size, sequence.ROWS_COMPARED), dtype=np.uint64)
    values[:, 0] = rng.integers(1, 2**60, size) if size else 0
    whole = values[:, 0] ^ key.astype(np.uint64)
    return sequence.Sequence(key, whole, np.arange(size), values, np.ones_like(values))


@pytest.mark.parametrize("alike", [True, False])
def test_a_hundred_thousand_calls_with_a_thousand_insertions_align_in_seconds(alike: bool) -> None:
    """With equal values, and with not one value that could serve as an anchor."""
    rng = np.random.default_rng(0)
    keys = np.tile(rng.integers(0, 40, 500), 200)
    base = made(keys.tolist(), rng)
    places = np.sort(rng.choice(len(keys), 1000, replace=False))
    longer = made(np.insert(keys, places, 99).tolist(), rng)
    kept = np.delete(np.arange(len(longer.key)), places + np.arange(1000))
    if alike:
        longer.whole[kept], longer.values[kept] = base.whole, base.values
    began = time.perf_counter()
    at, against = align_sequences(base, longer)
    assert time.perf_counter() - began < (2 if alike else 15)
    assert len(at) == len(keys) and (against == kept).all()


def test_arguments_tell_repeated_calls_apart(tmp_path: Path) -> None:
    data = {f"Torch.a.{at}.forward": forward([tensor(), scalar(at)], [tensor()]) for at in range(3)}
    left = dump(tmp_path / "b", data)
    right = dump(
        tmp_path / "c",
        {"Torch.a.0.forward": forward([tensor(), scalar(7)], [tensor()])}
        | {f"Torch.a.{at + 1}.forward": call for at, call in enumerate(data.values())},
    )
    assert partners(pair(left, right)) == {0: 1, 1: 2, 2: 3}


# -- how it is told


def test_each_pair_says_how_it_was_matched_in_json_and_in_the_table(tmp_path: Path) -> None:
    write(tmp_path / "b", numbered(FLOW))
    write(tmp_path / "c", numbered([("Torch.a", 8.0), *FLOW[:4], ("Torch.b", 5.5)]))
    result = compare(tmp_path / "b", tmp_path / "c", Policy())
    document = comparison_document(result)
    assert document["alignment"] == {
        "calls": {"name": 3, "sequence": 2, "map": 0, "prefix": 0, "baseline_only": 0, "candidate_only": 1},
        "pairs": [
            {"baseline": f"Torch.a.{at}.forward", "candidate": f"Torch.a.{at + 1}.forward", "how": "sequence"}
            | {"moved": False}
            for at in range(2)
        ],
        "stopped": None,
    }
    assert document["first_cause"]["name"] == "Torch.b.1.forward.input.0"
    assert document["first_cause"]["how"] == "name"
    table = comparison_text(result)
    assert "2 calls pair by their place in the sequence" in " ".join(table.split())


def test_the_table_names_the_partner_of_a_row_that_did_not_pair_by_name(tmp_path: Path) -> None:
    write(tmp_path / "b", numbered(FLOW))
    write(tmp_path / "c", numbered([("Torch.b", 8.0), *FLOW[:4], ("Torch.b", 5.5)]))
    result = compare(tmp_path / "b", tmp_path / "c", Policy())
    assert result.cause is not None
    assert (result.cause.row.name, result.cause.row.partner) == (
        "Torch.b.1.forward.input.0",
        "Torch.b.2.forward.input.0",
    )
    table = comparison_text(result)
    assert "= Torch.b.2.forward.input.0 (by sequence)" in table
    assert "against Torch.b.2.forward.input.0, paired by sequence" in " ".join(table.split())
