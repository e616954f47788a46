"""Open a data set and verify that its contents match its specification."""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from harness.core.data_location import files_in, locate
from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data import cifar, idx, imagefolder, stream, synthetic, text
from harness.worker.data.splits import Split


def open_dataset(spec: DatasetSpec, root: Optional[str], seed: int = 0) -> Tuple[Split, Split]:
    """Return the training and the test split.

    root: the configuration's `data.root`. seed: of synthetic samples. Raises DataError if the data set is missing,
    incomplete, unreadable or does not match `spec`.
    """
    train, test = _read(spec, root, seed)
    _verify(spec, "training", train)
    _verify(spec, "test", test)
    return train, test


def _read(spec: DatasetSpec, root: Optional[str], seed: int) -> Tuple[Split, Split]:
    folder = locate(spec.name, spec.reader, root)
    if folder is None:
        return text.make(spec, seed) if spec.context else synthetic.make(spec, seed)
    names = files_in(spec.reader, folder)
    if names is None:
        raise DataError(f"files of data set '{spec.name}' vanished from {folder} while it was opened; put them back")
    paths = [folder / name for name in names]
    if spec.reader == "cifar10":
        return cifar.read(paths[:5], paths[5])
    if spec.reader == "shards":
        return stream.open_shards(folder)
    if spec.reader == "idx":
        return idx.read(paths[0], paths[1]), idx.read(paths[2], paths[3])
    if spec.reader == "text":
        return text.read(paths, spec)
    if len(paths) == 3:
        return imagefolder.open_listed(paths[0], paths[1], paths[2], spec)
    return imagefolder.open_folders(paths[0], paths[1], spec)


def _verify(spec: DatasetSpec, which: str, split: Split) -> None:
    said = spec.sample_shape
    if len(split) == 0:
        raise DataError(f"the {which} split of data set '{spec.name}' is empty; it needs at least one sample")
    if split.image_shape != said:
        raise DataError(
            f"the {which} images of data set '{spec.name}' are {_shape(split.image_shape)} (height x width x "
            f"channels), but the configuration says {_shape(said)}; correct image_size or channels in "
            f"conf/dataset/{spec.name}.yaml"
        )
    if isinstance(split, stream.ShardedSplit):
        if split.classes != spec.classes:
            raise DataError(
                f"{split.folder} has shards of {split.classes} classes, but the configuration of data set "
                f"'{spec.name}' says {spec.classes}; correct classes in conf/dataset/{spec.name}.yaml or the data"
            )
        return  # labels are checked as they are read: those of all shards may not fit in memory
    low, high = int(np.min(split.labels)), int(np.max(split.labels))
    if low < 0 or high >= spec.classes:
        raise DataError(
            f"the {which} labels of data set '{spec.name}' run from {low} to {high}, but {spec.classes} classes "
            f"have labels 0 to {spec.classes - 1}; correct classes in conf/dataset/{spec.name}.yaml or the data"
        )


def _shape(shape: Tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
