"""`python -m analysis proposal results/<study> gpus=64 runs=40 epochs=90`: write the scaling section of a proposal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from analysis.base.settings import positive, settings_of, whole
from analysis.commands.sources import declare_reading, output_folder, study_of
from analysis.report.print.paper import declare_paper, paper_of
from analysis.scaling.request import SETTINGS as PREDICTION
from analysis.scaling.request import limits_of

if TYPE_CHECKING:
    from analysis.report.findings import Findings
    from analysis.report.print.paper import Paper
    from analysis.report.print.request import Ask

SETTINGS = {
    "gpus": "GPUs of one run, such as 64",
    "runs": "how many runs, such as 40",
    "hours": "hours of one run on so many GPUs",
    "steps": "steps of one run, instead of hours",
    "epochs": "epochs of one run, instead of hours",
    "samples": "samples of one run, instead of hours",
    "budget_gpu_hours": "GPU-hours of all runs, instead of gpus=: asks for the size that they allow",
    "efficiency": PREDICTION["efficiency"],
    "series": "words of the series' name, where the study has several",
    "cluster": "only the series measured on this cluster",
    "gpus_per_node": "GPUs of a node, for a size that was not measured (default: the most that were measured on one)",
    "bandwidth_gbit": "Gb/s between two nodes, for a study of one node",
}
LENGTHS = ("hours", "steps", "epochs", "samples")


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the scaling section of a proposal for computing time, as proposal.md and proposal.tex "
        "(docs/exports.md). What only you know is marked [FILL IN: ...]."
    )
    parser.epilog = "settings: " + "; ".join(f"{name}=: {what}" for name, what in SETTINGS.items())
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>, or a table or logs")
    parser.add_argument("settings", nargs="+", metavar="name=value", help="gpus=64 runs=40 and others, see below")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the study's own)")
    declare_paper(parser)
    declare_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Write proposal.md and .tex with their figure. Raises StudyError for errors the user can fix."""
    ask = ask_of(options.settings)
    paper = paper_of(options)

    from analysis.base.files import prepare_folder, write_files
    from analysis.report.findings import findings_of

    documents = proposal_documents(findings_of(study_of(options.study, options)), ask, paper)
    out = output_folder(options.study, options.out)
    prepare_folder(out)
    written = write_files(out, documents)
    gaps = documents["proposal.md"].decode("utf-8").count("FILL IN:")
    print(f"{gaps} places are yours to fill in, marked [FILL IN: ...]. Written:")
    for path in written:
        print(f"  {path}")
    return 0


def ask_of(settings: list[str]) -> Ask:
    """Parse the settings. Raises StudyError for unknown, missing or invalid ones."""
    from analysis.report.print.request import Ask

    values = settings_of(settings, SETTINGS)
    limits = limits_of(values)
    for name in ("gpus", "runs"):
        if name not in values and (name == "runs" or limits is None):
            raise StudyError(f"{name}= is missing: {SETTINGS[name]}; give both, such as gpus=64 runs=40")
    if limits is not None and "gpus" in values:
        raise StudyError("gpus= and budget_gpu_hours= are given; give one of them")
    lengths = [name for name in LENGTHS if name in values]
    if len(lengths) > 1:
        raise StudyError(f"{'= and '.join(lengths)}= are given; give one of them: the length of one run")
    numbers = {name: positive(name, values.get(name)) for name in (*LENGTHS, "bandwidth_gbit")}
    if limits is not None and not {"epochs", "samples"} & set(values):
        raise StudyError("budget_gpu_hours= is for runs of so many samples or epochs: give samples= or epochs=")
    bandwidth = numbers["bandwidth_gbit"]
    return Ask(
        whole("gpus", values["gpus"]) if limits is None else 0,
        whole("runs", values["runs"]),
        hours=numbers["hours"],
        steps=numbers["steps"],
        epochs=numbers["epochs"],
        samples=numbers["samples"],
        limits=limits,
        series=values.get("series"),
        cluster=values.get("cluster"),
        gpus_per_node=whole("gpus_per_node", values["gpus_per_node"]) if "gpus_per_node" in values else None,
        bytes_per_second=None if bandwidth is None else bandwidth * 1e9 / 8,
    )


def proposal_documents(findings: Findings, ask: Ask, paper: Paper) -> dict[str, bytes]:
    """Return the files' contents by name. Raises StudyError if the study lacks what the proposal needs."""
    from analysis.report.print.drawing import rendered
    from analysis.report.print.latex import blocks_tex
    from analysis.report.print.markdown import markdown_of
    from analysis.report.print.proposal import PICTURE, proposal_of
    from analysis.report.print.proposal_figure import proposal_figure
    from analysis.report.print.request import request_of

    request = request_of(findings, ask)
    blocks = proposal_of(findings, request)
    pictures = rendered(proposal_figure(request, paper), ("pdf", "png"), paper.wide_mm)
    tex = "% \\input this file; the preamble needs \\usepackage{booktabs,graphicx}.\n\n" + blocks_tex(blocks)
    return {
        "proposal.md": markdown_of(blocks).encode("utf-8"),
        "proposal.tex": tex.encode("ascii"),
        **{f"figures/{PICTURE}.{kind}": content for kind, content in pictures.items()},
    }
