"""`python -m harness`, and the command `harness`: see harness/cli/main.py."""

from harness.cli.main import main
from harness.core.console_script import run_and_exit


def entry_point() -> None:
    run_and_exit(main)


if __name__ == "__main__":
    entry_point()
