"""What a word that is not valid was probably meant to be."""

from __future__ import annotations

import difflib
from typing import Sequence

# What other programs call what is offered here.
_OTHER_NAMES = {
    **dict.fromkeys(("ddp", "distributed", "mirrored", "multiworker"), "allreduce"),
    **dict.fromkeys(("torch", "pt"), "pytorch"),
    "fsdp2": "fsdp",
    "zero": "zero1",
    "ps": "ps_sync",
    "none": "plain",
    "tf": "tensorflow",
    "flax": "jax",
}


def did_you_mean(given: str, valid: Sequence[str]) -> str:
    """Return " Did you mean '...'?", or nothing if no valid word is close."""
    known = _OTHER_NAMES.get(given)
    close = [known] if known in valid else difflib.get_close_matches(given, valid, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
