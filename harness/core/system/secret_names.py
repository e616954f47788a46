"""Which variables, options and parameters look secret, and where their values are. Standard library only.

Values are passed to the runs in the environment and never written. In a command, each is replaced by a placeholder
`{secret_1}`, `{secret_2}`, …, so neither files nor the identity of a run contain it.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping

from harness.core import environment_variables

NAME = re.compile(
    r"[A-Z0-9_]*(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(API|ACCESS|AUTH|LICENSE|PRIVATE|SECRET)_?KEY)",
    re.IGNORECASE,
)
MASK = "***"
# Tokens of a text, not of an account.
_OF_TEXT = re.compile(
    r".*\b(PAD|EOS|BOS|UNK|MASK|SEP|CLS|START|END|STOP|IMAGE|PER|NUM|MAX|MIN|N|SPECIAL|DECODER)_TOKEN", re.IGNORECASE
)
# Shorter values would mask ordinary words of an output.
FEWEST_CHARACTERS = 4
PLACEHOLDER = re.compile(r"secret_[1-9][0-9]*")
# In the environment of a job: the value of a placeholder, and of a parameter.
_WORD, _PARAMETER = "HARNESS_SECRET_WORD_", "HARNESS_SECRET_PARAMETER_"
# name=value, with or without dashes and dots before it; and --name.
_ASSIGNED = re.compile(r"(?P<name>-{0,2}[A-Za-z0-9_.+~-]+)=(?P<value>.+)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
# The same in a text for a shell.
_IN_SHELL = re.compile(
    r"(?P<name>(?:(?<=\s)|(?<=[;&|(\"'])|^)-{0,2}[A-Za-z][A-Za-z0-9_.-]*)(?:=|(?<=[A-Za-z0-9])\s+(?!-))"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|)\"']+)"
)


def looks_secret(name: str) -> bool:
    """Return whether a variable, option or parameter of this name is taken for a secret."""
    plain = name.lstrip("-+~").rpartition(".")[2].replace("-", "_")
    return NAME.fullmatch(plain) is not None and _OF_TEXT.fullmatch(plain) is None


def masked_words(words: List[str], replaced: Callable[[str], str], shell: bool = False) -> List[str]:
    """Return a command with each secret value replaced. shell: the words are texts for a shell."""
    if shell:
        return [_IN_SHELL.sub(lambda match: _in_shell(match, replaced), word) for word in words]
    found: List[str] = []
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        before = found[-1] if found else ""
        if assigned and looks_secret(assigned["name"]) and _is_literal(assigned["value"]):
            word = f"{assigned['name']}={replaced(assigned['value'])}"
        elif _OPTION.fullmatch(before) and looks_secret(before) and not word.startswith("-") and _is_literal(word):
            word = replaced(word)
        found.append(word)
    return found


def word_variable(number: int) -> str:
    """Return the variable that has the value of `{secret_<number>}`."""
    return f"{_WORD}{number}"


def parameter_variable(name: str) -> str:
    """Return the variable that has the value of the parameter `workload.params.<name>`."""
    return f"{_PARAMETER}{name}"


def placeholder_values(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of the placeholders and parameters that the environment has."""
    found = {}
    for name, value in environ.items():
        if name.startswith(_WORD):
            found[f"secret_{name[len(_WORD) :]}"] = value
        elif name.startswith(_PARAMETER):
            found[name[len(_PARAMETER) :]] = value
    return found


def variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the secret variables of the runs."""
    names = environ.get(environment_variables.SECRET_VARIABLES, "").split()
    return {name: environ[name] for name in names if name in environ}


def is_of_command(variable: str) -> bool:
    """Return whether a secret variable belongs to the harness, not to the training."""
    return variable.startswith((_WORD, _PARAMETER))


class Mask:
    """Replaces secret values in a stream of bytes, also where one is in two pieces."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """values: by name; those of fewer than FEWEST_CHARACTERS are left as they are."""
        known = {value.encode() for value in values.values() if len(value) >= FEWEST_CHARACTERS}
        self._values = sorted(known, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if known else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be written: all but an end that may be the beginning of a value."""
        if self._pattern is None:
            return data
        data = self._pattern.sub(MASK.encode(), self._held + data)
        longest = max(map(len, self._values)) - 1
        held = next(
            (n for n in range(min(longest, len(data)), 0, -1) if any(v.startswith(data[-n:]) for v in self._values)), 0
        )
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _in_shell(match: "re.Match[str]", replaced: Callable[[str], str]) -> str:
    name, value = match["name"], match["value"]
    separator = match[0][len(name) : len(match[0]) - len(value)]
    is_option = name.startswith("-") or separator == "="
    quote = value[0] if value[0] in "\"'" else ""
    inner = value[1:-1] if quote else value
    if not (is_option and looks_secret(name) and inner and _is_literal(inner)) or "$" in inner or "`" in inner:
        return match[0]
    return f"{name}{separator}{quote}{replaced(inner)}{quote}"


def _is_literal(value: str) -> bool:
    """Return whether a value is written out, and not a placeholder of the command."""
    return "{" not in value.replace("{{", "")
