"""IDX files, the format of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist/), plain or gzipped.

A big-endian header (magic number 0x00000800 + number of dimensions for unsigned bytes, then each dimension as uint32),
followed by the values in C order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from harness.core.errors import DataError
from harness.worker.data.splits import ArraySplit

_UNSIGNED_BYTES = 0x00000800


def read(images_file: Path, labels_file: Path) -> ArraySplit:
    """Return one split, images uint8 [n, H, W, 1]. Raises DataError if a file is not IDX or the two do not match."""
    images, labels = read_file(images_file, 3), read_file(labels_file, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_file} holds {len(images)} images but {labels_file} holds {len(labels)} labels; "
            "use both from the same download"
        )
    return ArraySplit(images[..., np.newaxis], labels.astype(np.int64))


def read_file(path: Path, dimensions: int) -> np.ndarray:
    """Return a file's values as a read-only uint8 array with the given number of dimensions. Raises DataError."""
    content = _content(path)
    header_bytes = 4 + 4 * dimensions
    magic = _UNSIGNED_BYTES + dimensions
    if len(content) < header_bytes:
        raise _refuse(path, f"{len(content)} bytes are fewer than its header of {header_bytes}")
    found, *shape = struct.unpack(f">{1 + dimensions}I", content[:header_bytes])
    if found != magic:
        raise _refuse(path, f"its magic number is 0x{found:08x}, expected is 0x{magic:08x}")
    expected = header_bytes + math.prod(shape)
    if len(content) != expected:
        said = " x ".join(str(length) for length in shape)
        raise _refuse(path, f"its header says {said} values, which makes {expected} bytes, but it has {len(content)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error, struct.error) as error:
        raise _refuse(path, f"its {len(content)} bytes are not a whole gzip file ({error})") from None


def _refuse(path: Path, reason: str) -> DataError:
    return DataError(f"{path} is not a valid IDX file: {reason}; download it again")
