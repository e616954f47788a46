"""PyTorch halves of the tests of `data.pipeline=dali` (environments.in_environment), and their image folders."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
from builders import make_spec
from PIL import Image
from pipelines_side import opened

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec, InputSpec, RunSpec
from harness.worker.data.readers import open_dataset

SIZE = 32
ROOMS = DatasetSpec("rooms", "imagefolder", 2, 3, SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Both decode short sides up to 4 * SIZE - 1 completely; from 4 * SIZE on, Pillow decodes at a half or less.
SMALL = ((20, 30), (32, 32), (50, 41), (33, 90), (127, 130), (64, 64), (100, 81))
LARGE = ((128, 150), (300, 260), (201, 400), (500, 333))
# Fewer samples than the steps take: epochs end in the middle of batches.
STEPS, RESUMED = 6, 4


def picture(size: Tuple[int, int], seed: int) -> Image.Image:
    """Return an image of the given height and width: soft colours, an edge and noise, different for every seed."""
    rng = np.random.default_rng(seed)
    height, width = size
    soft = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    pixels = np.asarray(soft).astype(int) + rng.integers(-8, 9, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 :] = 255 - pixels[height // 3 : height // 2, width // 4 :]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def make_folders(folder: Path, sizes: Tuple[Tuple[int, int], ...] = SMALL, count: int = 20) -> Path:
    """Create train/ and test/ with two classes of `count` images each."""
    for number, (part, name) in enumerate(itertools.product(("train", "test"), ("cellar", "attic"))):
        (folder / part / name).mkdir(parents=True)
        for place in range(count):
            image = picture(sizes[place % len(sizes)], 1000 * number + place)
            image.save(
                folder / part / name / f"{place:02}.jpg", quality=(75, 95)[place % 2], progressive=place % 3 == 0
            )
    return folder


def spec(pipeline: str, workers: int, prefetch: int, **changes: Any) -> RunSpec:
    values = {"dataset": ROOMS, "global_batch": 16, "batch_per_gpu": 8, **changes}
    return make_spec(data=InputSpec(pipeline, workers, prefetch), **values)


def compared(root: str, augment: bool, workers: int, prefetch: int) -> Dict[str, Any]:
    """Compare batches of two ranks, from the start and from a later step as after a restart, with those in NumPy.

    labels: all are equal. worst, mean: differences in levels of 255, over all pixels; of the mean, the largest of an
    image.
    """
    dataset = dataclasses.replace(ROOMS, augment=augment)
    split = open_dataset(dataset, root)[0]
    labels, worst, means = [], 0.0, []
    for rank, first_step in itertools.product((0, 1), (0, RESUMED)):
        with opened("pytorch", spec("dali", workers, prefetch, dataset=dataset), rank, first_step, split) as own:
            batches = []
            for step in range(STEPS):
                if step == 2:
                    own.settle()  # as before a probe: must not drop or skip batches
                batches.append(next(own))
        with opened("pytorch", spec("harness", 1, 2, dataset=dataset), rank, first_step, split) as reference:
            for (images, targets), (pixels, wanted) in zip(batches, itertools.islice(reference, STEPS)):
                assert (images.numpy().dtype, targets.numpy().dtype) == (np.float32, np.int64)
                assert (tuple(images.shape), tuple(targets.shape)) == (pixels.shape, wanted.shape)
                labels.append((targets.numpy() == wanted).all())
                levels = 255 * (images.numpy() * np.array(dataset.std) + np.array(dataset.mean))
                difference = np.abs(levels - pixels)
                worst = max(worst, difference.max())
                means.extend(difference.mean(axis=(1, 2, 3)))
    return {"batches": len(labels), "labels": bool(all(labels)), "worst": float(worst), "mean": float(max(means))}


def neighbours(root: str) -> float:
    """Return the mean difference, in levels of 255, of the two most similar images of the data set."""
    split = open_dataset(ROOMS, root)[0]
    images = split.images(np.arange(len(split))).astype(int)
    pairs = itertools.combinations(range(len(images)), 2)
    return float(min(np.abs(images[one] - images[other]).mean() for one, other in pairs))


def windows(root: str) -> List[bool]:
    """Return whether images of which only a window is decoded equal, byte for byte, those decoded completely."""
    from nvidia.dali import fn, types

    from harness.worker.pytorch.dali import DaliBatches

    def whole(batches: DaliBatches, paths: Any) -> Any:
        """Decode completely, as DaliBatches._resized did before it used windows."""
        images = fn.decoders.image(
            fn.io.file.read(paths, dont_use_mmap=True),
            output_type=types.RGB,
            adjust_orientation=False,
            jpeg_fancy_upsampling=True,
            affine=False,
        )
        extent = fn.cast(images.shape()[:2], dtype=types.FLOAT)
        side = fn.reductions.min(extent)
        begin = (extent - side) / 2
        how = {"interp_type": types.INTERP_LINEAR, "antialias": True}
        return fn.resize(images, size=[SIZE, SIZE], roi_start=begin, roi_end=begin + side, **how)

    split, equal = open_dataset(ROOMS, root)[0], []
    of_window = DaliBatches._resized
    taken = []
    for resized in (of_window, whole):
        DaliBatches._resized = resized  # type: ignore[method-assign]
        with opened("pytorch", spec("dali", 1, 1), 0, 0, split) as own:
            taken.append([next(own)[0].numpy() for _ in range(STEPS)])
    DaliBatches._resized = of_window  # type: ignore[method-assign]
    for ours, theirs in zip(*taken):
        equal.append(bool(np.array_equal(ours, theirs)))
    return equal


def half(root: str) -> Dict[str, Any]:
    """Compare batches for precision=fp16 with those for fp32."""
    split, batches = open_dataset(ROOMS, root)[0], []
    for precision in ("fp32", "fp16"):
        with opened("pytorch", spec("dali", 1, 1, precision=precision), 0, 0, split) as own:
            batches.append([next(own)[0].numpy() for _ in range(STEPS)])
    return {
        "types": [str(one[0].dtype) for one in batches],
        "rounded": all(np.array_equal(single.astype(np.float16), halved) for single, halved in zip(*batches)),
    }


def odd_files(root: str) -> Dict[str, List[Any]]:
    """Return, for each kind of file named .jpg, its worst difference in levels of 255, or the message."""
    kinds = {
        "gray": lambda path: picture((50, 40), 1).convert("L").save(path, "JPEG"),
        "cmyk": lambda path: picture((50, 40), 1).convert("CMYK").save(path, "JPEG", quality=95),
        "alpha": lambda path: picture((50, 40), 1).convert("RGBA").save(path, "PNG"),
        "palette": lambda path: picture((50, 40), 1).convert("P").save(path, "PNG"),
        "turned": _turned,
        "gif": lambda path: picture((50, 40), 1).save(path, "GIF"),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:600]),
        "gone": lambda path: path.unlink(),
    }
    found = {}
    for kind, make in kinds.items():
        folder = make_folders(Path(root) / kind, ((50, 40),), count=4)
        split = open_dataset(ROOMS, str(folder))[0]
        odd = folder / "train" / "attic" / "01.jpg"
        make(odd)
        with opened("pytorch", spec("dali", 1, 1, gpus=1, global_batch=8, batch_per_gpu=8), 0, 0, split) as own:
            try:
                images = next(own)[0].numpy()
            except DataError as error:
                found[kind] = [str(error).replace(str(odd), "ODD")]
                continue
        with opened("pytorch", spec("harness", 1, 2, gpus=1, global_batch=8, batch_per_gpu=8), 0, 0, split) as pillow:
            pixels = next(pillow)[0]
        levels = 255 * (images * np.array(ROOMS.std) + np.array(ROOMS.mean))
        found[kind] = [float(np.abs(levels - pixels).max())]
    return found


def _turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be displayed rotated by 90 degrees, which Pillow does not do
    picture((50, 40), 1).save(path, "JPEG", exif=exif)


def refused(root: str) -> Dict[str, str]:
    """Return the messages for samples that are not image files, and for an environment without DALI."""
    said = {}
    made = dataclasses.replace(ROOMS, name="made", reader="synthetic", train_samples=16, test_samples=16)
    for kind, dataset in (("synthetic", made), ("absent", ROOMS)):
        split = open_dataset(dataset, root)[0]
        if kind == "absent":
            sys.modules["nvidia.dali"] = None  # type: ignore[assignment] # how Python marks a missing module
        try:
            opened("pytorch", spec("dali", 1, 1, dataset=dataset), 0, 0, split)
        except DataError as error:
            said[kind] = str(error)
    return said
