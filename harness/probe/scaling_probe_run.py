"""Runs and measures the user's training: `python scaling_probe_run.py script arguments…`, or with `-m module`.

Executed by its path in the user's environment. Nothing in this folder may hide a module of the user, so it is
searched for modules last.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _last(entries):
    return [entry for entry in entries if os.path.abspath(entry or ".") != HERE] + [HERE]


if __name__ == "__main__":
    if os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(_last(os.environ["PYTHONPATH"].split(os.pathsep)))
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.path[:] = _last(sys.path)
    from _scaling_probe import runner

    runner.run(sys.argv[1:])
