"""NVIDIA DALI on the CPU against the pipeline in NumPy and Pillow (other halves: tests/worker/sides/dali_side.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dali_side
import pytest
from environments import in_environment, needs_dali

pytestmark = pytest.mark.torch

# Two ranks, two first steps, six batches.
BATCHES = 2 * 2 * 6
# In levels of 255. The decoded images are equal. Pillow's resize rounds to whole levels after each of its two passes,
# DALI's after the last: measured 1, and 2 in few pixels of images that shrink by more than half.
RESIZE = 2
# Pillow decodes images of at least four times the target side at a half, a quarter or an eighth, by dropping
# frequencies and rounding up to whole pixels; DALI resizes the whole image. Measured: means up to 2.3, single pixels at
# edges 19.
REDUCED_MEAN, REDUCED_WORST = 3, 32


@pytest.fixture(autouse=True)
def _dali() -> None:
    needs_dali()


def in_torch(function: str, *arguments: Any) -> Any:
    return in_environment("pytorch", "dali_side", function, *arguments)


@pytest.mark.parametrize(("augment", "workers", "prefetch"), [(True, 2, 4), (True, 1, 1), (False, 1, 2)])
def test_samples_order_crops_and_flips_are_those_in_numpy_and_pixels_nearly(
    tmp_path: Path, augment: bool, workers: int, prefetch: int
) -> None:
    root = str(dali_side.make_folders(tmp_path))
    found = in_torch("compared", root, augment, workers, prefetch)
    assert (found["batches"], found["labels"]) == (BATCHES, True)
    assert found["worst"] <= RESIZE + 1e-3  # of float32
    # No two images are this similar, and noise reveals any shift.
    assert in_torch("neighbours", root) > 10 * RESIZE


def test_large_images_differ_more_since_pillow_decodes_them_at_a_reduced_size(tmp_path: Path) -> None:
    root = str(dali_side.make_folders(tmp_path, dali_side.LARGE))
    found = in_torch("compared", root, True, 2, 2)
    assert found["labels"]
    assert found["mean"] <= REDUCED_MEAN
    assert RESIZE < found["worst"] <= REDUCED_WORST


@pytest.mark.parametrize("sizes", [dali_side.SMALL, dali_side.LARGE], ids=["small", "large"])
def test_a_window_of_a_file_is_decoded_to_the_same_bytes_as_the_whole(
    tmp_path: Path, sizes: tuple[tuple[int, int], ...]
) -> None:
    assert in_torch("windows", str(dali_side.make_folders(tmp_path, sizes))) == [True] * dali_side.STEPS


def test_half_precision_gets_the_same_numbers_rounded_once(tmp_path: Path) -> None:
    assert in_torch("half", str(dali_side.make_folders(tmp_path))) == {"types": ["float32", "float16"], "rounded": True}


def test_odd_files_are_read_as_pillow_reads_them_and_those_that_cannot_be_are_named(tmp_path: Path) -> None:
    found = in_torch("odd_files", str(tmp_path))
    for kind in ("gif", "cut", "gone"):
        (said,) = found.pop(kind)
        assert said.startswith("image ODD cannot be read or decoded by NVIDIA DALI ")
        assert said.endswith("; replace the file, remove its entry, or use data.pipeline=harness")
    assert sorted(found) == ["alpha", "cmyk", "gray", "palette", "turned"]
    assert max(worst for (worst,) in found.values()) <= RESIZE + 1e-3


def test_a_rank_that_cannot_use_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    said = in_torch("refused", str(dali_side.make_folders(tmp_path)))
    assert said["synthetic"] == (
        "data.pipeline=dali decodes image files, and data set 'made' (reader 'synthetic') has none; use "
        "data.pipeline=harness"
    )
    assert said["absent"].startswith("data.pipeline=dali needs NVIDIA DALI, which this environment cannot load (")
    assert "`DALI=1 sbatch/env/pytorch.sh`" in said["absent"]
