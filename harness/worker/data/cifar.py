"""CIFAR-10 as published, in both forms (https://www.cs.toronto.edu/~kriz/cifar.html).

Binary: records of 1 label byte and 3072 pixel bytes. Python: a pickled dict with `data`, uint8 [n, 3072], and
`labels`, a list. Pixels are stored as planes (channel, row, column). Each published file holds 10,000 images.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Sequence, Tuple

import numpy as np

from harness.core.errors import DataError
from harness.worker.data.safe_pickle import load_plain
from harness.worker.data.splits import ArraySplit

_PIXEL_BYTES = 3 * 32 * 32
_RECORD_BYTES = 1 + _PIXEL_BYTES


def read(train_files: Sequence[Path], test_file: Path) -> Tuple[ArraySplit, ArraySplit]:
    """Return both splits, images uint8 [n, 32, 32, 3]; .bin files are binary, others pickles. Raises DataError."""
    return _join([_read_file(path) for path in train_files]), _join([_read_file(test_file)])


def _join(parts: List[Tuple[np.ndarray, np.ndarray]]) -> ArraySplit:
    planes = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    return ArraySplit(planes.transpose(0, 2, 3, 1), np.concatenate([labels for _, labels in parts]))


def _read_file(path: Path) -> Tuple[np.ndarray, np.ndarray]:
    content = path.read_bytes()
    return _from_binary(path, content) if path.suffix == ".bin" else _from_pickle(path, content)


def _from_binary(path: Path, content: bytes) -> Tuple[np.ndarray, np.ndarray]:
    if not content or len(content) % _RECORD_BYTES:
        raise _refuse(path, content, f"its size is not a whole number of {_RECORD_BYTES}-byte records")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _from_pickle(path: Path, content: bytes) -> Tuple[np.ndarray, np.ndarray]:
    try:
        batch = load_plain(content)
    except ValueError as error:
        raise _refuse(path, content, str(error)) from None
    if not isinstance(batch, dict):
        raise _refuse(path, content, f"it holds a {type(batch).__name__}, not a dict")
    # Published files use byte strings as keys; files re-pickled by Python 3 use text.
    pixels = batch.get(b"data", batch.get("data"))
    labels = batch.get(b"labels", batch.get("labels"))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXEL_BYTES:
        raise _refuse(path, content, f"its 'data' is not an array of uint8 [n, {_PIXEL_BYTES}]")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise _refuse(path, content, "its 'labels' is not a list of small integers")
    if not labels or len(labels) != len(pixels):
        raise _refuse(path, content, f"it holds {len(pixels)} images and {len(labels)} labels")
    return pixels, np.array(labels, dtype=np.int64)


def _refuse(path: Path, content: bytes, reason: str) -> DataError:
    if path.suffix == ".bin":
        expected = f"n x {_RECORD_BYTES} bytes ({10000 * _RECORD_BYTES} as published)"
    else:
        expected = "a pickled dict with 'data' and 'labels' (about 31 million bytes as published)"
    return DataError(
        f"{path} is not a CIFAR-10 file: {reason}; it has {len(content)} bytes, expected is {expected}; "
        "unpack the archive from https://www.cs.toronto.edu/~kriz/cifar.html again"
    )
