"""`python -m harness.doctor`: see harness/doctor/command.py."""

from harness.core.console_script import run_and_exit
from harness.doctor.command import main

if __name__ == "__main__":
    run_and_exit(main)
