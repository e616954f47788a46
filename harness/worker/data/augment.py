"""The augmentation of He et al. 2015, section 4.2: a random crop after padding, and a random horizontal flip."""

from __future__ import annotations

from typing import Tuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

PAD = 4
_OFFSETS = 2 * PAD + 1
_SLAB_BYTES = 2**20


def augment(images: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Images uint8 [n, H, W, C], each padded by 4 zero (black) pixels, cropped to H x W again, and perhaps flipped.

    bits: uint64 [n], random; the crop and the flip of an image depend on its own number alone.
    Returns a new C-contiguous array of the same shape.
    """
    out = np.empty_like(images, order="C")
    # A slab at a time, so that the scratch arrays stay in the processor's cache: twice as fast for large images.
    slab = max(1, _SLAB_BYTES * len(images) // max(1, images.nbytes))
    for start in range(0, len(images), slab):
        part = slice(start, start + slab)
        out[part] = _augment_slab(images[part], bits[part])
    return out


def crop_offsets(bits: np.ndarray, first_bit: int) -> np.ndarray:
    """Offsets 0..8, int64 [n], from 20 bits of each number: uniform to within one part in 100,000."""
    twenty = (bits >> np.uint64(first_bit)) & np.uint64(0xFFFFF)
    return ((twenty * np.uint64(_OFFSETS)) >> np.uint64(20)).astype(np.int64)


def flips(bits: np.ndarray) -> np.ndarray:
    """Which images are flipped, bool [n]: the lowest bit."""
    return (bits & np.uint64(1)).astype(bool)


def choices(bits: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, flipped) of the crop of each image: two of int64 [n], in 0..8, and bool [n]."""
    return crop_offsets(bits, 1), crop_offsets(bits, 21), flips(bits)


def _augment_slab(images: np.ndarray, bits: np.ndarray) -> np.ndarray:
    count, height, width, channels = images.shape
    padded = np.zeros((count, height + 2 * PAD, width + 2 * PAD, channels), dtype=np.uint8)
    padded[:, PAD:-PAD, PAD:-PAD] = images
    # All crops of all images as one view [n, offset y, offset x, row, bytes of a row]; indexing copies whole rows.
    per_image, per_row, per_pixel, _ = padded.strides
    crops = as_strided(
        padded,
        shape=(count, _OFFSETS, _OFFSETS, height, width * channels),
        strides=(per_image, per_row, per_pixel, per_row, 1),
        writeable=False,
    )
    rows, columns, flipped = choices(bits)
    out = crops[np.arange(count), rows, columns]
    # A pixel as one item of C bytes: reversing a row then moves pixels, twice as fast as moving bytes.
    pixels = out.view(f"V{channels}")
    pixels[flipped] = pixels[flipped][:, :, ::-1]
    return out.reshape(images.shape)
