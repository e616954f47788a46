"""Golden tests of everything the program prints and writes; `pytest tests/golden_outputs --renew-goldens` updates them.

Small texts are stored as files, large ones as files.xz. All are compared character by character, except the fitted
figures that --json prints in full, whose last digits depend on the processor's instructions.
"""

from __future__ import annotations

import difflib
import json
import lzma
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from golden_outputs import EXPECTED, PLANNED, RUN_IDS, outputs_of_plans, outputs_of_studies
from project import PROJECT

SMALL = 12_000  # limit in characters for storing uncompressed
SHOWN_LINES, SHOWN_CHARACTERS = 30, 300  # of the difference of one file
# Tolerance for fitted figures. SSE and AVX-512 differed by 3e-9, and two processors by 5e-12 in shares of 1e-10, which
# are 0 but for rounding.
RELATIVE, ABSOLUTE = 1e-6, 1e-11


def test_what_is_printed_and_written_of_studies_is_as_pinned(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _check(outputs_of_studies(tmp_path), tmp_path, request, planned=False)


@pytest.mark.usefixtures("environments")
def test_plans_and_their_run_ids_are_as_pinned(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _check(outputs_of_plans(tmp_path), tmp_path, request, planned=True)


def test_the_pinned_run_ids_are_of_200_specs_and_more() -> None:
    run_ids = _pinned()[RUN_IDS].splitlines()
    assert len(run_ids) == len(set(run_ids)) >= 200


def test_a_changed_word_and_a_changed_figure_are_seen() -> None:
    text = '$ python -m analysis predict --json\n{"a": 0.5, "b": [1]}\n'
    assert _same("predict_json.txt", text, text.replace("0.5", "0.5000000001"))
    assert not _same("predict_json.txt", text, text.replace("0.5", "0.501"))
    assert not _same("predict_json.txt", text, text.replace('"b"', '"c"'))
    assert not _same("predict_json.txt", text, text.replace("predict", "forecast"))
    assert not _same("report.json", text, text.replace("0.5", "0.5000000001"))


def _check(outputs: Mapping[str, str], folder: Path, request: pytest.FixtureRequest, planned: bool) -> None:
    """Compare outputs with the goldens. planned: whether the outputs are those of plans."""
    here = [name for name, text in outputs.items() if str(folder) in text or str(PROJECT) in text]
    assert not here, f"names of this machine's folders in {', '.join(here)}"
    if request.config.getoption("--renew-goldens"):
        _pin({name: text for name, text in _pinned().items() if (name in PLANNED) != planned} | dict(outputs))
    pinned = {name: text for name, text in _pinned().items() if (name in PLANNED) == planned}
    assert sorted(outputs) == sorted(pinned)
    differing = [name for name, text in pinned.items() if not _same(name, text, outputs[name])]
    shown = "\n".join(line for name in differing for line in _difference(name, pinned[name], outputs[name]))
    assert not differing, f"{len(differing)} differ: {', '.join(differing)}\n{shown}"


def _pin(outputs: Mapping[str, str]) -> None:
    shutil.rmtree(EXPECTED, ignore_errors=True)
    for name, text in outputs.items():
        path, content = EXPECTED / name, text.encode("utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(text) <= SMALL:
            path.write_bytes(content)
        else:
            path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(content, preset=9))


def _pinned() -> dict[str, str]:
    found = {}
    for path in sorted(path for path in EXPECTED.rglob("*") if path.is_file()):
        name = path.relative_to(EXPECTED).as_posix()
        content = path.read_bytes()
        found[name.removesuffix(".xz")] = (lzma.decompress(content) if path.suffix == ".xz" else content).decode(
            "utf-8"
        )
    return found


def _same(name: str, pinned: str, now: str) -> bool:
    if pinned == now or not name.endswith("_json.txt"):
        return pinned == now
    (command, document), (command_now, document_now) = (text.split("\n", 1) for text in (pinned, now))
    try:
        return command == command_now and _close(json.loads(document), json.loads(document_now))
    except ValueError:  # the command ended with a message
        return False


def _close(pinned: Any, now: Any) -> bool:
    if isinstance(pinned, float) and isinstance(now, float):
        return math.isclose(pinned, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if isinstance(pinned, dict) and isinstance(now, dict):
        return list(pinned) == list(now) and all(map(_close, pinned.values(), now.values()))
    if isinstance(pinned, list) and isinstance(now, list):
        return len(pinned) == len(now) and all(map(_close, pinned, now))
    return type(pinned) is type(now) and pinned == now


def _difference(name: str, pinned: str, now: str) -> Iterator[str]:
    texts = (text.splitlines() for text in (pinned, now))
    lines = list(difflib.unified_diff(*texts, f"pinned/{name}", f"now/{name}", n=0, lineterm=""))
    yield from (line[:SHOWN_CHARACTERS] for line in lines[:SHOWN_LINES])
    if len(lines) > SHOWN_LINES:
        yield f"... and {len(lines) - SHOWN_LINES} more lines"
