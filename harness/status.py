"""`python -m harness.status`: see harness/cli/status.py."""

import sys

from harness.cli.status import main

if __name__ == "__main__":
    sys.exit(main())
