"""Local runs on a disk without space, and on one without files left: a small file system in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from full_disks import KIB, fill_bytes, fill_files, free, mounted
from processes import wait_for
from project import Cli
from studies import started

RUN = (
    "framework=emulated", "model=cnn_small", "dataset=synthetic", "batch=4", "cluster=local", "cluster.device=cpu",
    "gpus=2", "measure=smoke", "measure.evaluate_samples=0", "measure.probe_steps=0", "study=full",
)  # fmt: skip

pytestmark = pytest.mark.torch


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB and 400 files."""
    with mounted(tmp_path / "small", "4m", 400) as folder:
        yield folder


def check(said: str, small: Path, cli: Cli) -> None:
    """Check what a command that met the full disk printed, and what it left."""
    assert len([line for line in said.splitlines() if "no space left on" in line.lower()]) == 1, said
    assert "Traceback" not in said
    assert not [*small.rglob(".result.*"), *small.rglob(".token.*"), *small.rglob("*.tmp")]
    status = cli("harness", "status", str(small / "full"))
    assert " running " not in status.stdout, status.stdout
    assert " completed " not in status.stdout


# The run has 76 KiB and 30 files, and a disk with less than 1 MiB or 16 files left is not begun on.
@pytest.mark.parametrize(
    ("fill", "left"),
    [(fill_bytes, 44 * KIB), (fill_files, 14), pytest.param(fill_files, 22, marks=pytest.mark.whole)],
    ids=["44 KiB", "14 files", "22 files"],
)
def test_a_full_disk_is_said_in_one_sentence_and_the_run_continues_later(
    cli: Cli, torch_python: Path, small: Path, fill: Callable[[Path, int], None], left: int
) -> None:
    asked = (*RUN, f"results={small}")
    fill(small, left)
    full = cli("harness", *asked)
    assert full.returncode != 0
    check(full.stdout + full.stderr, small, cli)
    free(small)
    again = cli("harness", *asked)
    assert "1 completed, 0 failed" in again.stdout, again.stdout + again.stderr


def supervised(small: Path) -> bool:
    """Whether the supervisors have begun; which files of the ranks fit is then left to chance."""
    return any(small.rglob("begin.json"))


def rank_1_trains(small: Path) -> bool:
    return any(b'"ev":"steps"' in log.read_bytes() for log in small.rglob("events.rank1*"))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("fill", "moment"),
    [
        (fill_files, rank_1_trains),
        # test_supervisors_on_full_disk.py has this moment without a training.
        (fill_bytes, supervised),
        (fill_bytes, rank_1_trains),
        (fill_files, supervised),
    ],
)
def test_a_disk_that_fills_up_during_a_run_ends_it_in_one_sentence(
    cli: Cli,
    tmp_path: Path,
    torch_python: Path,
    small: Path,
    fill: Callable[[Path, int], None],
    moment: Callable[[Path], bool],
) -> None:
    asked = (*RUN, f"results={small}", "measure.steps=300", "measure.precision=null")
    with started(tmp_path, *asked) as process:
        wait_for(lambda: moment(small), 120)
        fill(small, 0)
        said, _ = process.communicate(timeout=120)  # the heartbeat would end it after 300 s
    assert process.returncode != 0, said
    check(said, small, cli)
    free(small)
    again = cli("harness", *asked)
    assert "1 completed, 0 failed" in again.stdout, again.stdout + again.stderr
