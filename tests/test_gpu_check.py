"""`python -m benchmarks gpu_check`: a small version on the CPU, and sections that hang, crash or fail."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import in_environment
from processes import wait_for
from project import PROJECT, TEST_PATH

from benchmarks.gpu_check import command, results, runs
from benchmarks.gpu_check.figures import Figure, figure_of
from benchmarks.gpu_check.sections import SECTIONS, Section

# Packages that `python -m harness` needs besides PyTorch's environment, and their dependencies.
PACKAGES = ("hydra", "omegaconf", "antlr4", "submitit", "yaml", "packaging", "cloudpickle", "typing_extensions.py")
PACKAGES += ("rich", "markdown_it", "mdurl", "pygments")
# Of the sections: correctness and whole runs.
SOME = ("numerics", "harness")


def check(python: Path | str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "benchmarks", "gpu_check", *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=500)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with only the harness's packages, unpacked."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in PACKAGES:
        found = importlib.util.find_spec(name.removesuffix(".py"))
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        (folder / name).symlink_to(origin if name.endswith(".py") else origin.parent)
    return folder


@pytest.mark.parametrize(
    "only",
    [SOME, pytest.param(tuple(section.name for section in SECTIONS), marks=pytest.mark.whole)],
    ids=["some", "every"],
)
def test_sections_run_in_small_form_on_the_cpu(
    torch_python: Path, wheels: Path, tmp_path: Path, only: tuple[str, ...]
) -> None:
    out = tmp_path / "gpu.json"
    done = check(torch_python, "--out", out, "--reduced", "--budget", "1500", "--wheels", wheels, "--only", *only)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert sorted(document) == sorted({"machine", *only})
    skipped = {"energy": "a GPU", "jax": "no JAX"}
    for name, entry in document.items():
        assert entry["status"] == ("skipped" if name in skipped else "passed"), (name, entry)
        assert skipped.get(name, "") in entry.get("reason", "")
        assert entry["figures"] or name in skipped
        for figure in entry["figures"]:
            assert sorted(figure) == ["bound", "interval", "n", "name", "unit", "value"]
    assert done.returncode == 0, done.stderr
    # CPU results are never recorded among those of GPUs.
    before = results.RESULTS.read_text(encoding="utf-8")
    refused = check(torch_python, "--record", out)
    assert refused.returncode == 2
    assert "made with --reduced" in refused.stderr
    assert results.RESULTS.read_text(encoding="utf-8") == before


def test_without_a_gpu_it_says_so_in_one_sentence(torch_python: Path, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    line = [str(torch_python), "-m", "benchmarks", "gpu_check", "--out", str(out)]
    done = subprocess.run(line, cwd=PROJECT, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 2
    assert "sees no GPU here" in done.stderr
    assert "--reduced" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not out.exists()


def test_an_interpreter_without_pytorch_is_told_so(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("this environment has PyTorch")
    done = check(sys.executable, "--out", tmp_path / "gpu.json")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "has no PyTorch" in done.stderr


def test_the_command_loads_nothing_that_a_gpu_machine_may_lack() -> None:
    code = (
        "import sys; from benchmarks.__main__ import main\n"
        "try: main(['gpu_check', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('numpy', 'pandas', 'vl_convert', 'altair', 'scipy', 'pyarrow', 'typst', 'hydra')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the command run functions of gpu_check_side.py as its sections."""

    def use(*names: str) -> None:
        made = tuple(Section(name, f"gpu_check_side:{name}", 1, name) for name in names)
        monkeypatch.setattr(command, "SECTIONS", made)
        monkeypatch.setenv("PYTHONPATH", TEST_PATH)
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: object())  # none of them needs PyTorch

    return use


def test_a_section_that_crashes_or_fails_loses_nothing_of_the_others(sections: Any, tmp_path: Path) -> None:
    sections("crash", "fail", "wrong", "right")
    out = tmp_path / "gpu.json"
    assert command.main(["--out", str(out), "--budget", "60"]) == 1
    document = json.loads(out.read_text(encoding="utf-8"))
    assert {name: entry["status"] for name, entry in document.items()} == {
        "crash": "error",
        "fail": "error",
        "wrong": "failed",
        "right": "passed",
    }
    assert document["crash"]["figures"][0]["value"] == 2.0
    assert document["fail"]["reason"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert document["wrong"]["figures"][0]["value"] is None
    assert document["wrong"]["reason"] == "out of bounds: difference"


def test_a_section_that_hangs_is_killed_with_what_it_started(sections: Any, tmp_path: Path) -> None:
    sections("hang", "right")
    out = tmp_path / "gpu.json"
    assert command.main(["--out", str(out), "--budget", "20"]) == 1
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["hang"]["status"] == "timeout"
    assert "killed" in document["hang"]["reason"]
    assert document["right"]["status"] == "passed"
    _, process = document["hang"]["figures"]
    wait_for(lambda: ended(int(process["value"])), 10)  # a killed process takes a moment to end


def test_results_are_kept_when_the_command_is_terminated(sections: Any, tmp_path: Path) -> None:
    sections("right", "hang")
    out = tmp_path / "gpu.json"

    def tell() -> None:
        while "process" not in (out.read_text(encoding="utf-8") if out.exists() else ""):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell, daemon=True).start()
    assert command.main(["--out", str(out), "--budget", "500"]) == 143
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [document[name]["status"] for name in ("right", "hang")] == ["passed", "interrupted"]
    wait_for(lambda: ended(int(document["hang"]["figures"][1]["value"])), 10)


def ended(pid: int) -> bool:
    """Return whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure("x", 1.0), None),
        (Figure("x", 1.0, bound="≤ 1"), True),
        (Figure("x", 1.01, bound="≤ 1"), False),
        (Figure("x", 1.01, interval=(0.9, 1.1), bound="≤ 1"), True),
        (Figure("x", 0.95, interval=(0.94, 0.96), bound="≥ 0.97"), False),
        (Figure("x", 0.95, interval=(0.94, 0.98), bound="≥ 0.97"), True),
        (Figure("x", 0.0, bound="= 0"), True),
        (Figure("x", 1e-9, bound="= 0"), False),
        (Figure("x", float("nan"), bound="≤ 1"), False),
        (Figure("x", "nccl", bound="= nccl"), True),
        (Figure("x", "gloo", bound="= nccl"), False),
        (Figure("x", "none", bound="≥ 1"), False),
    ],
)
def test_a_figure_keeps_to_its_bound_or_does_not(figure: Figure, holds: bool | None) -> None:
    assert figure_of(json.loads(json.dumps(figure.plain()))).holds is holds


def test_gpu_results_are_recorded_by_gpu_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [Figure("device", "cuda"), Figure("gpu", "NVIDIA H200"), Figure("machine", "one NVIDIA H200, Linux")]
    figures += [Figure("date", "2026-11-23"), Figure("code", "abc")]
    broken = [Figure("ratio", 0.5, "of throughput", (0.4, 0.6), 9, "≥ 0.97").plain()]
    document = {
        "machine": {"status": "passed", "seconds": 1.0, "figures": [figure.plain() for figure in figures]},
        "jax": {"status": "skipped", "seconds": 1.0, "figures": [], "reason": "no JAX | here"},
        "graph_gain": {"status": "failed", "seconds": 1.0, "figures": broken, "reason": "out of bounds: ratio"},
    }
    file = tmp_path / "out.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(results, "RECORDED", tmp_path / "recorded")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    results.RESULTS.write_text("# Old\n\n## startup\n\nkept\n", encoding="utf-8")
    for _ in range(2):  # the second one replaces the first
        assert command.main(["--record", str(file)]) == 0
        written = results.RESULTS.read_text(encoding="utf-8")
        assert written.count("### NVIDIA H200\n\n2026-11-23, code abc. Machine: one NVIDIA H200, Linux.") == 1
        assert "kept" in written
    assert "| jax | skipped | no JAX \\| here | – | – | – |" in written
    assert "| graph_gain | ratio | 0.5 of throughput | 0.4 to 0.6 | ≥ 0.97 **broken** | 9 |" in written
    assert (tmp_path / "recorded" / "nvidia-h200.json").exists()


def test_nan_difference_is_reported() -> None:
    ones = [np.ones(2, np.float32)] * 3
    broken = [ones[0], np.array([1, np.nan], np.float32), ones[2]]
    assert (runs.largest(ones, ones), runs.difference(ones, ones)) == (0.0, 0.0)
    assert math.isnan(runs.largest(broken, ones))
    assert math.isnan(runs.difference(broken, ones))


def test_sections_that_no_time_is_left_for_say_so(sections: Any, tmp_path: Path) -> None:
    sections("right", "wrong")
    assert command.main(["--out", str(tmp_path / "gpu.json"), "--budget", "1"]) == 1
    document = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert {entry["reason"] for entry in document.values()} == {"no time was left of the budget"}


@pytest.mark.parametrize("content", ["no JSON", "{}", '{"machine": {"figures": []}}'])
def test_results_not_from_a_gpu_are_rejected(content: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "out.json"
    file.write_text(content, encoding="utf-8")
    assert command.main(["--record", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {file}")


def test_power_is_integrated_over_the_time_that_was_measured() -> None:
    # 2 s at 10 W, and 2 s at 100 W on average.
    assert in_environment("pytorch", "gpu_check_side", "integrals") == pytest.approx([20.0, 200.0])
