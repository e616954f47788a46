"""Placeholders such as '{batch_per_gpu}' in the command of the user's own training.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping

from harness.core.errors import UserError
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site

# What every run knows. The user's own parameters (workload.params) come on top.
NAMES = (
    "batch_per_gpu",
    "global_batch",
    "gpus",
    "nodes",
    "gpus_per_node",
    "seed",
    "repeat",
    "data_root",
    "run_dir",
    "node_rank",
    "master_addr",
    "master_port",
)
# A literal brace, a placeholder, or a brace without its pair.
TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
LITERAL = {"{{": "{", "}}": "}"}


class UnknownPlaceholder(UserError):
    """A placeholder that no run has, or a brace without its pair.

    Attributes:
        name: what stands between the braces, or the unpaired brace.
        valid: the known names.
    """

    def __init__(self, name: str, valid: List[str]) -> None:
        self.name, self.valid = name, valid
        found = f"unpaired {name!r}" if name in ("{", "}") else f"unknown placeholder {{{name}}}"
        super().__init__(f"{found}; valid are {', '.join(valid)}; write {{{{ and }}}} for literal braces")


def placeholders(text: str) -> List[str]:
    """Return the names of all placeholders in order, known or not."""
    return [match[1] for match in TOKEN.finditer(text) if match[1] is not None]


def expand(text: str, values: Mapping[str, Any]) -> str:
    """Replace each placeholder by its value, and doubled braces by single ones. Raises UnknownPlaceholder."""

    def replacement(match: "re.Match[str]") -> str:
        name = match[1]
        if match[0] in LITERAL:
            return LITERAL[match[0]]
        if name is None or name not in values:
            raise UnknownPlaceholder(match[0] if name is None else name, sorted(values))
        return _as_text(values[name])

    return TOKEN.sub(replacement, text)


def values(spec: RunSpec, site: Site, run_dir: Path, rendezvous: Rendezvous) -> Dict[str, Any]:
    """Return the value of every placeholder for one process of a run; without `data_root` if the run has none."""
    known = {
        "batch_per_gpu": spec.batch_per_gpu,
        "global_batch": spec.global_batch,
        "gpus": spec.gpus,
        "nodes": spec.placement.nodes,
        "gpus_per_node": spec.placement.ranks_per_node,
        "seed": spec.seed,
        "repeat": spec.repeat,
        "data_root": site.data_root,
        "run_dir": str(run_dir),
        "node_rank": rendezvous.rank // rendezvous.local_world_size,
        "master_addr": rendezvous.master_address,
        "master_port": rendezvous.master_port,
    }
    assert tuple(known) == NAMES
    if site.data_root is None:
        del known["data_root"]
    return {**known, **(spec.workload.params if spec.workload else {})}


def _as_text(value: Any) -> str:
    """A parameter as the user wrote it in YAML: 'true', not Python's 'True'."""
    return value if isinstance(value, str) else json.dumps(value)
