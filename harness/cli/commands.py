"""Commands of `harness` other than those of the analysis, which analysis/__main__.py lists."""

from __future__ import annotations

RUN = "run"
# Name: (module with main(argv, program), description).
COMMANDS = {
    RUN: ("harness.cli.run", "measure one point, or with -m a sweep; the default"),
    "status": ("harness.cli.status", "how a study stands"),
    "cancel": ("harness.cli.cancel", "cancel the jobs of a study"),
    "doctor": ("harness.doctor.command", "what works on this machine, and what is missing"),
    "data": ("harness.cli.data", "download a published data set"),
    "shards": ("harness.cli.shards", "write a data set as shards, for streaming"),
}
