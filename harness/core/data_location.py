"""Locates data sets on this machine. Standard library only: also called on the login node before submitting."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import DataError
from harness.core.shards import INDEX

__all__ = ["DataError", "files_in", "locate"]

# A layout lists what a folder must contain; each entry is a tuple of alternative names.
Layout = tuple[tuple[str, ...], ...]

SYNTHETIC, TEXT, SHARDS, IMAGE_FOLDER = "synthetic", "text", "shards", "imagefolder"


def locate(spec_name: str, reader: str, root: str | None) -> Path | None:
    """Find the folder that contains all files of a data set.

    Args:
        spec_name: name of the data set.
        reader: name of its reader.
        root: `data.root`: the data set's folder or a parent of it; None if not set.

    Returns:
        None for the synthetic reader, which needs no files.

    Raises:
        DataError: says where it should be, or what is missing there, and how to get the data set.
    """
    if reader == SYNTHETIC:
        return None
    if reader not in _LAYOUTS:
        valid = ", ".join([*_LAYOUTS, SYNTHETIC])
        raise DataError(f"data set '{spec_name}' asks for reader '{reader}'; valid readers: {valid}")
    candidates = _candidates(spec_name, reader, root)
    for folder in candidates:
        if files_in(reader, folder) is not None:
            return folder
    raise DataError(
        f"data set '{spec_name}' was not found: {_why_not(spec_name, reader, root, candidates)}. "
        f"To get it: {_how_to_get(spec_name, reader, root)}; {_what_is_here(root)}"
    )


def files_in(reader: str, folder: Path) -> tuple[str, ...] | None:
    """The files of the first complete layout, relative to `folder` and in layout order; None if there is none."""
    if reader == TEXT:
        # Any number of files with any name.
        return tuple(sorted(name for name in _listed(folder) if name.endswith(".txt"))) or None
    for layout in _LAYOUTS[reader]:
        names = [_present(folder, entry) for entry in layout]
        if all(names):
            return tuple(name for name in names if name)
    return None


_CIFAR_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (tuple((f"{name}.bin",) for name in _CIFAR_BATCHES), tuple((name,) for name in _CIFAR_BATCHES)),
    "idx": (tuple((name, f"{name}.gz") for name in _IDX_FILES),),
    IMAGE_FOLDER: (
        (("TrainImages.txt",), ("TestImages.txt",), ("Images", "indoorCVPR_09/Images")),
        (("train",), ("test", "val")),
    ),
    TEXT: (),
    SHARDS: (((INDEX,),),),
}

# Folder names inside the published archives.
_PUBLISHED_FOLDERS: dict[str, tuple[str, ...]] = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "fashion_mnist": ("fashion-mnist",),
    "indoor67": ("indoorCVPR_09",),
}

_SYSTEM_FOLDERS: dict[str, str] = {"fashion_mnist": "/usr/share/datasets/fashion-mnist"}

_HOW_TO_GET: dict[str, str] = {
    "cifar10": "or unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz from "
    "https://www.cs.toronto.edu/~kriz/cifar.html under data.root",
    "fashion_mnist": "or apt-get install dataset-fashion-mnist",
    "indoor67": "or put the images and both lists of https://web.mit.edu/torralba/www/indoor.html, Images/, "
    "TrainImages.txt and TestImages.txt, into one folder under data.root",
}

_WHAT_IS_NEEDED: dict[str, str] = {
    "cifar10": "put data_batch_1.bin to data_batch_5.bin and test_batch.bin (or the Python version's files)",
    "idx": "put " + ", ".join(_IDX_FILES) + " (each plain or .gz)",
    IMAGE_FOLDER: "put train/<class>/ and test/<class>/ (or val/<class>/), "
    "or Images/<class>/ with TrainImages.txt and TestImages.txt,",
    TEXT: "put any text as files *.txt",
}


def _candidates(spec_name: str, reader: str, root: str | None) -> list[Path]:
    folders = []
    if root is not None:
        base = Path(os.path.expanduser(root))
        if reader == SHARDS:
            return [base / f"{spec_name}-shards", base / spec_name, base]
        published = _PUBLISHED_FOLDERS.get(spec_name, ())
        folders.append(base / spec_name)
        folders.extend(base / spec_name / name for name in published)
        folders.extend(base / name for name in published)
        folders.append(base)
    if spec_name in _SYSTEM_FOLDERS and reader != SHARDS:
        folders.append(Path(_SYSTEM_FOLDERS[spec_name]))
    return folders


def _present(folder: Path, entry: tuple[str, ...]) -> str | None:
    # os.path.exists is False for an inaccessible folder; Path.exists raises.
    return next((name for name in entry if os.path.exists(folder / name)), None)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _why_not(spec_name: str, reader: str, root: str | None, candidates: Sequence[Path]) -> str:
    """Name the folders that hold a part of the data set; without any, those where it should be."""
    begun = [f"{folder}: {wrong}" for folder in candidates if (wrong := _what_is_wrong(reader, folder))]
    if begun:
        return "; ".join(begun)
    unset = ["data.root is not set"] if root is None else []
    system = [_SYSTEM_FOLDERS[spec_name]] if spec_name in _SYSTEM_FOLDERS and reader != SHARDS else []
    expected = [str(folder) for folder in candidates[:1] if root is not None] + system
    return ", ".join(unset + [f"nothing in {' or '.join(expected)}"] * bool(expected))


def _what_is_wrong(reader: str, folder: Path) -> str | None:
    """Return what keeps a folder from being the data set; None if it has nothing of it."""
    if not os.path.isdir(folder):
        return None
    if not os.access(folder, os.R_OK | os.X_OK):
        return "no permission to read"
    begun: list[list[str]] = []
    for layout in _LAYOUTS[reader]:
        missing = [" or ".join(entry) for entry in layout if _present(folder, entry) is None]
        if len(missing) < len(layout):
            begun.append(missing)
    if not begun:
        return None
    fewest = min(begun, key=len)
    return "missing " + ", ".join(fewest)


def _how_to_get(spec_name: str, reader: str, root: str | None) -> str:
    if reader == SHARDS:
        return f"make shards of it with python -m harness.shards dataset={spec_name}"
    if spec_name in _HOW_TO_GET:
        into = "" if root is None else f" --root {shlex.quote(root)}"
        return f"`python -m harness.data {spec_name}{into}` downloads it, {_HOW_TO_GET[spec_name]}"
    return f"{_WHAT_IS_NEEDED[reader]} into the folder {spec_name} under data.root"


def _what_is_here(root: str | None) -> str:
    """Name data sets that could be taken instead."""
    own = None if root is None else Path(os.path.expanduser(root))  # files in it may be of any data set
    readers = {"cifar10": "cifar10", "fashion_mnist": "idx", "indoor67": IMAGE_FOLDER}
    here = [
        f"dataset={name}"
        for name, reader in readers.items()
        if any(folder != own and files_in(reader, folder) for folder in _candidates(name, reader, root))
    ]
    return f"here already: {', '.join(here)}; " * bool(here) + "dataset=synthetic needs no files"
