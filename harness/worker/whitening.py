"""The kernel of a layer that whitens, made from the training images when the run begins."""

from __future__ import annotations

import numpy as np

from harness.core.spec import RunSpec
from harness.worker.adapter import Adapter
from harness.worker.data.splits import Split
from models import catalog, initial


def whiten(spec: RunSpec, train: Split, adapter: Adapter) -> None:
    """Gives it to the adapter, on every rank, where the network has such a layer: from the first images of the split,
    as they are. Raises DataError where they cannot be read."""
    data = spec.dataset
    for layer in catalog.network(spec.model).layers(data.channels, data.classes, data.size):
        if isinstance(layer, catalog.Whitening):
            images = train.images(np.arange(min(initial.WHITENING_IMAGES, len(train))))
            adapter.whiten(initial.whitening(layer, images, data.mean, data.std))
