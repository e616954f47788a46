"""Logits of a test image from several views of it: their weighted mean (Jordan 2024, arXiv 2404.00498, section 3.5)."""

from __future__ import annotations

from typing import Callable, Iterator, Tuple

import numpy as np


def logits_of(network: Callable[[np.ndarray], np.ndarray], images: np.ndarray, views: int) -> np.ndarray:
    """float32 [n, classes] of images uint8 [n, H, W, C]; network: images -> logits, called `views` times."""
    if views == 1:
        return network(images)
    parts = [np.float32(weight) * network(np.ascontiguousarray(view)) for weight, view in views_of(images, views)]
    return np.asarray(np.sum(parts, axis=0, dtype=np.float32))


def views_of(images: np.ndarray, views: int) -> Iterator[Tuple[float, np.ndarray]]:
    """(weight, images) of each view, the weights in all 1. 2: each image, and its mirror image. 6: half of the weight
    is that of these two, the other half that of both moved up and left by a pixel, and down and right, where what comes
    in at the edge is what lies as far inside of it."""
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
