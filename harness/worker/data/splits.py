"""The interface of data sets: a `Split` holds labels in memory and reads images on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Tuple

import numpy as np


class Split(ABC):
    """The training or the test part of a data set.

    labels: int64 [n]. image_shape: (H, W, C), equal for all images. For text an "image" is a sequence of tokens, uint8
    [tokens], and its labels are the next token of each, [tokens].
    """

    labels: np.ndarray
    image_shape: Tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def images(self, indices: np.ndarray) -> np.ndarray:
        """Return the images at `indices` (int64 [k]) as a new C-contiguous array, uint8 [k, H, W, C].

        Raises DataError if an image cannot be read.
        """

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """Return the labels at `indices`, int64."""
        return self.labels[indices].astype(np.int64, copy=False)


class ArraySplit(Split):
    """A split in memory: images uint8 [n, H, W, C], labels int64 [n]."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        assert images.dtype == np.uint8, images.dtype
        assert images.ndim == 4, images.shape
        assert labels.shape == images.shape[:1], (labels.shape, images.shape)
        self._images = np.ascontiguousarray(images)
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.image_shape = (images.shape[1], images.shape[2], images.shape[3])

    def images(self, indices: np.ndarray) -> np.ndarray:
        return self._images[indices]


class TextSplit(Split):
    """Sequences in memory: tokens uint8 [n, context]; `labels` has the next token of each, uint8 [n, context]."""

    def __init__(self, tokens: np.ndarray, following: np.ndarray) -> None:
        assert tokens.dtype == following.dtype == np.uint8, (tokens.dtype, following.dtype)
        assert tokens.shape == following.shape, (tokens.shape, following.shape)
        self._tokens, self.labels = tokens, following
        self.image_shape = tokens.shape[1:]

    def images(self, indices: np.ndarray) -> np.ndarray:
        return self._tokens[indices]
