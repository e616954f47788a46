"""The script that draws charts in the page: Vega with accessible legends."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

# Must match Altair's schema version and be available in vl-convert.
VEGA_LITE = "6.4"
LEGEND = Path(__file__).with_name("legend.js")


@cache
def vega_script() -> str:
    """Return JavaScript with Vega, Vega-Lite and Vega-Embed (0.9 MB), which defines `window.vegaEmbed`.

    Legends can be operated with the keyboard. Nothing is loaded from elsewhere.
    """
    import vl_convert

    # By default the bundle only sets exports; the stub lacks the default of `snippet`.
    bundle = vl_convert.javascript_bundle(None, vl_version=VEGA_LITE)  # type: ignore[arg-type]
    return bundle + LEGEND.read_text(encoding="utf-8")


@cache
def kept_vega_script() -> str:
    """Return `vega_script` from the user's cache: bundling (1.4 s) takes longer than the rest of a report."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path("~/.cache").expanduser()) / "scaling-harness"
    ours = hashlib.sha256(LEGEND.read_bytes())
    path = folder / f"vega-lite-{VEGA_LITE}-vl-convert-{version('vl-convert-python')}-{ours.hexdigest()[:12]}.js"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        script = vega_script()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(script, encoding="utf-8")
        temporary.replace(path)
    except OSError:  # the cache is optional
        temporary.unlink(missing_ok=True)
    return script
