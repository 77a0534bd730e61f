"""Write the completion scripts of bash, zsh and fish as the app itself prints them: `make completions`."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from precdiag.cli import app

FILES = {"bash": "precdiag.bash", "zsh": "_precdiag", "fish": "precdiag.fish"}

# zsh reads a script from its site-functions at the first TAB: unless the script then calls what it defines, that TAB
# completes nothing.
ZSH_FIRST_TAB = 'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _precdiag_completion "$@"; fi'


def script(shell: str) -> str:
    """Ask the app for its script, through the variable by which the script will ask for completions."""
    shown = CliRunner().invoke(app, prog_name="precdiag", env={"_PRECDIAG_COMPLETE": f"source_{shell}"})
    lines = [shown.output.strip()]  # stripped, for zsh looks for #compdef in the first line only
    if shell == "zsh":
        lines.append(ZSH_FIRST_TAB)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for shell, name in FILES.items():
        (Path(__file__).parent / name).write_text(script(shell), encoding="utf-8")
