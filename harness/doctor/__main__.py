"""`python -m harness.doctor`: see harness/doctor/command.py."""

import sys

from harness.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
