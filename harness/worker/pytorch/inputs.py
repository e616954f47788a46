"""PyTorch's input pipelines: `DataLoader`, and all samples on the device; see dali.py for DALI."""

from __future__ import annotations

import ctypes
import functools
import itertools
import multiprocessing
import os
import signal
from collections import deque
from multiprocessing import connection
from typing import Deque, Iterator, List, Optional, Tuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from harness.core.errors import DataError
from harness.core.spec import DALI, DEVICE, FRAMEWORK, RunSpec
from harness.worker.data.augment import choices
from harness.worker.data.batches import Pipeline
from harness.worker.data.samples import Keys, Samples
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split
from harness.worker.pytorch.dali import DaliBatches

Batch = Tuple[torch.Tensor, torch.Tensor]

# Samples copied to the device at once.
PIECE = 4096
# Steps whose draws are copied at once: each copy costs host time, which limits small networks.
STEPS_AHEAD = 16
PR_SET_PDEATHSIG = 1


class LoaderBatches(Pipeline):
    """`DataLoader` over a map-style data set with its default collation.

    Workers are forked before the framework starts threads. They ignore the signals that tell a rank to save and stop,
    since it still needs batches, and Linux kills them when the rank dies.
    """

    def __init__(self, spec: RunSpec, split: Split, draw: Draw, first_step: int) -> None:
        workers = spec.data.workers
        loader = DataLoader(
            Samples(split, draw),
            batch_sampler=Keys(draw, first_step),
            num_workers=workers,
            prefetch_factor=spec.data.prefetch if workers else None,
            pin_memory=spec.data.pin and spec.cluster.device == "cuda",
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=functools.partial(_begin_worker, os.getpid()) if workers else None,
        )
        before = multiprocessing.active_children()
        # torch's handler would raise at an arbitrary point of the rank; `__next__` reports lost workers instead.
        handler = signal.getsignal(signal.SIGCHLD)
        # A single endless epoch keeps the workers alive.
        self._iterator: Optional[Iterator[List[torch.Tensor]]] = iter(loader)
        signal.signal(signal.SIGCHLD, handler)
        self._workers = [child for child in multiprocessing.active_children() if child not in before]

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        try:
            images, labels = next(self._iterator)
        except DataError as error:
            # Raised by a worker, with its traceback in the message.
            raise DataError(str(error).strip().splitlines()[-1].rpartition("DataError: ")[2]) from None
        except (RuntimeError, OSError, EOFError):
            # Torch reports that a worker died or its connection broke.
            ending = connection.wait([worker.sentinel for worker in self._workers], timeout=1)
            for worker in self._workers:
                if worker.sentinel in ending:  # it closes its files shortly before it exits
                    worker.join(timeout=1)
            gone = [f"{worker.pid} (exit code {worker.exitcode})" for worker in self._workers if not worker.is_alive()]
            if not gone:
                raise
            raise DataError(
                f"the input pipeline has lost a worker process: {', '.join(gone)}; if memory or /dev/shm ran out, "
                "use fewer data.workers or a smaller data.prefetch"
            ) from None
        return images, labels

    def close(self) -> None:
        self._iterator = None  # torch ends the workers with it, unless a pending exception holds a reference
        for worker in self._workers:
            worker.kill()
            worker.join()


class DeviceBatches(Pipeline):
    """All training samples on the device as bytes, cropped and flipped there; no workers, no copies."""

    def __init__(self, spec: RunSpec, split: Split, draw: Draw, first_step: int) -> None:
        self._split, self._draw, self._steps = split, draw, draw.steps(first_step)
        self._cuda = spec.cluster.device == "cuda"
        # Of the next steps, on the device: indices, and rows, columns and flips with augmentation.
        self._ahead: Deque[Tuple[torch.Tensor, ...]] = deque()
        self._open = True

    def start(self) -> None:
        # The launcher makes one GPU visible to each rank.
        self._device = torch.device("cuda", 0) if self._cuda else torch.device("cpu")
        self._images = torch.empty((len(self._split), *self._split.image_shape), dtype=torch.uint8, device=self._device)
        for start in range(0, len(self._split), PIECE):
            indices = np.arange(start, min(start + PIECE, len(self._split)))
            self._images[start : start + PIECE] = torch.from_numpy(self._split.images(indices)).to(self._device)
        self._labels = torch.from_numpy(self._split.targets(np.arange(len(self._split)))).to(self._device)

    def __next__(self) -> Batch:
        if not self._open:
            raise StopIteration
        if not self._ahead:
            self._draw_ahead()
        own, *crops = self._ahead.popleft()
        images, labels = self._images[own], self._labels[own]
        if crops:
            images = augmented(images, self._draw.crop_pixels, self._draw.crop_reflect, *crops)
        return images, labels

    def close(self) -> None:
        self._open = False

    def _draw_ahead(self) -> None:
        drawn = []
        for indices, bits in itertools.islice(self._steps, STEPS_AHEAD):
            drawn.append((indices, *(() if bits is None else choices(bits, self._draw.crop_pixels))))
        self._ahead.extend(zip(*(self._moved(np.stack(arrays)).unbind() for arrays in zip(*drawn))))

    def _moved(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self._cuda:
            tensor = tensor.pin_memory()  # from other memory, the copy would first wait for the step before
        return tensor.to(self._device, non_blocking=True)


def augmented(
    images: torch.Tensor,
    pixels: int,
    reflect: bool,
    rows: torch.Tensor,
    columns: torch.Tensor,
    flipped: torch.Tensor,
) -> torch.Tensor:
    """Do what harness.worker.data.augment.augment does to images uint8 [n, H, W, C], on any device."""
    count, height, width, _ = images.shape
    y = rows[:, None] + torch.arange(height, device=images.device)
    x = columns[:, None] + torch.arange(width, device=images.device)
    if reflect:  # torch cannot pad bytes by reflection
        y, x = _reflected(y - pixels, height - 1), _reflected(x - pixels, width - 1)
        padded = images
    else:
        padded = torch.nn.functional.pad(images, (0, 0, pixels, pixels, pixels, pixels))
    x = torch.where(flipped[:, None], x.flip(1), x)
    return padded[torch.arange(count, device=images.device)[:, None, None], y[:, :, None], x[:, None, :]]


def _reflected(at: torch.Tensor, last: int) -> torch.Tensor:
    """Reflect positions outside 0..last at the edges."""
    return last - (last - at.abs()).abs()


def _begin_worker(rank: int, _worker: int) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != rank:  # the rank died before prctl took effect
        os._exit(1)


PIPELINES = {FRAMEWORK: LoaderBatches, DEVICE: DeviceBatches, DALI: DaliBatches}
