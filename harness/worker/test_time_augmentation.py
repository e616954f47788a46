"""Test-time augmentation: average logits over views of an image (Jordan 2024, arXiv 2404.00498, section 3.5)."""

from __future__ import annotations

from typing import Callable, Iterator, Tuple

import numpy as np


def logits_of(network: Callable[[np.ndarray], np.ndarray], images: np.ndarray, views: int) -> np.ndarray:
    """Return float32 [n, classes] for uint8 [n, H, W, C]; `network` (images to logits) is called `views` times."""
    if views == 1:
        return network(images)
    parts = [np.float32(weight) * network(np.ascontiguousarray(view)) for weight, view in views_of(images, views)]
    return np.asarray(np.sum(parts, axis=0, dtype=np.float32))


def views_of(images: np.ndarray, views: int) -> Iterator[Tuple[float, np.ndarray]]:
    """Yield (weight, images) of each view; the weights sum to 1.

    views=2: the image and its mirror image. views=6: these two with half of the weight, and both shifted by one pixel
    up and left, and down and right, with reflected edges.
    """
    assert views in (2, 6), views
    seen = [images]
    if views == 6:
        height, width = images.shape[1:3]
        around = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
        seen += [around[:, 2:, 2:], around[:, :height, :width]]
    weights = [1.0] if views == 2 else [0.5, 0.25, 0.25]
    for weight, moved in zip(weights, seen):
        yield weight / 2, moved
        yield weight / 2, moved[:, :, ::-1]
