"""Keeps a page of 10,000 runs small: rows beyond a limit are compressed and unfold on demand.

No row is lost: the page says how many are folded and, for browsers without JavaScript, which file has them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

# Separates pieces that can be folded. Only our templates write it; autoescape keeps it out of names and logs.
NEXT = "<!--next-->"
# Characters of one table or list: some hundred rows, more than anybody reads, yet rendered quickly.
MOST_INLINE = 150_000
# Escapes for JSON in a <script>, so that no '<' ends the script or begins a comment.
_FOR_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def deflated(text: str) -> str:
    """Compress to zlib format in base64, for the browser's DecompressionStream("deflate")."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def folded(name: str, where: str, row: str = "", *, caller: Callable[[], str]) -> Markup:
    """Fold the body of `{% call folded("points", "scaling.csv") %}`: its first pieces stay as they are, the others are
    compressed in a <script> that browsers do not run, with what the page needs to open them.

    name: of the table or list. where: the file that has the same rows. row: how a row begins, if not with <tr> or
    <details>.
    """
    first, *pieces = str(caller()).split(NEXT)
    kept, length = 0, len(first)
    while kept < len(pieces) and length + len(pieces[kept]) <= MOST_INLINE:
        length += len(pieces[kept])
        kept += 1
    shown, rest = Markup(first + "".join(pieces[:kept])), "".join(pieces[kept:])
    if not rest:
        return shown
    if row:
        n = rest.count(row)
    else:
        n = rest.count("<tr") - rest.count('<tr class="series"') + rest.count("<details")
    note = Markup("{:,} further rows are folded here; {} has them too.").format(n, where)
    if "<tr" in rest:
        note = Markup('<tfoot><tr><td colspan="99">{}</td></tr></tfoot>').format(note)
    elif row == "<li":
        note = Markup('<li class="foot">{}</li>').format(note)
    else:
        note = Markup('<p class="foot">{}</p>').format(note)
    script = Markup('<script type="text/plain" class="folded" data-of="{}" data-rows="{}">{}</script>')
    return shown + note + script.format(name, n, deflated(rest))


def json_script(name: str, document: Any) -> Markup:
    """Embed the document in a <script> that browsers do not run, compressed if it is long."""
    text = json.dumps(document, separators=(",", ":"))
    if len(text) > MOST_INLINE:
        return Markup('<script type="text/plain" id="{}" class="deflated">{}</script>').format(name, deflated(text))
    return Markup('<script type="application/json" id="{}">{}</script>').format(
        name, Markup(text.translate(_FOR_SCRIPTS))
    )
