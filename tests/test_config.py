"""The config layer: precedence, origins, and errors that say where and what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from precdiag import config
from precdiag.config import Loaded, load
from precdiag.errors import EXIT_CANNOT_LOOK, UsageError
from precdiag.settings import CompareSettings, Section, Texts, parse_integers


def compare(
    cwd: Path,
    yaml: str | bytes | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    **flags: Any,
) -> Loaded[CompareSettings]:
    if yaml is not None:
        (cwd / "precdiag.yaml").write_bytes(yaml if isinstance(yaml, bytes) else yaml.encode())
    return load(CompareSettings, flags, config_file=config_file, environ=environ or {}, cwd=cwd)


def refusal(cwd: Path, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UsageError) as caught:
        compare(cwd, *args, **kwargs)
    assert caught.value.exit_code == EXIT_CANNOT_LOOK
    assert "\n" not in str(caught.value)
    return str(caught.value)


def origins(loaded: Loaded[Any]) -> dict[str, str]:
    return {row.key: row.origin for row in loaded.rows}


def test_without_a_word_from_anybody_every_value_is_the_default(tmp_path: Path) -> None:
    loaded = compare(tmp_path)
    assert loaded.settings == CompareSettings()
    assert loaded.settings.limit == 1000
    assert set(origins(loaded).values()) == {"default"}


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    yaml = "compare:\n  max_abs: 1e-3\n  max_rel: 2e-3\n  cosine_min: 0.9\n"
    environ = {"PRECDIAG_COMPARE_MAX_REL": "3e-3", "PRECDIAG_COMPARE_COSINE_MIN": "0.8"}
    loaded = compare(tmp_path, yaml, environ, cosine_min=0.7, max_ulp=None)

    assert (loaded.settings.max_abs, loaded.settings.max_rel, loaded.settings.cosine_min) == (1e-3, 3e-3, 0.7)
    given = {
        "compare.max_abs": "precdiag.yaml:2",
        "compare.max_rel": "PRECDIAG_COMPARE_MAX_REL",
        "compare.cosine_min": "--cosine-min",
    }
    every = {f"compare.{key}" for key in CompareSettings.model_fields}
    assert origins(loaded) == dict.fromkeys(every, "default") | given


def test_rows_show_what_was_written_and_defaults_as_they_are(tmp_path: Path) -> None:
    rows = {row.key: row.value for row in compare(tmp_path, "compare:\n  step: 0,5-7\n", max_abs=0.5).rows}
    assert rows["compare.step"] == "0,5-7"
    assert rows["compare.max_abs"] == 0.5
    assert rows["compare.format"] == "table"


@pytest.mark.parametrize("yaml", ["", "# only a comment\n", "---\n", "compare:\n", "compare:\n  limit:\n", "\ufeff"])
def test_what_is_left_empty_is_not_given(tmp_path: Path, yaml: str) -> None:
    loaded = compare(tmp_path, yaml)
    assert loaded.settings == CompareSettings()
    assert set(origins(loaded).values()) == {"default"}


@pytest.mark.parametrize("written", ["0,5-7", "[0, 5-7]", "[7, 0, 5, 6]", "\n    - 0\n    - 5-7", "'0, 5 - 7'"])
def test_steps_are_written_as_text_or_as_a_list(tmp_path: Path, written: str) -> None:
    assert compare(tmp_path, f"compare:\n  step: {written}\n").settings.step == (0, 5, 6, 7)


def test_one_step_is_a_number_in_yaml(tmp_path: Path) -> None:
    assert compare(tmp_path, "compare: {step: 3, rank: 0}").settings.step == (3,)


def test_settings_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        compare(tmp_path).settings.limit = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "\ncompare:\n  lmit: 1",
            "precdiag.yaml:3: unknown key 'compare.lmit', the nearest valid key is compare.limit",
        ),
        ("compare:\n  lmit:", "precdiag.yaml:2: unknown key 'compare.lmit', the nearest valid key is compare.limit"),
        ("max_rel: 1", "precdiag.yaml:1: unknown key 'max_rel', the nearest valid key is compare.max_rel"),
        ("comparison: {}", "precdiag.yaml:1: unknown key 'comparison', the nearest valid key is compare"),
        ("compare:\n  max_abs: lots", "precdiag.yaml:2: compare.max_abs is 'lots': expected a valid number"),
        ("compare:\n  max_abs: yes", "precdiag.yaml:2: compare.max_abs is 'yes': expected a valid number"),
        ("compare:\n  max_abs: -1", "precdiag.yaml:2: compare.max_abs is '-1': expected greater than or equal to 0"),
        ("compare:\n  max_abs: inf", "precdiag.yaml:2: compare.max_abs is 'inf': expected a finite number"),
        ("compare:\n  cosine_min: 1.1", "precdiag.yaml:2: compare.cosine_min is '1.1': expected less than or equal"),
        ("compare:\n  cosine_min: nan", "precdiag.yaml:2: compare.cosine_min is 'nan': expected"),
        ("compare:\n  max_ulp: 1.5", "precdiag.yaml:2: compare.max_ulp is '1.5': expected a valid integer"),
        ("compare:\n  max_ulp: [1]", "precdiag.yaml:2: compare.max_ulp is ['1']: expected a valid integer"),
        ("compare:\n  limit: 0", "precdiag.yaml:2: compare.limit is '0': expected greater than or equal to 1"),
        ("compare:\n  format: csv", "precdiag.yaml:2: compare.format is 'csv': expected 'table' or 'json'"),
        ("compare:\n  stage: ''", "precdiag.yaml:2: compare.stage is '': expected at least 1 character"),
        ("compare:\n  step:\n    - 5\n    - 5", "precdiag.yaml:2: compare.step is ['5', '5']: 5 is given twice"),
        ("compare: 5", "precdiag.yaml:1: compare is '5': expected a mapping of keys to values"),
        ("compare:\n  limit: 5\n  limit: 6", "precdiag.yaml:3: 'limit' is given twice"),
        ("- compare", "precdiag.yaml: expected a mapping of sections at the top, such as `compare:`"),
        ("compare", "precdiag.yaml: expected a mapping of sections at the top, such as `compare:`"),
        ("compare:\n  limit: [", "precdiag.yaml:2: not valid YAML: while parsing a flow node, expected"),
        ("compare:\n\tlimit: 5", "precdiag.yaml:2: not valid YAML: while scanning for the next token, found"),
        ("compare:\n---\ncompare:", "precdiag.yaml:2: not valid YAML: expected a single document"),
        ("compare:\n  stage: \0", "precdiag.yaml: not valid YAML: unacceptable character #x0000"),
        ("compare:\n  ? [a]\n  : 1", "precdiag.yaml:2: expected a plain word as a key"),
        ("compare: &loop\n  stage: *loop", "precdiag.yaml: nested too deeply, or an anchor that contains itself"),
        ("[" * 5000, "precdiag.yaml: nested too deeply, or an anchor that contains itself"),
        ("compare: !!python/name:os.system x", "precdiag.yaml:1: the tag tag:yaml.org,2002:python/name:os.system is"),
        (b"# fine\ncompare:\n  stage: \xc4\xe3\n", "precdiag.yaml:3: not UTF-8 text"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(tmp_path: Path, yaml: str | bytes, message: str) -> None:
    assert refusal(tmp_path, yaml).startswith(message)


def test_an_unknown_key_lists_the_keys_that_would_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        compare(tmp_path, "compare: {tolerance: 1}")
    assert caught.value.hint is not None
    assert "compare.max_abs, compare.max_rel" in caught.value.hint


def test_a_mistake_in_a_variable_names_the_variable(tmp_path: Path) -> None:
    assert refusal(tmp_path, environ={"PRECDIAG_COMPARE_LIMIT": "few"}) == (
        "PRECDIAG_COMPARE_LIMIT: compare.limit is 'few': expected a valid integer"
    )


@pytest.mark.parametrize("name", ["PRECDIAG_COMPARE_MAXABS", "PRECDIAG_MAX_ABS", "PRECDIAG_compare_max_abs"])
def test_an_unknown_variable_names_the_nearest(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, environ={name: "1"}) == (
        f"{name}: unknown variable (set to '1'), the nearest is PRECDIAG_COMPARE_MAX_ABS"
    )


@pytest.mark.parametrize("name", ["PRECDIAG_SESSION", "PRECDIAG_OUT", "PRECDIAG_DEBUG", "_PRECDIAG_COMPLETE", "PATH"])
def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path, name: str) -> None:
    assert compare(tmp_path, environ={name: "1"}).settings == CompareSettings()


def test_a_mistake_in_a_flag_names_the_flag_even_over_a_good_file(tmp_path: Path) -> None:
    message = refusal(tmp_path, "compare: {cosine_min: 0.9}", cosine_min=-2.0)
    assert message == "--cosine-min: compare.cosine_min is -2.0: expected greater than or equal to -1"


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, f"compare: {{format: {'x' * 500}}}")) < 160


def test_a_named_config_file_is_read_instead_and_must_be_there(tmp_path: Path) -> None:
    other = tmp_path / "精度 对比.yaml"
    assert refusal(tmp_path, "compare: {limit: 5}", config_file=other) == f"{other}: no such file"
    other.write_text("compare:\n  limit: 7\n")
    loaded = compare(tmp_path, "compare: {limit: 5}", config_file=other)
    assert loaded.settings.limit == 7
    assert origins(loaded)["compare.limit"] == f"{other}:2"


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, config_file=tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    (tmp_path / "precdiag.yaml").mkdir()
    assert refusal(tmp_path) == "precdiag.yaml: cannot be read: Is a directory"


class Side(Section):
    command: str | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


class CollectSettings(Section):
    baseline: Side = Side()
    candidate: Side = Side()
    scope: Texts = ()
    quiet: bool = False


class LaterSettings(Section):
    compare: CompareSettings = CompareSettings()
    collect: CollectSettings = CollectSettings()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later command's section, nested as collect's is."""
    monkeypatch.setattr(config, "Settings", LaterSettings)


def collect(cwd: Path, yaml: str, environ: Mapping[str, str] | None = None, **flags: Any) -> Loaded[CollectSettings]:
    (cwd / "precdiag.yaml").write_text(yaml)
    return load(CollectSettings, flags, config_file=None, environ=environ or {}, cwd=cwd)


NESTED = """\
collect:
  baseline:
    command: python train.py
    cwd: /gpu
    env: &env {SEED: 007, DEBUG: yes}
  candidate:
    env: *env
  scope: [Module.a.0, Module.b.0]
"""


@pytest.mark.usefixtures("later")
def test_nested_mappings_and_lists_are_read_as_they_are_written(tmp_path: Path) -> None:
    loaded = collect(tmp_path, NESTED)
    env = {"SEED": "007", "DEBUG": "yes"}
    assert loaded.settings.baseline == Side(command="python train.py", cwd="/gpu", env=env)
    assert loaded.settings.candidate.env == env
    assert loaded.settings.scope == ("Module.a.0", "Module.b.0")
    assert origins(loaded) == {
        "collect.baseline.command": "precdiag.yaml:3",
        "collect.baseline.cwd": "precdiag.yaml:4",
        "collect.baseline.env": "precdiag.yaml:5",
        "collect.candidate.command": "default",
        "collect.candidate.cwd": "default",
        "collect.candidate.env": "precdiag.yaml:7",
        "collect.scope": "precdiag.yaml:8",
        "collect.quiet": "default",
    }


@pytest.mark.usefixtures("later")
def test_variables_and_flags_reach_nested_keys_and_leave_their_neighbours(tmp_path: Path) -> None:
    environ = {"PRECDIAG_COLLECT_BASELINE_CWD": "/npu", "PRECDIAG_COLLECT_SCOPE": "x, y", "PRECDIAG_COLLECT_QUIET": "1"}
    loaded = collect(tmp_path, NESTED, environ, baseline="bash run.sh", candidate_cwd="/c")
    baseline = loaded.settings.baseline
    assert (baseline.command, baseline.cwd, baseline.env["SEED"]) == ("bash run.sh", "/npu", "007")
    assert (loaded.settings.candidate.cwd, loaded.settings.scope, loaded.settings.quiet) == ("/c", ("x", "y"), True)
    assert origins(loaded)["collect.baseline.command"] == "--baseline"
    assert origins(loaded)["collect.baseline.cwd"] == "PRECDIAG_COLLECT_BASELINE_CWD"
    assert origins(loaded)["collect.candidate.cwd"] == "--candidate-cwd"


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("inner", "line", "message"),
    [
        (
            "baseline:\n    comand: x",
            3,
            "unknown key 'collect.baseline.comand', the nearest valid key is collect.baseline.command",
        ),
        ("baseline: x", 2, "collect.baseline is 'x': expected a mapping of keys to values"),
        (
            "baseline:\n    env:\n      A: 1\n      B: [2]",
            5,
            "collect.baseline.env.B is ['2']: expected a valid string",
        ),
        ("scope:\n    - a\n    - [b]", 4, "collect.scope.1 is ['b']: expected a valid string"),
        ("quiet: maybe", 2, "collect.quiet is 'maybe': expected a valid boolean"),
    ],
)
def test_a_mistake_deep_inside_has_its_own_line(tmp_path: Path, inner: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        collect(tmp_path, f"collect:\n  {inner}\n")
    assert str(caught.value) == f"precdiag.yaml:{line}: {message}"


@pytest.mark.usefixtures("later")
def test_another_command_s_section_is_checked_too(tmp_path: Path) -> None:
    assert refusal(tmp_path, "collect:\n  quite: true").startswith("precdiag.yaml:2: unknown key 'collect.quite'")


@given(st.sets(st.integers(min_value=0, max_value=10**6), min_size=1))
def test_integers_survive_being_written_and_read(numbers: set[int]) -> None:
    assert parse_integers(",".join(map(str, numbers))) == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", (3,)), ("0,5-7", (0, 5, 6, 7)), ("5-7, 0", (0, 5, 6, 7)), ("4-4", (4,)), ("007", (7,))]
)
def test_integer_lists_with_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_integers(text) == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected integers from 0 and ranges such as 0,5-7, found ''"),
        ("1,,2", "expected integers from 0 and ranges such as 0,5-7, found ''"),
        ("1，2", "expected integers from 0 and ranges such as 0,5-7, found '1，2'"),
        ("-1", "expected integers from 0 and ranges such as 0,5-7, found '-1'"),
        ("1.5", "expected integers from 0 and ranges such as 0,5-7, found '1.5'"),
        ("1-2-3", "expected integers from 0 and ranges such as 0,5-7, found '1-2-3'"),
        ("٣", "expected integers from 0 and ranges such as 0,5-7, found '٣'"),
        ("9" * 5000, "expected integers from 0 and ranges such as 0,5-7, found '9999"),
        ("7-5", "the range 7-5 runs backwards, expected 5-7"),
        ("5-7,6", "6 is given twice"),
        ("0-1000000", "more than 1,000,000 integers"),
        ("0-999999999999999999", "more than 1,000,000 integers"),
    ],
)
def test_an_integer_list_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_integers(text)
    assert str(caught.value).startswith(message)


def test_a_million_integers_are_allowed() -> None:
    assert parse_integers("0-999999")[-1] == 999_999


@pytest.mark.parametrize(
    "yaml", ["'0=1,2-3=0-1'", "['0=1', '2-3=0-1']", "{0: 1, 2: 0, 3: 1}", "\n    0: 1\n    2: 0\n    3: 1"]
)
def test_pairs_are_texts_lists_or_mappings(tmp_path: Path, yaml: str) -> None:
    said = refusal(tmp_path, f"compare:\n  pair_rank: {yaml}\n")
    assert "twice" in said or "paired already" in said  # 0=1 and 3=1
    good = yaml.replace("2-3=0-1", "2-3=3-4").replace("2: 0", "2: 3").replace("3: 1", "3: 4")
    assert compare(tmp_path, f"compare:\n  pair_rank: {good}\n").settings.pair_rank == {0: 1, 2: 3, 3: 4}


@pytest.mark.parametrize(
    ("key", "text"),
    [("pair_rank", "0"), ("pair_rank", "a=b"), ("pair_rank", "0-3=0-2"), ("pair_step", "0=1,0=2"), ("pair_stage", "a")],
)
def test_a_pair_that_is_none_is_refused_with_its_place(tmp_path: Path, key: str, text: str) -> None:
    assert "--" + key.replace("_", "-") in refusal(tmp_path, **{key: text})


def test_stages_pair_by_name(tmp_path: Path) -> None:
    assert compare(tmp_path, pair_stage="actor=actor_rollout").settings.pair_stage == {"actor": "actor_rollout"}


def test_a_layout_is_sizes_by_name(tmp_path: Path) -> None:
    assert compare(tmp_path, layout="tp=2, pp=4").settings.layout == {"tp": 2, "pp": 4}
    assert compare(tmp_path, "compare:\n  layout: {tp: 2, vpp: 2}\n").settings.layout == {"tp": 2, "vpp": 2}


@pytest.mark.parametrize(("text", "said"), [("tp", "sizes by name"), ("tq=2", "'tp', 'cp'"), ("tp=x", "valid integer")])
def test_a_layout_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, baseline_layout=text)
