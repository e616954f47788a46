"""NVIDIA DALI as the input pipeline of image folders: reads, decodes, resizes, crops, flips and normalises.

Runs on the run's GPU with its JPEG decoder ("mixed"), or on the host without a GPU. `Draw` chooses samples, crops and
flips; DALI itself draws no random numbers. Its decoder and resize differ slightly from Pillow's (docs/data.md).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from importlib import metadata
from typing import Any, Callable, Deque, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from harness.core.errors import DataError
from harness.core.gpu_types import builder
from harness.core.spec import RunSpec
from harness.worker.data.augment import choices
from harness.worker.data.batches import Pipeline
from harness.worker.data.imagefolder import ImageFolderSplit, printable
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

Batch = Tuple[torch.Tensor, torch.Tensor]
Source = Callable[[], List[Any]]

# PyPI has one package per major version of CUDA.
PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")


def version() -> Optional[str]:
    """Return the version of NVIDIA DALI in this environment, or None."""
    for package in PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


class DaliBatches(Pipeline):
    """Batches of images float32 [L, H, W, C], normalised, on the run's device, and labels int64 [L] on the host; with
    precision=fp16 images are float16, which halves the memory traffic.

    DALI's threads (data.workers) prefetch up to data.prefetch batches. Raises DataError if DALI is not installed or the
    samples are not image files.
    """

    def __init__(self, spec: RunSpec, split: Split, draw: Draw, first_step: int) -> None:
        if not isinstance(split, ImageFolderSplit):
            raise DataError(
                f"data.pipeline=dali decodes image files, and data set '{spec.dataset.name}' (reader "
                f"'{spec.dataset.reader}') has none; use data.pipeline=harness"
            )
        self._dali = _dali()
        self._spec, self._split, self._augmented = spec, split, draw.augmented
        self._crop_pixels = draw.crop_pixels
        self._steps = draw.steps(first_step)
        # Files and labels of the batches that DALI has begun.
        self._begun: Deque[Tuple[List[str], np.ndarray]] = deque()
        self._ready: Deque[Batch] = deque()
        self._pipeline: Any = None

    def start(self) -> None:
        size = self._spec.batch_per_replica
        self._pipeline = self._built(size, self._spec.data.prefetch, self._feed, self._training_graph)
        self._pipeline.schedule_run()  # the first call fills the whole prefetch queue

    def __next__(self) -> Batch:
        if self._pipeline is None:
            raise StopIteration
        with self._named_files():
            batch = self._ready.popleft() if self._ready else self._taken()
            self._pipeline.schedule_run()
        return batch

    def close(self) -> None:
        self._pipeline = None
        self._begun.clear()
        self._ready.clear()

    @property
    def prefetch(self) -> int:
        return self._spec.data.prefetch

    def settle(self) -> None:
        with self._named_files():
            while self._begun:
                self._ready.append(self._taken())

    def _taken(self) -> Batch:
        """Return the oldest batch that DALI has begun."""
        cuda = self._spec.cluster.device == "cuda"
        # On the training stream: DALI reuses the memory once the stream has passed this point.
        (images,) = self._pipeline.share_outputs(cuda_stream=torch.cuda.current_stream() if cuda else None)
        self._pipeline.release_outputs()
        _, labels = self._begun.popleft()
        return torch.from_dlpack(images.as_tensor()), torch.from_numpy(labels)

    def _feed(self) -> List[Any]:
        """Return the next batch's inputs; called by `schedule_run` in the same thread."""
        indices, bits = next(self._steps)
        files = self._split.files(indices)
        self._begun.append((files, self._split.targets(indices)))
        if bits is None:
            return [_encoded(files)]
        rows, columns, flipped = choices(bits, self._crop_pixels)
        corners = (np.stack([rows, columns], axis=1) - self._crop_pixels).astype(np.int32)
        return [_encoded(files), corners, flipped.astype(np.int32)]

    def _built(self, size: int, ahead: int, source: Source, graph: Callable[[Source], Any]) -> Any:
        cuda = self._spec.cluster.device == "cuda"
        pipeline = self._dali.Pipeline(
            batch_size=size,
            num_threads=self._spec.data.workers,
            device_id=0 if cuda else None,  # the launcher makes one GPU visible to each rank
            prefetch_queue_depth=ahead,
        )
        with pipeline:
            pipeline.set_outputs(graph(source))
        pipeline.build()
        return pipeline

    def _training_graph(self, source: Source) -> Any:
        """Return the graph that equals harness.worker.data.augment.augment, plus normalisation."""
        fn, types = self._dali.fn, self._dali.types
        data = self._spec.dataset
        paths, *augmentation = fn.external_source(source=source, num_outputs=3 if self._augmented else 1)
        images, flipped = self._resized(paths), 0
        if augmentation:
            corners, flipped = augmentation
            square = (data.image_size, data.image_size)
            images = fn.slice(
                images, start=corners, shape=square, axis_names="HW", out_of_bounds_policy="pad", fill_values=0
            )
        return fn.crop_mirror_normalize(
            images,
            mirror=flipped,
            mean=[255 * value for value in data.mean],
            std=[255 * value for value in data.std],
            # Autocast would round to the same fp16 values before the first layer.
            dtype=types.FLOAT16 if self._spec.precision == "fp16" else types.FLOAT,
            output_layout="HWC",
        )

    def _resized(self, paths: Any) -> Any:
        """Return the resized central square uint8 [H, W, C], as harness.worker.data.imagefolder does.

        Decodes only what the resize reads: the square and a margin as wide as the filter.
        """
        fn, types, math = self._dali.fn, self._dali.types, self._dali.math
        files = fn.io.file.read(paths, dont_use_mmap=True)  # a mapped file that shrinks would kill the process
        shape = fn.peek_image_shape(files, image_type=types.RGB, adjust_orientation=False)
        extent = fn.cast(shape[:2], dtype=types.FLOAT)
        side = fn.reductions.min(extent)
        begin = (extent - side) / 2
        # Support of the linear filter, plus one pixel for fractional positions.
        reach = math.ceil(math.max(side / self._spec.dataset.image_size, 1.0)) + 1.0
        first = math.max(math.floor(begin - reach), 0.0)
        last = math.min(math.ceil(begin + side + reach), extent)
        images = fn.decoders.image_slice(
            files,
            start=fn.cast(first, dtype=types.INT32),
            end=fn.cast(last, dtype=types.INT32),
            axes=[0, 1],
            device="mixed" if self._spec.cluster.device == "cuda" else "cpu",
            output_type=types.RGB,
            adjust_orientation=False,  # as Pillow
            jpeg_fancy_upsampling=True,  # as libjpeg-turbo, which Pillow uses
            affine=False,  # the launcher sets core affinity
        )
        size = [self._spec.dataset.image_size] * 2
        interpolation = {"interp_type": types.INTERP_LINEAR, "antialias": True}
        return fn.resize(images, size=size, roi_start=begin - first, roi_end=begin - first + side, **interpolation)

    @contextlib.contextmanager
    def _named_files(self) -> Iterator[None]:
        """Name the file that DALI could not decode, by decoding those of all begun batches one by one. If all succeed,
        the error had another cause."""
        try:
            yield
        except RuntimeError:
            for file in [file for files, _ in self._begun for file in files]:
                if not self._decodes(file):
                    raise DataError(
                        f"image {printable(file)} cannot be read or decoded by NVIDIA DALI {version()}; replace the "
                        "file, remove its entry, or use data.pipeline=harness"
                    ) from None
            raise

    def _decodes(self, file: str) -> bool:
        def graph(source: Source) -> Any:
            (paths,) = self._dali.fn.external_source(source=source, num_outputs=1)
            return self._resized(paths)

        try:
            self._built(1, 1, lambda: [_encoded([file])], graph).run()
        except RuntimeError:
            return False
        return True


def _encoded(files: Sequence[str]) -> List[np.ndarray]:
    return [np.frombuffer(os.fsencode(file), np.uint8) for file in files]


def _dali() -> Any:
    """Return the package. Raises DataError if it is missing or cannot be loaded."""
    try:
        from nvidia import dali
        from nvidia.dali import fn, types  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"data.pipeline=dali needs NVIDIA DALI, which this environment cannot load ({error}); build it with "
            f"`DALI=1 {builder('pytorch')}`, or install {PACKAGES[0]} there; or use data.pipeline=harness"
        ) from None
    return dali
