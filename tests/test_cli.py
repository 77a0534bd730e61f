"""The command line as a user meets it: exit statuses, both formats, 80 columns, pipes, Ctrl-C, what it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import forward, tensor, write
from jsonschema import Draft202012Validator

Real = Callable[[str], Path]
SCHEMA = json.loads((Path(__file__).parent / "data" / "compare.schema.json").read_text())


def precdiag(*words: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Any:
    """Run the command in a process of its own; status, stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-m", "precdiag", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"} | (env or {}),
        cwd=cwd,
        check=False,
        timeout=120,
    )


def sides(folder: Path, high: float) -> tuple[Path, Path]:
    for side, top in (("b", 1.0), ("c", high)):
        write(folder / side / "step0/rank0", {"Torch.a.0.forward": forward([tensor()], [tensor(high=top)])})
    return folder / "b", folder / "c"


# -- exit status


def test_status_follows_diff(tmp_path: Path) -> None:
    equal, unequal = sides(tmp_path / "1", 1.0), sides(tmp_path / "2", 2.0)
    assert precdiag("compare", *equal).returncode == 0
    assert precdiag("compare", *unequal).returncode == 1
    assert precdiag("compare", *unequal, "--max-rel", "2").returncode == 0
    assert precdiag("compare", tmp_path / "1/b", tmp_path / "nowhere").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["compare"],
        ["compare", "a", "b", "--max-abs", "x"],
        ["compare", "a", "b", "--max-abs", "-1"],
        ["compare", "a", "b", "--format", "yaml"],
        ["compare", "a", "b", "--step", "5-2"],
        ["compare", "a", "b", "--no-such"],
        ["compare", "a"],
        ["collide"],
    ],
)
def test_a_usage_error_is_2_without_a_traceback(tmp_path: Path, words: list[str]) -> None:
    for side in "ab":
        sides(tmp_path / side, 1.0)
    run = precdiag(*words, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == "" and "Traceback" not in run.stderr and run.stderr.strip()


def test_an_unreadable_dump_is_one_line_on_stderr_and_json_on_stdout(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 1.0)
    broken = candidate / "step0/rank0/dump.json"
    broken.write_text(broken.read_text()[:100])
    run = precdiag("compare", baseline, candidate, "--format", "json")
    assert run.returncode == 2
    assert json.loads(run.stdout)["verdict"] == "not-comparable"
    assert len(run.stderr.splitlines()) == 1 and str(broken) in run.stderr


def test_an_internal_error_is_2_and_says_whose_fault_it_is(tmp_path: Path) -> None:
    code = (
        "import precdiag.compare as c, sys\n"
        "def boom(*a, **k): raise ZeroDivisionError('boom')\n"
        "c.compare = boom\n"
        "from precdiag.cli import main\n"
        f"sys.argv = ['precdiag', 'compare', {str(tmp_path)!r}, {str(tmp_path)!r}]\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("precdiag: internal error: ZeroDivisionError: boom")
    assert "Traceback" not in run.stderr


def test_a_reader_that_stops_reading_changes_nothing(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 2.0)
    command = f'"{sys.executable}" -m precdiag compare "{baseline}" "{candidate}" --format json'
    script = f"{command} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}; {command} | true; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["1", "1"]
    assert run.stderr == ""


def test_ctrl_c_is_not_a_finding(tmp_path: Path) -> None:
    fifo = tmp_path / "b/step0/rank0/dump.json"
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    _, candidate = sides(tmp_path / "x", 1.0)
    run = subprocess.Popen(
        [sys.executable, "-m", "precdiag", "compare", str(tmp_path / "b"), str(candidate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2)  # by then it waits for someone to write into the pipe
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in error


# -- JSON


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("band", [[], ["--max-rel", "0.01"]])
def test_the_json_keeps_its_contract(real: Real, task: str, band: list[str]) -> None:
    folder = real("falsepass") / task
    run = precdiag("compare", folder / "A", folder / "C", "--format", "json", *band)
    document = json.loads(run.stdout, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    Draft202012Validator(SCHEMA).validate(document)
    assert run.returncode == 1 and document["verdict"] == "diverged"
    assert (document["band"] is not None) == bool(band)


def test_the_json_of_equal_dumps_and_of_unreadable_ones_keeps_it_too(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 1.0)
    for damage in (False, True):
        if damage:
            (candidate / "step0/rank0/dump.json").write_text("")
        document = json.loads(precdiag("compare", baseline, candidate, "--format", "json").stdout)
        Draft202012Validator(SCHEMA).validate(document)
        assert document["first_cause"] is None and document["symptoms"] == {"count": 0, "rows": []}


def test_the_limit_cuts_the_list_and_not_the_count(real: Real) -> None:
    folder = real("dumps") / "26.2.0/md5-L1"
    document = json.loads(precdiag("compare", folder / "A", folder / "C", "--format", "json", "--limit", "3").stdout)
    assert (document["symptoms"]["count"], len(document["symptoms"]["rows"])) == (21, 3)


# -- tables


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_fits_its_terminal(real: Real, columns: int) -> None:
    folder = real("dumps") / "26.2.0/statistics-mix"
    run = precdiag("compare", folder / "A", folder / "C", env={"COLUMNS": str(columns)})
    lines = run.stdout.splitlines()
    assert max(map(len, lines[3:])) <= columns
    assert lines[0] == "DIVERGED  bitwise"
    text = "\n".join(" ".join(line.split()) for line in lines)
    for said in (
        "row Module.1.Linear.forward.0.parameters.weight",
        "kind parameter",
        "source /workspace/train.py:15 loss = m(x).float().pow(2).mean()",
        "symptoms: 33 later rows differ",
        "coverage 59 rows compared: 25 equal, 34 different",
        "evidence statistics: equal statistics are not proof; collect md5 or tensor",
        "precdiag collect --task tensor --step 0",
    ):
        assert said in text
    assert "\x1b" not in run.stdout


def test_colour_only_on_a_terminal_and_never_with_no_color(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 2.0)
    script = f'"{sys.executable}" -m precdiag compare "{baseline}" "{candidate}"'
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    shown = {}
    for name, more in (("plain", {}), ("no colour", {"NO_COLOR": "1"})):
        run = subprocess.run(
            ["script", "-qec", script, "/dev/null"], capture_output=True, text=True, env=environ | more, check=False
        )
        shown[name] = run.stdout
    assert "\x1b[1;31mDIVERGED" in shown["plain"]
    assert "31m" not in shown["no colour"] and "DIVERGED" in shown["no colour"]


def test_with_a_band_the_cause_stands_above_the_symptom(real: Real) -> None:
    folder = real("dumps") / "26.2.0/tensor-L1"
    run = precdiag("compare", folder / "A", folder / "C", "--max-rel", "0.014")
    order = [run.stdout.index(title) for title in ("first cause", "first outside the band", "hidden by the band: 3")]
    assert run.returncode == 1 and order == sorted(order)


# -- settings


def test_show_config_says_where_each_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "precdiag.yaml").write_text("compare:\n  limit: 7\n")
    run = precdiag(
        "compare", "b", "c", "--max-abs", "0.5", "--show-config", cwd=tmp_path, env={"PRECDIAG_COMPARE_MAX_REL": "0.1"}
    )
    said = {tuple(line.split()) for line in run.stdout.splitlines()}
    assert run.returncode == 0
    assert ("compare.limit", "7", "precdiag.yaml:2") in said
    assert ("compare.max_abs", "0.5", "--max-abs") in said
    assert ("compare.max_rel", "0.1", "PRECDIAG_COMPARE_MAX_REL") in said
    assert ("compare.step", "-", "default") in said


def test_a_wrong_key_in_the_file_is_one_line(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 1.0)
    (tmp_path / "precdiag.yaml").write_text("compare:\n  max_abss: 1\n")
    run = precdiag("compare", baseline, candidate, cwd=tmp_path)
    assert run.returncode == 2
    assert "precdiag.yaml" in run.stderr and "max_abs" in run.stderr and "Traceback" not in run.stderr


# -- start-up


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom precdiag.cli import app\nfrom typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'msprobe', 'pandas', 'numpy', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_statistics_comparison_imports_no_torch(tmp_path: Path) -> None:
    baseline, candidate = sides(tmp_path, 2.0)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from precdiag.compare import compare\nfrom precdiag.judge import Policy\n"
        f"compare(Path({str(baseline)!r}), Path({str(candidate)!r}), Policy())\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_printed() -> None:
    assert precdiag("--version").stdout.startswith("precdiag ")


# -- options that have no effect together

TABLE = "26.2.0/statistics-L1/A_vs_C"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--replicas", "--engine", "msprobe", "--first"], "--engine, --first: not possible with --replicas"),
        (["--replicas", "--pair-step", "0=1"], "--pair-step: not possible with --replicas"),
        (["C", "--engine", "msprobe", "--baseline-layout", "tp=2"], "--engine: not possible with two layouts"),
        (["C", "--first", "--candidate-layout", "pp=2"], "--first: not possible with two layouts"),
        (["C", "--engine", "msprobe", "--include", "x"], "--include: not possible with --engine msprobe"),
    ],
)
def test_options_that_ask_for_two_different_things_are_refused(real: Real, options: list[str], refused: str) -> None:
    folder = real("dumps") / "26.2.0/statistics-L1"
    run = precdiag("compare", folder / "A", *options, cwd=folder)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"precdiag: {refused}\n")


@pytest.mark.parametrize("options", [["--layout", "tp=2"], ["--noise", "x"], ["--first"], ["--phase", "forward"]])
def test_a_table_refuses_what_only_dumps_can_answer(real: Real, options: list[str]) -> None:
    run = precdiag("compare", real("tables") / TABLE, *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert f"{options[0]}: not possible with result tables of msprobe" in run.stderr


def test_an_option_without_effect_is_said_and_changes_no_result(real: Real) -> None:
    run = precdiag("compare", real("tables") / TABLE, "--workers", "2", "--reference", "--k", "4")
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "precdiag: --workers changes nothing with result tables of msprobe",
        "precdiag: --reference changes nothing with result tables of msprobe",
        "precdiag: --k changes nothing without --noise or --band-from",
    ]
