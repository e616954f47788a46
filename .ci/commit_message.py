"""The commit-msg hook: `python .ci/commit_message.py <file with the message>` exits with 1 for a bad subject line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST_CHARACTERS = 72
# Git writes these subjects itself.
FROM_GIT = ("Merge ", "Revert ", "Reapply ", "fixup! ", "squash! ", "amend! ")
AREA = re.compile(r"[\w.,/ -]+: ")
# Verbs whose base form ends like a past tense or a participle.
IMPERATIVES = {
    "bring",
    "embed",
    "exceed",
    "feed",
    "need",
    "ping",
    "proceed",
    "seed",
    "shed",
    "speed",
    "spring",
    "string",
}
VERBS = "accept add allow avoid build catch change check clean correct divide document drop fail fix give handle"
VERBS += " improve keep let make merge move name pin print raise read refuse remove rename replace report return run"
VERBS += " save say show simplify split start stop support take test turn update use write"
THIRD_PERSON = {verb + ("es" if verb.endswith(("x", "ch", "sh", "ss")) else "s") for verb in VERBS.split()}


def mistakes(message: str) -> list[str]:
    """What is wrong with a commit's message; empty where nothing is."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = "\n".join(lines).strip("\n").split("\n")
    if subject.startswith(FROM_GIT):
        return []
    if not subject.strip():
        return ["the subject is empty"]
    found = []
    if len(subject) > MOST_CHARACTERS:
        found.append(f"the subject has {len(subject)} characters, at most {MOST_CHARACTERS} are allowed")
    if subject.endswith("."):
        found.append("the subject ends with a period")
    words = AREA.sub("", subject, count=1).split() or [""]
    first = words[0].lower()
    if (first.endswith(("ed", "ing")) and first not in IMPERATIVES) or first in THIRD_PERSON:
        found.append(f"'{words[0]}' is not imperative: write 'fix', not 'fixed', 'fixing' or 'fixes'")
    if rest and rest[0]:
        found.append("the line after the subject is not empty")
    return found


def main() -> int:
    found = mistakes(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for sentence in found:
        print(f"commit message: {sentence}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
