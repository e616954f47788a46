"""`python -m harness.cancel`: see harness/cli/cancel.py."""

from harness.cli.cancel import main
from harness.core.console_script import run_and_exit

if __name__ == "__main__":
    run_and_exit(main)
