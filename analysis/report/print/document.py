"""A document as plain values, written as LaTeX, Typst or Markdown by the modules beside this one.

Texts come from other programs and hold no markup: whatever a name looks like, each writer escapes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase


@dataclass(frozen=True)
class Gap:
    """What only the user knows: shown as `[FILL IN: …]`, so that nobody overlooks it."""

    what: str

    def __str__(self) -> str:
        return f"[FILL IN: {self.what}]"


@dataclass(frozen=True)
class Raised:
    """Letters of footnotes."""

    letters: str


Piece = str | Gap | Raised
Line = Sequence[Piece]  # of a paragraph, or in a cell


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 1


@dataclass(frozen=True)
class Paragraph:
    """warning: what must not be overlooked; it stands out."""

    line: Line
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """answers: what the reader came for, set larger where a format can."""

    lines: Sequence[Line]
    answers: bool = False


@dataclass(frozen=True)
class Column:
    heading: str
    right: bool = True  # figures; names stand to the left


@dataclass(frozen=True)
class Group:
    """Rows under a heading of their own, or under none (""). strong: rows that are set in bold, by their number."""

    heading: str
    rows: Sequence[Sequence[Line]]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Table:
    """name: letters and hyphens, for labels. notes: footnotes by their letters, then those that have none ("")."""

    name: str
    caption: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    notes: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Picture:
    """name: of a file in figures/, without its ending. wide: as wide as two columns."""

    name: str
    caption: str
    wide: bool = False


Block = Heading | Paragraph | Bullets | Table | Picture


@dataclass
class Footnotes:
    """Letters for texts, in the order in which they first occur."""

    texts: list[str] = field(default_factory=list)

    def raised(self, *texts: str | None) -> tuple[Raised, ...]:
        """The letters of these texts, to be put behind a figure; nothing for no text."""
        said = [text for text in dict.fromkeys(texts) if text]
        self.texts += [text for text in said if text not in self.texts]
        return (Raised(",".join(_letter(self.texts.index(text)) for text in said)),) if said else ()

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(_letter(i), text) for i, text in enumerate(self.texts)]


def _letter(i: int) -> str:
    return (_letter(i // 26 - 1) if i >= 26 else "") + ascii_lowercase[i % 26]


def pages_of(table: Table, most: int) -> Iterator[Table]:
    """The table in parts of at most so many rows, each with the footnotes that it needs; the first keeps the name."""
    parts: list[list[Group]] = [[]]
    room = most
    for group in table.groups:
        rows, first = list(group.rows), 0
        while first < len(rows):
            if room == 0:
                parts.append([])
                room = most
            taken = rows[first : first + room]
            strong = frozenset(i - first for i in group.strong if first <= i < first + len(taken))
            parts[-1].append(Group(group.heading, taken, strong))
            first += len(taken)
            room -= len(taken)
    for number, groups in enumerate(parts, start=1):
        used = {
            letter
            for group in groups
            for row in group.rows
            for cell in row
            for piece in cell
            if isinstance(piece, Raised)
            for letter in piece.letters.split(",")
        }
        yield dataclasses.replace(
            table,
            name=table.name if number == 1 else f"{table.name}-{number}",
            caption=table.caption if number == 1 else f"{table.caption} (continued)",
            groups=groups,
            notes=[(letter, text) for letter, text in table.notes if not letter or letter in used],
        )
