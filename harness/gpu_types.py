"""NVIDIA GPUs by name, and which builds run on them: compute capabilities. Standard library only.

As a program it tells the capability of a GPU that is named, for scripts: `python -m harness.gpu_types v100` prints 7.0.
"""

from __future__ import annotations

import re
import sys
from typing import Optional, Sequence, Tuple

Capability = Tuple[int, int]
# Tensor cores for bf16 and TF32 came with Ampere. Older GPUs emulate bf16 and ignore TF32.
AMPERE: Capability = (8, 0)
# Names as sites and drivers write them -> compute capability (developer.nvidia.com/cuda-gpus). A space stands for any
# separator or none; N for a digit. The first that fits counts: names that contain a shorter one come before it.
CAPABILITIES = (
    (("gb10",), (12, 1)),
    (("rtx pro NNNN", "rtx 50NN"), (12, 0)),
    (("b300", "gb300"), (10, 3)),
    (("b100", "b200", "gb200"), (10, 0)),
    (("h100", "h200", "h800", "h20", "gh200", "hopper"), (9, 0)),
    (("l40", "l40s", "l20", "l4", "l2", "rtx 40NN", "rtx NNNN ada", "ada"), (8, 9)),
    (("a40", "a16", "a10", "a10g", "a2", "rtx aNNNN", "aN000", "rtx 30NN"), (8, 6)),
    (("a100", "a800", "a30", "ampere"), (8, 0)),
    (("t4", "t4g", "turing", "rtx 20NN", "rtx 8000", "quadro rtx NNNN", "titan rtx", "gtx 16NN"), (7, 5)),
    (("v100", "v100s", "titan v", "gv100", "volta", "voltaNN"), (7, 0)),
    (("p100", "gp100", "pascal"), (6, 0)),
    (("p40", "p4", "gtx 10NN", "titan xp", "titan"), (6, 1)),
    (("m40", "m60", "gtx 9NN", "maxwell"), (5, 2)),
    (("k80",), (3, 7)),
    (("k20", "k40"), (3, 5)),
)
# What follows a name without a separator: a100sxm4, rtx2080ti, v10032gb.
SUFFIX = r"(?:ti|super|s|x|d|m|sxm\d?|pcie|nvl|nvlink|\d\dgb?)?"


def capability(gpu_type: Optional[str]) -> Optional[Capability]:
    """The compute capability of a GPU by its name, such as v100, nvidia_a100_80gb_pcie or Tesla T4; None if unknown."""
    name = re.sub(r"[^a-z0-9]+", " ", (gpu_type or "").lower())
    name = re.sub(r"^(?:(?:nvidia|tesla|geforce|gpu) ?)+", "", name)
    for patterns, found in CAPABILITIES:
        if any(re.search(_expression(pattern), name) for pattern in patterns):
            return found
    return None


def written(found: Capability) -> str:
    """(7, 0) -> '7.0'."""
    return "{}.{}".format(*found)


def _expression(pattern: str) -> str:
    return r"\b" + pattern.replace(" ", " ?").replace("N", r"\d") + SUFFIX + r"\b"


def main(arguments: Sequence[str]) -> int:
    found = capability(arguments[0]) if len(arguments) == 1 else None
    if found is None:
        print(f"error: no NVIDIA GPU of the name '{' '.join(arguments)}' is known here", file=sys.stderr)
        return 2
    print(written(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
