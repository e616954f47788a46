"""Arms the hooks in the ranks that a launcher of the user's starts, such as torchrun; Python imports this at its start.

Elsewhere it does nothing but what the next sitecustomize on Python's path does, which this one hides.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if os.path.abspath(entry or ".") != here])
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


_next()
# A rank removes the variable before it starts other processes.
if "{rank}" in os.environ.get("SCALING_PROBE", ""):
    from _scaling_probe.settings import own_rank

    # The launcher's own processes have none.
    if own_rank() is not None:
        from _scaling_probe import session

        session.armed()
