"""Two sides that split the model differently: stages joined, layers renumbered, shards unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import Json, backward, forward, tensor, write

from precdiag.compare_layouts import SHARDED, compare_layouts
from precdiag.comparison import Comparison
from precdiag.dump import Dump, read_dump
from precdiag.errors import UsageError
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.parallelism import Parallelism
from precdiag.parts import Partners, Selection
from precdiag.stages import join_stages

ONE = Parallelism()


def x(number: float, shape: tuple[int, ...] = (2, 4)) -> Json:
    return tensor(high=number, shape=shape)


def layer(path: str, before: float, after: float, batch: int = 0) -> dict[str, Json]:
    """A layer's forward call of one microbatch; its weight is told by what it gives out."""
    return {f"Module.{path}.Layer.forward.{batch}": forward([x(before)], [x(after)], {"weight": x(100 + after)})}


def back(path: str, after: float, batch: int = 0) -> dict[str, Json]:
    return {f"Module.{path}.Layer.backward.{batch}": backward([x(-after)], [x(-after + 1)])}


def dumps(folder: Path, *ranks: dict[str, Json]) -> list[Dump]:
    return [
        read_dump(Part(write(folder / f"step0/rank{number}", data, level="L0"), step=0, rank=number))
        for number, data in enumerate(ranks)
    ]


def names(dump: Dump) -> list[str]:
    return dump.calls["name"].tolist()


# -- joining


def test_layers_get_the_numbers_of_the_whole_model(tmp_path: Path) -> None:
    ranks = (
        layer("decoder.layers.0", 1, 2) | layer("decoder.layers.1", 2, 3),
        layer("decoder.layers.0", 3, 4),
        layer("decoder.layers.0", 4, 5) | layer("decoder.layers.1", 5, 6) | layer("mtp.layers.0", 6, 7),
    )
    joined = join_stages(dumps(tmp_path, *ranks), Part(tmp_path))
    assert joined.calls["module"].tolist() == [*(f"decoder.layers.{n}" for n in range(5)), "mtp.layers.0"]
    assert names(joined)[3] == "Module.decoder.layers.3.Layer.forward.0"
    assert joined.calls["holder"].tolist() == [0, 0, 1, 2, 2, 2]
    assert sorted(joined.rows["order"]) == list(range(len(joined.rows)))


def test_interleaved_chunks_are_dealt_out_as_megatron_does(tmp_path: Path) -> None:
    """pp=2, vpp=2, one layer a chunk: rank 0 holds layers 0 and 2, rank 1 holds 1 and 3."""
    ranks = (
        layer("0.module.decoder.layers.0", 1, 2) | layer("1.module.decoder.layers.0", 3, 4),
        layer("0.module.decoder.layers.0", 2, 3) | layer("1.module.decoder.layers.0", 4, 5),
    )
    joined = join_stages(dumps(tmp_path, *ranks), Part(tmp_path), chunks=2)
    assert joined.calls["module"].tolist() == [f"module.decoder.layers.{n}" for n in range(4)]
    assert joined.calls["holder"].tolist() == [0, 1, 0, 1]
    assert joined.calls["old"].tolist()[2] == "Module.1.module.decoder.layers.0.Layer.forward.0"


def test_work_is_ordered_microbatch_by_microbatch_there_and_back(tmp_path: Path) -> None:
    """Rank 0 runs a microbatch ahead; one process would finish each before it begins the next."""
    first = layer("layers.0", 1, 2) | layer("layers.0", 1, 3, 1) | back("layers.0", 2) | back("layers.0", 3, 1)
    second = layer("layers.0", 2, 4) | back("layers.0", 4) | layer("layers.0", 3, 5, 1) | back("layers.0", 5, 1)
    joined = join_stages(dumps(tmp_path, first, second), Part(tmp_path))
    assert names(joined) == [
        f"Module.layers.{number}.Layer.{direction}.{batch}"
        for batch in (0, 1)
        for direction, number in (("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0))
    ]


def test_a_container_takes_in_what_the_first_stage_did_and_gives_out_what_the_last_did(tmp_path: Path) -> None:
    ranks = []
    for number in (0, 1):
        inner = layer("decoder.layers.0", 1 + number, 2 + number)
        block = {"Module.decoder.Block.forward.0": forward([x(1 + number)], [x(2 + number)])}
        folder = tmp_path / f"step0/rank{number}"
        construct: dict[str, str | None] = {"Module.decoder.layers.0.Layer.forward.0": "Module.decoder.Block.forward.0"}
        write(folder, inner | block, construct=construct, level="L0")
        ranks.append(read_dump(Part(folder, rank=number)))
    joined = join_stages(ranks, Part(tmp_path))
    assert names(joined)[-1] == "Module.decoder.Block.forward.0" and len(names(joined)) == 3
    assert joined.calls["parent"].tolist() == [2, 2, -1]
    rows = joined.rows[joined.rows["call"] == "Module.decoder.Block.forward.0"]
    assert rows["max"].tolist() == [1, 3]
    first = joined.rows.sort_values("order").iloc[0]
    assert (first["call"], first["slot"]) == ("Module.decoder.Block.forward.0", "input.0")


# -- comparing


def compared(folder: Path, layouts: tuple[Parallelism, Parallelism], **selection: object) -> Comparison:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return compare_layouts(folder / "b", folder / "c", Policy(), layouts, chosen)


def test_a_real_run_in_two_stages_is_compared_with_a_whole_one(real: Callable[[str], Path]) -> None:
    """Layer 3 of the whole model, whose weight was scaled, is layer 1 of rank 1; the stages ran one forward ahead."""
    folder = real("pipeline")
    result = compare_layouts(folder / "whole", folder / "staged", Policy(), (ONE, Parallelism(pp=2)))
    assert result.cause is not None
    assert result.cause.row.name == "Module.decoder.layers.3.up.Linear.forward.0.parameters.weight"
    assert (result.cause.row.kind, result.exit_code) == ("parameter", 1)
    assert (result.coverage.baseline_only, result.coverage.candidate_only) == (0, 0)
    where = "rank 1 of the candidate (Module.decoder.layers.1.up.Linear.forward.0)"
    assert any(where in note for note in result.notes)


def test_a_real_run_in_stages_is_equal_to_itself_whole(real: Callable[[str], Path]) -> None:
    """The staged run against itself, joined on both sides by two layouts that mean the same stages."""
    staged = real("pipeline") / "staged"
    parts = [Part(staged / f"step0/rank{number}", step=0, rank=number) for number in (0, 1)]
    joined = join_stages([read_dump(part) for part in parts], Part(staged))
    assert len(joined.calls) == len(set(names(joined)))
    assert (joined.calls["parent"] < len(joined.calls)).all()
    assert sum(joined.calls["holder"] == 1) > 40


def test_data_parallel_models_pair_by_their_place(tmp_path: Path) -> None:
    """dp=2: whole on ranks 0 and 1; in stages on ranks 0, 2 and 1, 3."""
    for replica in (0, 1):
        whole = layer("layers.0", 1 + replica, 2) | layer("layers.1", 2, 3 + replica)
        write(tmp_path / f"b/step0/rank{replica}", whole, level="L0")
        write(tmp_path / f"c/step0/rank{replica}", layer("layers.0", 1 + replica, 2), level="L0")
        faulty = 0.5 if replica else 0.0
        write(tmp_path / f"c/step0/rank{2 + replica}", layer("layers.0", 2, 3 + replica + faulty), level="L0")
    result = compared(tmp_path, (ONE, Parallelism(pp=2)))
    assert result.cause is not None
    assert (result.cause.row.rank, result.cause.row.name) == (1, "Module.layers.1.Layer.forward.0.parameters.weight")
    assert any("rank 3 of the candidate (Module.layers.0.Layer.forward.0)" in note for note in result.notes)
    assert compared(tmp_path, (ONE, Parallelism(pp=2)), ranks=(0,)).exit_code == 0


def test_rows_of_other_shape_are_unknown_where_tensors_are_sharded_differently(tmp_path: Path) -> None:
    def rank(width: int, y: float) -> dict[str, Json]:
        up = {"Module.up.Column.forward.0": forward([x(1)], [x(2, (2, width))], {"weight": x(5, (width, 4))})}
        half = {"Functional.linear.0.forward": forward([x(2, (2, width))], [x(width)])}
        down = {"Module.down.Row.forward.0": forward([x(2, (2, width))], [x(y)], {"bias": x(6)})}
        return up | half | down

    write(tmp_path / "b/step0/rank0", rank(8, 3.0), level="mix")
    for number in (0, 1):
        write(tmp_path / f"c/step0/rank{number}", rank(4, 3.0), level="mix")
    layouts = (ONE, Parallelism(tp=2))
    healthy = compared(tmp_path, layouts)
    assert (healthy.verdict, healthy.cause, healthy.coverage.unknown) == ("not-comparable", None, 3)
    assert any(SHARDED in note for note in healthy.notes)
    assert any("API calls" in note for note in healthy.notes)
    write(tmp_path / "c/step0/rank0", rank(4, 4.0), level="mix")
    faulty = compared(tmp_path, layouts).cause
    assert faulty is not None and faulty.row.name == "Module.down.Row.forward.0.output.0"


def test_context_parallel_ranks_stand_beside_each_other_in_one_replica(tmp_path: Path) -> None:
    """cp=1, dp=2 against cp=2, dp=2: rank 1 stands against rank 2, the first of its replica."""
    for replica in (0, 1):
        write(tmp_path / f"b/step0/rank{replica}", layer("layers.0", 1 + replica, 2), level="L0")
        for part in (0, 1):
            write(tmp_path / f"c/step0/rank{2 * replica + part}", layer("layers.0", 1 + replica, 2), level="L0")
    result = compared(tmp_path, (ONE, Parallelism(cp=2)))
    assert [(part.baseline.rank, part.candidate.rank) for part in result.parts] == [(0, 0), (1, 2)]
    assert result.exit_code == 0


def test_a_stage_that_is_missing_is_no_pass(tmp_path: Path) -> None:
    """dp=2, pp=2: rank 3, the second replica's last stage, left nothing."""
    for replica in (0, 1):
        write(tmp_path / f"b/step0/rank{replica}", layer("layers.0", 1, 2) | layer("layers.1", 2, 3), level="L0")
        write(tmp_path / f"c/step0/rank{replica}", layer("layers.0", 1, 2), level="L0")
    write(tmp_path / "c/step0/rank2", layer("layers.0", 2, 3), level="L0")
    with pytest.raises(UsageError, match="3 ranks are no multiple"):
        compared(tmp_path, (ONE, Parallelism(pp=2)))
    (tmp_path / "c/step0/rank3").mkdir()
    result = compared(tmp_path, (ONE, Parallelism(pp=2)))
    assert (result.exit_code, result.coverage.different) == (2, 0)
    assert [part.error is None for part in result.parts] == [True, False]


def test_stages_without_module_names_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "b/step0/rank0", {"Torch.a.0.forward": forward([], [x(1)])})
    for number in (0, 1):
        write(tmp_path / f"c/step0/rank{number}", {"Torch.a.0.forward": forward([], [x(1)])})
    result = compared(tmp_path, (ONE, Parallelism(pp=2)))
    assert result.exit_code == 2 and any("name no modules" in note for note in result.notes)


def test_ranks_paired_by_hand_and_layouts_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        compared(tmp_path, (ONE, Parallelism(pp=2)), partners=Partners(ranks={0: 1}))
