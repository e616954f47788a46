"""Placeholders such as '{batch_per_gpu}' in the command of the user's own training.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import json
import re
from typing import Any, List, Mapping

from harness.core.errors import UserError

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


def _as_text(value: Any) -> str:
    """A parameter as the user wrote it in YAML: 'true', not Python's 'True'."""
    return value if isinstance(value, str) else json.dumps(value)
