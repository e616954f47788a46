"""Images in class folders, decoded on demand with Pillow.

Two layouts: MIT Indoor 67 as published (Images/<class>/<file>, with lists of one `class/file` per line), and
train/<class>/, test/<class>/. Classes are numbered in the order of their sorted names.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.splits import Split

_SUFFIXES = (".jpg", ".jpeg", ".png")
_MOST_THREADS = 8


class ImageFolderSplit(Split):
    """Labelled image files; converted to RGB, resized by the short side to `image_size`, and centre-cropped."""

    def __init__(self, files: Sequence[str], labels: Sequence[int], image_size: int) -> None:
        assert len(files) == len(labels), (len(files), len(labels))
        self._files = list(files)
        self.labels = np.array(labels, dtype=np.int64)
        self.image_shape = (image_size, image_size, 3)
        self._pool: Optional[ThreadPoolExecutor] = None

    def files(self, indices: np.ndarray) -> List[str]:
        """Return the paths of the images at `indices` (int64 [k]), for other decoders."""
        return [self._files[index] for index in indices]

    def images(self, indices: np.ndarray) -> np.ndarray:
        image_module = _pillow()
        if self._pool is None:  # created on first use, since threads do not survive a fork
            self._pool = ThreadPoolExecutor(min(_MOST_THREADS, _usable_cores()), thread_name_prefix="decode")
        out = np.empty((len(indices), *self.image_shape), dtype=np.uint8)

        def decode(place: int) -> None:
            out[place] = _decode(image_module, self._files[indices[place]], self.image_shape[0])

        for _ in self._pool.map(decode, range(len(indices))):
            pass
        return out


def open_listed(train_list: Path, test_list: Path, images: Path, spec: DatasetSpec) -> Tuple[Split, Split]:
    """Return both splits of the layout with lists.

    Raises DataError if a list is malformed or names missing files, or the number of classes differs from the spec's.
    """
    listed = {path: _read_list(path) for path in (train_list, test_list)}
    classes = {name for entries in listed.values() for name, _ in entries}
    present = {name: _names_in(images / name) for name in classes}
    for path, entries in listed.items():
        absent = [f"{name}/{file}" for name, file in entries if file not in present[name]]
        if absent:
            raise DataError(
                f"{path} lists {len(entries)} images, of which {len(absent)} are absent under {images}: "
                f"{_first_names(absent)}; unpack the images again"
            )
    label_of = _label_of(classes, train_list, spec)
    train, test = (_open_entries(images, entries, label_of, spec.image_size) for entries in listed.values())
    return train, test


def open_folders(train: Path, test: Path, spec: DatasetSpec) -> Tuple[Split, Split]:
    """Return both splits of the layout train/<class>/, test/<class>/.

    Raises DataError if test has a class that train lacks, or the number of classes differs from the spec's.
    """
    label_of = _label_of(set(_class_folders(train)), train, spec)
    unknown = [name for name in _class_folders(test) if name not in label_of]
    if unknown:
        raise DataError(
            f"{test} has {len(unknown)} class folders that {train} lacks: {_first_names(unknown)}; "
            "both need the same class names"
        )
    return _open_folder(train, label_of, spec.image_size), _open_folder(test, label_of, spec.image_size)


def _label_of(classes: Set[str], where: Path, spec: DatasetSpec) -> Dict[str, int]:
    if len(classes) != spec.classes:
        raise DataError(
            f"{where} has {len(classes)} classes but the configuration of data set '{spec.name}' says {spec.classes}; "
            f"correct classes in conf/dataset/{spec.name}.yaml or the data"
        )
    return {name: label for label, name in enumerate(sorted(classes))}


def _open_entries(
    images: Path, entries: List[Tuple[str, str]], label_of: Dict[str, int], image_size: int
) -> ImageFolderSplit:
    files = [os.path.join(str(images), name, file) for name, file in entries]
    return ImageFolderSplit(files, [label_of[name] for name, _ in entries], image_size)


def _open_folder(folder: Path, label_of: Dict[str, int], image_size: int) -> ImageFolderSplit:
    files: List[str] = []
    labels: List[int] = []
    for name, label in label_of.items():
        found = sorted(file for file in _names_in(folder / name) if file.lower().endswith(_SUFFIXES))
        files.extend(os.path.join(str(folder), name, file) for file in found)
        labels.extend([label] * len(found))
    if not files:
        raise DataError(f"{folder} has no image files; expected are {', '.join(_SUFFIXES)} files in a folder per class")
    return ImageFolderSplit(files, labels, image_size)


def _read_list(path: Path) -> List[Tuple[str, str]]:
    entries = []
    # File names are bytes; surrogateescape preserves them.
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, slash, file = line.strip().partition("/")
        if not slash or not file or "/" in file or name in ("", ".", ".."):
            raise DataError(
                f"{path} line {number}: {line.strip()!r} is not of the form class/file.jpg; correct the line"
            )
        entries.append((name, file))
    if not entries:
        raise DataError(f"{path} lists no images; expected is one class/file.jpg per line")
    return entries


def _class_folders(folder: Path) -> List[str]:
    return sorted(name for name in _names_in(folder) if name[0] != "." and os.path.isdir(folder / name))


def _names_in(folder: Path) -> Set[str]:
    # On a shared file system, one listing per class is far faster than one query per file.
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def printable(name: str) -> str:
    """Return a file name for a message, with bytes that are not UTF-8 escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:3])) + (", ..." if len(names) > 3 else "")


def _decode(image_module: Any, file: str, size: int) -> np.ndarray:
    try:
        with image_module.open(file) as image:
            # JPEG can decode at 1/2, 1/4 or 1/8; twice the target size keeps the resize accurate.
            image.draft("RGB", (2 * size, 2 * size))
            width, height = image.size
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            square = image.convert("RGB").resize(
                (size, size), image_module.BILINEAR, box=(left, top, left + side, top + side)
            )
            return np.asarray(square)
    except Exception as error:  # on broken files Pillow's plug-ins raise many kinds of exceptions
        name = printable(file)
        raise DataError(
            f"image {name} cannot be decoded ({type(error).__name__}: {error}); replace the file or remove its entry"
        ) from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading image folders needs Pillow; install it in this framework's environment") from None
    return Image


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
