"""`python -m harness.data`: see harness/cli/data.py."""

from harness.cli.data import main
from harness.core.console_script import run_and_exit

if __name__ == "__main__":
    run_and_exit(main)
