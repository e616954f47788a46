"""Reads fonts and text from a PDF's objects, as far as our own PDFs use the format."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

STRING = rb"\((?:\\.|[^\\()])*\)"
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def fonts(pdf: bytes) -> set[str]:
    """Return the names of embedded fonts without the subset tag. Fails if one is of Type 3 or not embedded."""
    objects = pdf + b"".join(streams(pdf))
    assert b"/Type3" not in objects
    names = {found.decode() for found in re.findall(rb"/FontName\s*/([^\s/<>]+)", objects)}
    assert names
    for descriptor in re.findall(rb"<<[^<>]*/FontName[^<>]*>>", objects):
        assert re.search(rb"/FontFile[23]?\b", descriptor), descriptor
    return {name.split("+")[-1] for name in names}


def size_mm(pdf: bytes) -> tuple[float, float]:
    """Return width and height of the first page."""
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    assert box is not None
    return float(box[1]) / 72 * 25.4, float(box[2]) / 72 * 25.4


def streams(pdf: bytes) -> Iterator[bytes]:
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            yield zlib.decompressobj().decompress(found[1])
        except zlib.error:
            yield found[1]


def words(pdf: bytes) -> str:
    """Return all text of a Typst PDF once per font, decoded with that font; glyphs of other fonts become garbage."""
    contents = list(streams(pdf))
    maps = [_glyphs(content) for content in contents if b"begincmap" in content]
    said: list[list[str]] = [[] for _ in maps]
    for content in contents:
        for shown in re.findall(rb"\[((?:\s*(?:" + STRING + rb"|<[0-9A-Fa-f]*>|[-+.\d]+))*)\s*\]\s*TJ", content):
            glyphs = b"".join(map(_unescaped, re.findall(STRING, shown)))
            pairs = [int.from_bytes(glyphs[i : i + 2], "big") for i in range(0, len(glyphs), 2)]
            for lines, known in zip(said, maps, strict=True):
                lines.append("".join(known.get(pair, "?") for pair in pairs))
    return "\n".join("\n".join(lines) for lines in said)


def _glyphs(cmap: bytes) -> dict[int, str]:
    text = cmap.decode("latin-1")
    found = {}
    for block in re.findall(r"beginbfchar(.*?)endbfchar", text, re.DOTALL):
        for glyph, meaning in re.findall(r"<(\w+)>\s*<(\w+)>", block):
            found[int(glyph, 16)] = _meaning(meaning)
    for block in re.findall(r"beginbfrange(.*?)endbfrange", text, re.DOTALL):
        for first, last, meanings in re.findall(r"<(\w+)>\s*<(\w+)>\s*(\[[^\]]*\]|<\w+>)", block):
            listed = re.findall(r"<(\w+)>", meanings)
            for i in range(int(last, 16) - int(first, 16) + 1):
                text = _meaning(listed[i if meanings.startswith("[") else 0])
                found[int(first, 16) + i] = text if meanings.startswith("[") else text[:-1] + chr(ord(text[-1]) + i)
    return found


def _meaning(digits: str) -> str:
    return bytes.fromhex(digits).decode("utf-16-be", "replace")


def _unescaped(literal: bytes) -> bytes:
    def plain(found: re.Match[bytes]) -> bytes:
        if found[1].isdigit():
            return bytes([int(found[1], 8) & 255])
        return ESCAPES.get(found[1], found[1])

    return re.sub(rb"\\([0-7]{1,3}|.)", plain, literal[1:-1], flags=re.DOTALL)


def pages(path: Path) -> int:
    """Return the number of pages of a pdflatex PDF, from its log."""
    log = path.with_suffix(".log").read_text(encoding="latin-1")
    found = re.search(r"Output written on .*?\((\d+) page", log.replace("\n", ""))
    assert found, log[-1000:]
    return int(found[1])
