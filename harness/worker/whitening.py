"""Compute the kernel of the whitening layer from training images at the start of a run."""

from __future__ import annotations

import numpy as np

from harness.core.spec import RunSpec
from harness.worker.adapter import Adapter
from harness.worker.data.splits import Split
from models import catalog, initial


def whiten(spec: RunSpec, train: Split, adapter: Adapter) -> None:
    """Give the kernel, computed from the split's first images, to the adapter if the network has a whitening layer.

    Raises DataError if the images cannot be read.
    """
    data = spec.dataset
    for layer in catalog.network(spec.model).layers(data.channels, data.classes, data.size):
        if isinstance(layer, catalog.Whitening):
            images = train.images(np.arange(min(initial.WHITENING_IMAGES, len(train))))
            adapter.whiten(initial.whitening(layer, images, data.mean, data.std))
