"""The end of every command, as a process with a real pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
