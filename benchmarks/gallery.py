"""Builds the gallery (docs/gallery/) and the README's picture from published measurements and recorded studies: `make
gallery`.

    python -m benchmarks.gallery [--out DIR] [study ...]

Imports DLPerf's measurements on V100 from benchmarks/published, unpacks each study of benchmarks/recorded/studies,
creates the reports (`python -m analysis`), opens report.html in
headless Chromium, and writes screenshots, some of the figures, and a page with the terminal's sentences. Independent of
how the report's page is built.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.studies import RECORDED, unpack

GALLERY = ROOT / "docs" / "gallery"
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
# (name, width, height in CSS pixels, colour scheme) of each screenshot: the top of the page, and the start of the
# figures.
DRAWN = "drawings"
FORECAST = "forecast"  # the picture of README: what was measured, and what is predicted
VIEWS = (("wide", 1280, 1000, "light"), (DRAWN, 1280, 900, "light"), ("narrow", 400, 800, "dark"))
# Finds the first large figure, whatever it is made of.
TO_DRAWINGS = """() => {
  const large = (element) => element.getBoundingClientRect().width >= 300;
  const first = [...document.querySelectorAll("svg, canvas, img, figure")].find(large);
  if (first) window.scrollTo(0, first.getBoundingClientRect().top + window.scrollY - 120);
}"""
DRAWN_MS = 1500  # time for the page's script to draw
COLOURS = 128  # palette size of a screenshot: a third of the full-colour size without visible difference
# Prefixes of the files in figures/ to include.
DRAWINGS = ("speedup", "waterfall")
# Recognises sentences that state a result.
RESULT = re.compile(r"\d % efficiency")


@dataclass(frozen=True)
class Shown:
    """A study of the gallery. asks: its question. here: how its recording differs from the study."""

    name: str
    asks: str
    here: str


STUDIES = (
    Shown(
        "frameworks_v100",
        "Which framework scales best, by itself and with Horovod?",
        "ResNet-20 only, on Fashion-MNIST in place of CIFAR-10, with 16 samples per rank and 80 timed steps, on CPU "
        "ranks in place of V100; three repeats.",
    ),
    Shown(
        "sync_async_mixed",
        "What do asynchronous parameter servers gain in speed, and what do they lose in accuracy?",
        "ResNet-20 in place of ResNet-50 and AlexNet, on Fashion-MNIST in place of MIT Indoor 67, with 16 samples per "
        "step of all ranks and 80 steps, on CPU ranks of one machine in place of 16 nodes of 4 GPUs; three seeds. "
        "`ps_mixed` is left out: on one node it has nothing to mix.",
    ),
    Shown(
        "indoor_model_sizes",
        "Does the speedup depend on the size of the network, or of the batch?",
        "The two smaller of the four networks, on made images of 32×32 pixels in place of MIT Indoor 67, with 8 and 16 "
        "samples per rank and 80 timed steps, on CPU ranks; one run of each.",
    ),
    Shown(
        "data_vs_model_parallel",
        "Is the data to be divided, the model, or both, and what does a failure cost then?",
        "`cnn_small` in place of VGG-16, on made images of 32×32 pixels in shards, with 16 samples per step of all "
        "ranks and 88 steps with a checkpoint every 24, on CPU ranks; one run of each.",
    ),
)

PUBLISHED = "published_v100"
# Rows of benchmarks/published/throughput.csv: ResNet50 V1.5 in fp32 with 128 samples per GPU, by eight systems.
SOURCE, KEPT = "DLPerf", ("gpus", "nodes", "samples_per_second", "batch_per_gpu", "framework")
# Drawings of the prediction, too.
PUBLISHED_DRAWINGS = ("speedup", "efficiency_each", "prediction")

HEAD = """# Gallery

First, measurements that others published, [imported](../imported.md) as a table. Then reports of short forms of four
[presets](../studies.md), recorded on **one shared machine with 2 CPU cores and no GPU**: these show what a report looks
like and nothing about frameworks or GPUs, so do not quote any of their figures. `make gallery` writes this page; the
sentences are those that `python -m analysis` prints.
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("studies", nargs="*", metavar="study", help="only these (default: all that are recorded)")
    parser.add_argument("--out", type=Path, default=GALLERY, help="folder to write to (default: docs/gallery)")
    options = parser.parse_args(arguments)
    recorded = [shown for shown in STUDIES if (RECORDED / f"{shown.name}.tar.xz").exists()]
    names = options.studies or [shown.name for shown in recorded]
    if unknown := set(names) - {shown.name for shown in recorded}:
        known = ", ".join(shown.name for shown in recorded)
        print(f"error: {', '.join(sorted(unknown))} is not recorded; recorded are {known}", file=sys.stderr)
        return 2
    if not CHROMIUM.exists():
        print(f"error: there is no {CHROMIUM}; sbatch/system-packages.sh browser installs it", file=sys.stderr)
        return 2
    sections = []
    with tempfile.TemporaryDirectory() as folder:
        for shown in (shown for shown in recorded if shown.name in names):
            print(f"{shown.name} ...", file=sys.stderr, flush=True)
            sections.append(section(shown, Path(folder), options.out))
        if not options.studies:
            print(f"{PUBLISHED} ...", file=sys.stderr, flush=True)
            sections.insert(0, published(Path(folder), options.out))
    missing = [shown.name for shown in STUDIES if shown not in recorded]
    rest = [f"\nNot recorded: {', '.join(missing)}.\n"] if missing else []
    (options.out / "index.md").write_text("".join([HEAD, *sections, *rest]), encoding="utf-8")
    return 0


def published(folder: Path, out: Path) -> str:
    """Import the published measurements, write their screenshots and figures, and return their section."""
    table = folder / f"{PUBLISHED}.csv"
    with open(ROOT / "benchmarks" / "published" / "throughput.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith(SOURCE)]
    with open(table, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, KEPT, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    printed = report(table, folder)
    made = folder / f"{PUBLISHED}_report"
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(made / "report.html").items():
        (out / f"{PUBLISHED}_{name}.png").write_bytes(picture)
    (out / f"{PUBLISHED}_{FORECAST}.png").write_bytes(picture_of_part(made / "report.html", "prediction"))
    for name in PUBLISHED_DRAWINGS:
        shutil.copyfile(made / "figures" / f"{name}.svg", out / f"{PUBLISHED}_{name}.svg")
    sentences = [f"> - {inert(line.strip())}" for line in printed.splitlines() if RESULT.search(line)]
    source = rows[0]["source"].removesuffix(")").split(" (")
    parts = [
        f"\n## {PUBLISHED}\n",
        wrapped(
            f"How do eight systems train ResNet-50 on 32 V100? {source[0]} ({source[1]}): {rows[0]['system']}; fp32, "
            f"{rows[0]['batch_per_gpu']} samples per GPU, {len(rows)} measurements, one of each size. Beyond 32 GPUs "
            "the figures are predictions."
        )
        + "\n",
        f"![The report in a wide window]({PUBLISHED}_wide.png)\n",
        "From the terminal:\n",
        "\n".join(sentences) + "\n",
        f"![Its figures]({PUBLISHED}_{DRAWN}.png)\n",
        f"What larger sizes would give:\n\n![measured and predicted efficiency]({PUBLISHED}_{FORECAST}.png)\n",
        *(f"![{name} of {PUBLISHED}]({PUBLISHED}_{name}.svg)\n" for name in PUBLISHED_DRAWINGS),
        f"On a narrow screen, in the dark theme:\n\n![in a narrow window]({PUBLISHED}_narrow.png)\n",
        "The command, of a table with these columns ("
        + ", ".join(f"`{name}`" for name in KEPT)
        + f"):\n\n```console\npython -m analysis {PUBLISHED}.csv\n```\n",
    ]
    return "\n".join(parts)


def section(shown: Shown, folder: Path, out: Path) -> str:
    """Create the study's report and screenshots, and return its section of the page."""
    study = unpack(shown.name, folder / "results")
    printed = report(study, folder)
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(study / "report.html").items():
        (out / f"{shown.name}_{name}.png").write_bytes(picture)
    drawings = []
    for start in DRAWINGS:
        for path in sorted((study / "figures").glob(f"{start}*.svg"))[:1]:
            shutil.copyfile(path, out / f"{shown.name}_{start}.svg")
            drawings.append(f"![{start} of {shown.name}]({shown.name}_{start}.svg)\n")
    asked = json.loads((study / "study.json").read_text(encoding="utf-8"))["invocations"]
    commands = dict.fromkeys(wrapped(" ".join(each["command"]), " \\") for each in asked)
    sentences = [f"> - {inert(line.strip())}" for line in printed.splitlines() if RESULT.search(line)]
    view = {name: f"{shown.name}_{name}.png" for name, *_ in VIEWS}
    parts = [
        f"\n## {shown.name}\n",
        f"{shown.asks} [About the study](../studies.md#{shown.name}).\n",
        wrapped(f"**Recorded here:** {shown.here} {counted(study)}") + "\n",
        f"![The report of {shown.name} in a wide window]({view['wide']})\n",
        "From the terminal:\n",
        "\n".join(sentences or ["> (no series has a result)"]) + "\n",
        f"![Its figures]({view[DRAWN]})\n",
        *drawings,
        f"On a narrow screen, in the dark theme:\n\n![in a narrow window]({view['narrow']})\n",
        "The command:\n\n```console\n" + "\n".join(commands) + "\n```\n",
    ]
    return "\n".join(parts)


def report(study: Path, folder: Path) -> str:
    """Create the report of a study's folder, or of a table, and return the terminal output, one sentence per line."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis", str(study.relative_to(folder)), "--only", "html,figures"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "2000", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"python -m analysis {study.name}: {done.stderr}")
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def pictures(page: Path) -> dict[str, bytes]:
    """Screenshots of the page in all VIEWS, as PNG."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        for name, width, height, scheme in VIEWS:
            tab: Any = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab.goto(page.resolve().as_uri())
            tab.wait_for_timeout(DRAWN_MS)
            if name == DRAWN:
                tab.evaluate(TO_DRAWINGS)
                tab.wait_for_timeout(DRAWN_MS)
            found[name] = compressed(tab.screenshot())
            tab.close()
        browser.close()
    return found


def picture_of_part(page: Path, part: str) -> bytes:
    """Screenshot of the figure in a folded part of the page, as PNG. part: its id."""
    from playwright.sync_api import sync_playwright

    _, width, height, scheme = VIEWS[0]
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        tab: Any = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab.goto(f"{page.resolve().as_uri()}#{part}")
        tab.wait_for_selector("html[data-drawn]")
        tab.wait_for_timeout(DRAWN_MS)
        picture = compressed(tab.locator(f"#{part} figure").first.screenshot())
        browser.close()
    return picture


def compressed(picture: bytes) -> bytes:
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    # Median cut, the default, would give two series one colour.
    image = image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def inert(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\<*\[\]`])", r"\\\1", text)


def wrapped(text: str, end: str = "") -> str:
    """Wrap at 120 characters. end: suffix of all lines but the last."""
    lines = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return f"{end}\n".join([lines[0], *(f"  {line}" if end else line for line in lines[1:])])


def counted(study: Path) -> str:
    """Describe the recorded runs: number, ranks, date."""
    specs = [json.loads(path.read_text(encoding="utf-8"))["spec"] for path in study.glob("runs/*/spec.json")]
    ranks = ", ".join(map(str, sorted({spec["gpus"] for spec in specs})))
    return f"{len(specs)} runs, on {ranks} ranks."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
