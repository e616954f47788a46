"""Packs and unpacks the recorded studies of the gallery.

    python -m benchmarks.studies results/<study>     packs it into benchmarks/recorded/studies/<study>.tar.xz

Keeps the small files that the report needs: the command, specs, events and results. Omits checkpoints, traces and the
ranks' output. Replaces the machine's folders, host name and kernel release; numbers are unchanged.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from pathlib import Path

from benchmarks.common import ROOT

RECORDED = ROOT / "benchmarks" / "recorded" / "studies"
KEPT = (
    "study.json", "runs/*/spec.json", "runs/*/result.json", "runs/*/attempt-*/*.json",
    "runs/*/attempt-*/events.rank*.jsonl",
)  # fmt: skip
HOST = "laptop"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "study.json").is_file():
        print("usage: python -m benchmarks.studies results/<study>", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    archive = RECORDED / f"{folder.resolve().name}.tar.xz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(packed(folder))
    print(f"{archive}: {archive.stat().st_size:,} bytes")
    return 0


def packed(folder: Path) -> bytes:
    """A tar.xz of the study, identical for identical files."""
    paths = sorted({path for pattern in KEPT for path in folder.glob(pattern)})
    # Longest first: one folder may contain another.
    folders = sorted(
        {value for path in folder.glob("runs/*/spec.json") for value in folders_in(path)}, key=len, reverse=True
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for path in paths:
            content = without_the_machine(path.read_text(encoding="utf-8"), folders).encode("utf-8")
            entry = tarfile.TarInfo(f"{folder.resolve().name}/{path.relative_to(folder).as_posix()}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def folders_in(spec: Path) -> list[str]:
    """Folders of the machine named in a spec.json."""
    site = json.loads(spec.read_text(encoding="utf-8"))["site"]
    roots = [site["project"], site["data_root"]]
    return [root for root in roots if root and root.startswith("/")]


def without_the_machine(text: str, folders: list[str]) -> str:
    """The text of a JSON file without the machine's folders and names."""
    text = re.sub(r',\s*"(?:results|data\.root)=[^"]*"', "", text)  # in a command
    for folder in folders:
        text = text.replace(f"{folder}/", "").replace(folder, ".")
    text = re.sub(r'("host": ?)"[^"]*"', rf'\1"{HOST}"', text)
    return re.sub(r'("platform": ?"Linux)-[^"]*?-(x86_64|aarch64)', r"\1-\2", text)


def unpack(study: str, results: Path) -> Path:
    """Unpack a recorded study into a results folder and return its folder. Raises FileNotFoundError."""
    with tarfile.open(RECORDED / f"{study}.tar.xz") as archive:
        archive.extractall(results, filter="data")
    return results / study


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
