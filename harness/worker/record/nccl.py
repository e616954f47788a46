"""Records NCCL's choices: lets it log into a file of the attempt and counts the known lines.

NCCL's messages change between versions; unknown ones are ignored. Standard library only.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, MutableMapping, Optional

# Not TUNING, which logs a line per collective within the timed steps.
SUBSYSTEMS = "INIT,GRAPH,ENV"
LARGEST_LOG_BYTES = 4_000_000
# "Channel 00/0 : 7[7] -> 6[6] via P2P/IPC/read", "Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA", and before
# NCCL 2.8 "Ring 00 : ...". Numbers of network devices and GPUs are removed.
_VIA = re.compile(r"\b(?:Channel|Ring) \d+(?:/\d+)? : .*? via ([A-Za-z0-9_]+(?:/[A-Za-z][A-Za-z0-9_ ]*|/\d+)*)")
_NETWORK = re.compile(r"\bUsing network (\S+)")
_CHANNELS = re.compile(r"\b(\d+) coll channels\b")
_VERSION = re.compile(r"\bNCCL version (\S+)")
# Only if the user enabled TUNING: "AllReduce: 4096 Bytes -> Algo 1 proto 0 time 10.2", later "Algo RING proto LL".
_ALGORITHM = re.compile(r"\b(\w+): \d+ Bytes -> Algo (\w+) proto (\w+)")


def enable_log(environ: MutableMapping[str, str], path: Path) -> Optional[Path]:
    """Let NCCL log into `path`; call before loading it. Returns None if the user configured NCCL's logging, which then
    takes precedence."""
    if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ:
        return None
    environ["NCCL_DEBUG"], environ["NCCL_DEBUG_FILE"] = "INFO", str(path)
    environ.setdefault("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)
    return path


def read_log(path: Path) -> Optional[Dict[str, Any]]:
    """Return the resources event's fields; None if NCCL wrote nothing, as it was not used.

    transports: number of this rank's connections by transport, such as {"P2P/IPC": 16}.
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
