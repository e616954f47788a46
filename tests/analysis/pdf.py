"""Reads what is in a PDF: its text and pages by PDFium, its fonts from its objects."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from pypdfium2 import PdfDocument

HYPHEN = "\ufffe"  # in PDFium's text, where a word is divided at the end of a line


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
    width, height = PdfDocument(pdf)[0].get_size()
    return width / 72 * 25.4, height / 72 * 25.4


def streams(pdf: bytes) -> Iterator[bytes]:
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            yield zlib.decompressobj().decompress(found[1])
        except zlib.error:
            yield found[1]


def words(pdf: bytes) -> str:
    """Return all text, line by line; words that were divided at the end of a line are whole."""
    document = PdfDocument(pdf)
    text = "\n".join(page.get_textpage().get_text_bounded() for page in document)
    return text.replace("\r\n", "\n").replace(f"{HYPHEN}\n", "").replace(HYPHEN, "")


def pages(pdf: bytes) -> int:
    """Return the number of pages."""
    return len(PdfDocument(pdf))
