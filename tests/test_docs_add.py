"""docs/add.md: following the page adds a cluster, a data set, a model, a strategy and a framework.

In a copy of the program, the page's code blocks are written to the files they name, and its commands are run.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT

PAGE = PROJECT / "docs" / "add.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def change(copy: Path, kind: str, text: str) -> None:
    """Write a block to the file named in its first line."""
    first, _, rest = text.partition("\n")
    if kind == "diff":
        path = copy / first
        old = "\n".join(line[1:] for line in rest.splitlines() if line[:1] in " -")
        new = "\n".join(line[1:] for line in rest.splitlines() if line[:1] in " +")
        there = path.read_text(encoding="utf-8")
        assert there.count(old) == 1, f"{first}: {old!r} is there {there.count(old)} times"
        path.write_text(there.replace(old, new), encoding="utf-8")
    elif before := re.fullmatch(r"# before `(.*)` in (\S+)", first):
        path = copy / before[2]
        there = path.read_text(encoding="utf-8")
        assert there.count(before[1]) == 1, text
        path.write_text(there.replace(before[1], f"{rest}\n\n{before[1]}"), encoding="utf-8")
    else:
        name = re.fullmatch(r"# (\S+)", first)
        assert name, f"which file? {first}"
        path = copy / name[1]
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rest, encoding="utf-8")


def run(copy: Path, command: str) -> str:
    """Run a command of the page in the copy with this Python."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=copy,
        env={
            **os.environ,
            "PYTHONPATH": str(copy),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.torch
@pytest.mark.whole  # in CI, each of its parts: tests of the configuration and of adapters
def test_following_the_page_adds_a_cluster_data_set_model_strategy_and_framework(
    tmp_path: Path, torch_python: Path
) -> None:
    copy = tmp_path / "copy"
    for room in ("harness", "models", "analysis", "conf"):
        shutil.copytree(PROJECT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / ".envs").symlink_to(torch_python.parents[2])

    printed = {}
    for kind, text in blocks():
        if kind == "console":
            for command in re.findall(r"^\$ (.*)$", text, flags=re.MULTILINE):
                printed[command] = run(copy, command)
        else:
            change(copy, kind, text)

    [plan] = [out for command, out in printed.items() if "cluster=lakeside" in command]
    assert re.search(r"2 +│ +6 +│ +12", plan), plan
    [parameters] = [out for command, out in printed.items() if command.startswith("python -c")]
    # LeCun et al. 1998, with full connections: 156 + 2,416 + 48,120 + 10,164 + 850.
    assert parameters == "61706 parameters\n"
    assert f"`{parameters.strip()}`" in PAGE.read_text(encoding="utf-8")
    results = [json.loads(path.read_text()) for path in (copy / "results/added/runs").glob("*/result.json")]
    assert sorted(result["run_id"].rsplit("-", 1)[0] for result in results) == [
        "numpy-plain-softmax-1gpu",
        "pytorch-allreduce-lenet5-2gpu",
        "pytorch-allreduce-resnet20-1gpu",
        "pytorch-plain-softmax-1gpu",
        "pytorch-reduce_broadcast-lenet5-2gpu",
    ]
    assert {result["status"] for result in results} == {"completed"}, results
    with open(copy / "results/added/equal_work.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert not [row for row in rows if "differs" in row["verdict"]], rows
    # Measured: 7.7e-8, the rounding of single precision in two ways to sum 16 samples.
    [numpy] = [row for row in rows if row["framework"] == "numpy"]
    assert numpy["reference_framework"] == "pytorch"
    assert float(numpy["gradient_magnitude_difference"]) < 1e-6
