"""`python -m harness.cancel`: see harness/cli/cancel.py."""

import sys

from harness.cli.cancel import main

if __name__ == "__main__":
    sys.exit(main())
