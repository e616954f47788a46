"""`python -m harness.shards`: see harness/cli/shards.py."""

import sys

from harness.cli.shards import main

if __name__ == "__main__":
    sys.exit(main())
