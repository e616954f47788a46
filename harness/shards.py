"""`python -m harness.shards`: see harness/cli/shards.py."""

from harness.cli.shards import main
from harness.core.console_script import run_and_exit

if __name__ == "__main__":
    run_and_exit(main)
