"""What all commands share: how they refuse arguments, and their end, as a process with a real pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.core.console_script import Parser

LINES = "from harness.core.console_script import run_and_exit\n"
PLAIN = "run_and_exit(lambda: [print('x' * 100) for _ in range(100_000)] and 0)"
BY_RICH = """from rich.console import Console
console = Console(width=120)
run_and_exit(lambda: [console.print('x' * 100) for _ in range(10_000)] and 0)"""


@pytest.mark.parametrize("program", [PLAIN, BY_RICH])
def test_a_reader_that_ends_first_is_no_failure(program: str) -> None:
    command = subprocess.Popen([sys.executable, "-c", LINES + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline() == b"x" * 100 + b"\n"
    command.stdout.close()
    assert command.wait() == 0
    assert command.stderr is not None
    assert command.stderr.read() == b""
    command.stderr.close()


def parser() -> Parser:
    made = Parser("harness look", description="Look at a study.")
    made.add_argument("study", help="its folder, see below")
    made.add_argument("kind", choices=("csv", "html"), help="what to write")
    made.add_argument("--width", type=int, metavar="MM")
    made.add_argument("--only")
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "kind is missing (what to write: csv, html)"),
        ([], "study is missing (its folder); kind is missing (what to write: csv, html)"),
        (["a", "csv", "b"], "'b' is one argument too many"),
        (
            ["a", "csv", "--onyl=3"],
            "there is no option --onyl=3. Did you mean '--only'? Valid: --help, --width, --only",
        ),
        (["a", "csv", "--width", "x"], "argument --width: invalid int value: 'x'"),
        (["a", "csv", "--width"], "argument --width: expected one argument"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parser().parse_intermixed_args(words)
    assert exited.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"error: {said}; `harness look --help` says more\n")
