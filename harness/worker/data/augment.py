"""The augmentation of He et al. 2015, section 4.2: a random crop after padding, and a random horizontal flip. How far
the crops go, and what they are padded with, can be asked for otherwise."""

from __future__ import annotations

from typing import Tuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

PIXELS = 4
_SLAB_BYTES = 2**20


def augment(images: np.ndarray, bits: np.ndarray, pixels: int = PIXELS, reflect: bool = False) -> np.ndarray:
    """Images uint8 [n, H, W, C], each padded by so many pixels, cropped to H x W again, and perhaps flipped.

    bits: uint64 [n], random; the crop and the flip of an image depend on its own number alone. reflect: what is beyond
    an edge is what lies as far inside of it, and not zero (black).
    Returns a new C-contiguous array of the same shape.
    """
    out = np.empty_like(images, order="C")
    # A slab at a time, so that the scratch arrays stay in the processor's cache: twice as fast for large images.
    slab = max(1, _SLAB_BYTES * len(images) // max(1, images.nbytes))
    for start in range(0, len(images), slab):
        part = slice(start, start + slab)
        out[part] = _augment_slab(images[part], bits[part], pixels, reflect)
    return out


def crop_offsets(bits: np.ndarray, first_bit: int, pixels: int = PIXELS) -> np.ndarray:
    """Offsets 0..2 * pixels, int64 [n], from 20 bits of each number: of 9 uniform to within one part in 100,000."""
    twenty = (bits >> np.uint64(first_bit)) & np.uint64(0xFFFFF)
    return ((twenty * np.uint64(2 * pixels + 1)) >> np.uint64(20)).astype(np.int64)


def flips(bits: np.ndarray) -> np.ndarray:
    """Which images are flipped, bool [n]: the lowest bit."""
    return (bits & np.uint64(1)).astype(bool)


def choices(bits: np.ndarray, pixels: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, flipped) of the crop of each image: two of int64 [n], in 0..2 * pixels, and bool [n]."""
    return crop_offsets(bits, 1, pixels), crop_offsets(bits, 21, pixels), flips(bits)


def _augment_slab(images: np.ndarray, bits: np.ndarray, pixels: int, reflect: bool) -> np.ndarray:
    count, height, width, channels = images.shape
    if reflect:
        padded = np.pad(images, ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)), mode="reflect")
    else:
        padded = np.zeros((count, height + 2 * pixels, width + 2 * pixels, channels), dtype=np.uint8)
        padded[:, pixels : pixels + height, pixels : pixels + width] = images
    # All crops of all images as one view [n, offset y, offset x, row, bytes of a row]; indexing copies whole rows.
    per_image, per_row, per_pixel, _ = padded.strides
    crops = as_strided(
        padded,
        shape=(count, 2 * pixels + 1, 2 * pixels + 1, height, width * channels),
        strides=(per_image, per_row, per_pixel, per_row, 1),
        writeable=False,
    )
    rows, columns, flipped = choices(bits, pixels)
    out = crops[np.arange(count), rows, columns]
    # A pixel as one item of C bytes: reversing a row then moves pixels, twice as fast as moving bytes.
    whole = out.view(f"V{channels}")
    whole[flipped] = whole[flipped][:, :, ::-1]
    return out.reshape(images.shape)
