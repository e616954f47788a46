"""What NCCL chose: it is asked to write it into a file of the attempt, and of that the known lines are counted.

The lines are NCCL's own words, which change from version to version: what is not known is passed over. Standard library
only.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, MutableMapping, Optional

# Not TUNING: it writes a line per collective, within the steps that are timed.
SUBSYSTEMS = "INIT,GRAPH,ENV"
LARGEST_LOG_BYTES = 4_000_000
# "Channel 00/0 : 7[7] -> 6[6] via P2P/IPC/read", "Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA", and before
# NCCL 2.8 "Ring 00 : ...". The number of the network device, or of the GPU, is left out.
_VIA = re.compile(r"\b(?:Channel|Ring) \d+(?:/\d+)? : .*? via ([A-Za-z0-9_]+(?:/[A-Za-z][A-Za-z0-9_ ]*|/\d+)*)")
_NETWORK = re.compile(r"\bUsing network (\S+)")
_CHANNELS = re.compile(r"\b(\d+) coll channels\b")
_VERSION = re.compile(r"\bNCCL version (\S+)")
# Only where the user asked for TUNING: "AllReduce: 4096 Bytes -> Algo 1 proto 0 time 10.2", later "Algo RING proto LL".
_ALGORITHM = re.compile(r"\b(\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")


def ask(environ: MutableMapping[str, str], path: Path) -> Optional[Path]:
    """Before NCCL is loaded: has it write into `path`. None where the user has set where it writes, or how much: then
    that holds."""
    if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ:
        return None
    environ["NCCL_DEBUG"], environ["NCCL_DEBUG_FILE"] = "INFO", str(path)
    environ.setdefault("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)
    return path


def chosen(path: Path) -> Optional[Dict[str, Any]]:
    """For the resources event; None where NCCL has written nothing: it was not used.

    transports: how many connections of this rank go over each, such as {"P2P/IPC": 16}.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LARGEST_LOG_BYTES)
    except OSError:
        return None
    if not text.strip():
        return None
    channels = [int(found) for found in _CHANNELS.findall(text)]
    return {
        "version": _last(_VERSION, text),
        "network": _last(_NETWORK, text),
        "channels": max(channels) if channels else None,
        "transports": dict(Counter(_without_numbers(found) for found in _VIA.findall(text))),
        "algorithms": dict(Counter("/".join(found) for found in _ALGORITHM.findall(text))),
    }


def _without_numbers(transport: str) -> str:
    return "/".join(part.strip() for part in transport.split("/") if not part.isdigit())


def _last(pattern: "re.Pattern[str]", text: str) -> Optional[str]:
    found = pattern.findall(text)
    return found[-1] if found else None
