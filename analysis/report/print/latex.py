"""LaTeX output. Special characters in names are escaped."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from analysis.base.text import printable
from analysis.report.print.document import Block, Bullets, Gap, Heading, Line, Paragraph, Piece, Raised, Table, pages_of

MOST_ROWS = 42  # of a float, so that it fits on a page
WIDTH_OF_A_COLUMN, WIDTH_OF_A_HEADING = 13, 100  # characters

# These work in every font encoding, with every engine, and with babel's active characters.
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedblright{}",
    # Must not start a row after \\.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "§": r"\S{}",
    "©": r"\textcopyright{}",
    "µ": r"\ensuremath{\mu}",
    "°": r"\ensuremath{^\circ}",
    "²": r"\ensuremath{^2}",
    "³": r"\ensuremath{^3}",
    "·": r"\ensuremath{\cdot}",
    "×": r"\ensuremath{\times}",
    "±": r"\ensuremath{\pm}",
    "−": r"\ensuremath{-}",
    "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}",
    "≈": r"\ensuremath{\approx}",
    "→": r"\ensuremath{\rightarrow}",
    "∞": r"\ensuremath{\infty}",
    "\u00a0": "~",
}
LIGATURES = "-,'"  # two in a row would become a different character
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0304": "=", "\u0307": ".",
    "\u0306": "u", "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "λ": "lambda", "μ": "mu", "π": "pi",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ω": "omega", "Δ": "Delta", "Σ": "Sigma", "Ω": "Omega",
}  # fmt: skip


def escaped(text: str) -> str:
    """Escape text for LaTeX as ASCII. Characters missing from LaTeX's fonts are shown by code point: `[U+4E2D]`."""
    said = ""
    before = ""
    for c in printable(text):
        said += ("{}" if c == before and c in LIGATURES else "") + _character(c)
        before = c
    return said


def _character(c: str) -> str:
    if c in SPECIAL:
        return SPECIAL[c]
    if c.isascii():
        return c
    if c in GREEK:
        return rf"\ensuremath{{\{GREEK[c]}}}"
    base, *marks = list(unicodedata.normalize("NFD", c))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        accent = ACCENTS[marks[0]]
        return rf"\{accent}{{{base}}}"
    return f"{{[}}U+{ord(c):04X}{{]}}"


def tables_tex(tables: Sequence[Table], study: str) -> str:
    """Return the tables as page-wide floats. The preamble needs booktabs and graphicx, part of every TeX
    distribution."""
    parts = [part for table in tables for part in pages_of(table, MOST_ROWS)]
    comment = (
        f"% Tables of study {escaped(study)}. \\input this file; the preamble needs "
        "\\usepackage{booktabs,graphicx}.\n% Labels: " + ", ".join(f"tab:{part.name}" for part in parts) + "\n\n"
    )
    return comment + "\n".join(table_tex(part, "table*") for part in parts)


def table_tex(table: Table, environment: str) -> str:
    """Return one float, shrunk if wider than the line."""
    n = len(table.columns)
    columns = "".join("r" if column.right else "l" for column in table.columns)
    lines = [
        f"\\begin{{{environment}}}[htbp]",
        f"\\caption{{{escaped(table.caption)}}}",
        f"\\label{{tab:{table.name}}}\\par\\smallskip",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        "\\setbox0=\\hbox{%",
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        "\\toprule",
        *_head(table),
        "\\midrule",
    ]
    for number, group in enumerate(table.groups):
        if number:
            lines.append("\\addlinespace")
        for part in textwrap.wrap(printable(group.heading), WIDTH_OF_A_HEADING):
            lines.append(f"\\multicolumn{{{n}}}{{@{{}}l@{{}}}}{{\\itshape {escaped(part)}}} \\\\")
        for i, row in enumerate(group.rows):
            cells = [line_tex(cell) for cell in row]
            if i in group.strong:
                cells = [f"\\textbf{{{cell}}}" for cell in cells]
            lines.append(" & ".join(cells) + " \\\\")
    lines += [
        "\\bottomrule",
        "\\end{tabular}}%",
        "\\ifdim\\wd0>\\linewidth\\resizebox{\\linewidth}{!}{\\box0}\\else\\box0\\fi",
    ]
    if table.notes:
        notes = [
            (f"\\textsuperscript{{{letter}}}\\," if letter else "") + escaped(text) for letter, text in table.notes
        ]
        lines += ["\\par\\smallskip", "\\parbox{\\linewidth}{\\footnotesize\\raggedright", "\\\\\n".join(notes) + "}"]
    return "\n".join([*lines, f"\\end{{{environment}}}", ""])


def _head(table: Table) -> list[str]:
    """Return the headings on as many lines as the longest needs, aligned at the bottom."""
    stacks = [textwrap.wrap(column.heading, WIDTH_OF_A_COLUMN) for column in table.columns]
    height = max(map(len, stacks))
    rows = zip(*([""] * (height - len(stack)) + stack for stack in stacks), strict=True)
    return [" & ".join(map(escaped, row)) + " \\\\" for row in rows]


def line_tex(line: Line) -> str:
    return "".join(map(_piece, line))


def _piece(piece: Piece) -> str:
    if isinstance(piece, Gap):
        return f"\\textbf{{{escaped(str(piece))}}}"
    if isinstance(piece, Raised):
        return f"\\textsuperscript{{{escaped(piece.letters)}}}"
    return escaped(piece)


def blocks_tex(blocks: Sequence[Block]) -> str:
    """Return sections, floats and paragraphs for inclusion in a document."""
    return "\n".join(map(_block, blocks))


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"\\{'sub' * (block.level - 1)}section{{{escaped(block.text)}}}\n"
    if isinstance(block, Paragraph) and block.warning:
        box = "\\fbox{\\parbox{\\dimexpr\\linewidth-2\\fboxsep-2\\fboxrule\\relax}{\\bfseries\n"
        return f"\\par\\medskip\\noindent{box}{line_tex(block.line)}}}}}\\par\\medskip\n"
    if isinstance(block, Paragraph):
        return line_tex(block.line) + "\n"
    if isinstance(block, Bullets):
        items = [f"\\item {line_tex(line)}" for line in block.lines]
        return "\n".join(["\\begin{itemize}", *items, "\\end{itemize}", ""])
    if isinstance(block, Table):
        return "\n".join(table_tex(part, "table") for part in pages_of(block, MOST_ROWS))
    environment, width = ("figure*", "") if block.wide else ("figure", "0.62")
    return (
        f"\\begin{{{environment}}}[htbp]\n\\centering\n\\includegraphics[width={width}\\linewidth]"
        f"{{figures/{block.name}.pdf}}\n\\caption{{{escaped(block.caption)}}}\n\\label{{fig:{block.name}}}\n"
        f"\\end{{{environment}}}\n"
    )
