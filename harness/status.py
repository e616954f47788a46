"""`python -m harness.status`: see harness/cli/status.py."""

from harness.cli.status import main
from harness.core.console_script import run_and_exit

if __name__ == "__main__":
    run_and_exit(main)
