"""Sharded data sets: the format, and which rank reads which shards. Standard library only: used on the login node too.

A folder with `index.json` and two .npy files per shard, in C order: `<name>.samples.npy`, uint8 [samples, height,
width, channels], and `<name>.labels.npy`, int64 [samples]. For text both are uint8 [samples, tokens]: the tokens, and
the token following each. `numpy.save` writes such files; `python -m harness.shards` converts every supported data set.

    {"v": 1, "sample_shape": [32, 32, 3], "classes": 10,
     "train": [{"name": "train-00000", "samples": 1042}, ...], "test": [{"name": "test-00000", "samples": 1000}, ...]}

Samples must be stored in random order: a reader shuffles shards and a bounded buffer of samples, never the whole set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import DataError

VERSION = 1
INDEX = "index.json"


@dataclass(frozen=True)
class Shard:
    """Two files, `<name>.samples.npy` and `<name>.labels.npy`, with `samples` samples."""

    name: str
    samples: int

    @property
    def samples_file(self) -> str:
        return f"{self.name}.samples.npy"

    @property
    def labels_file(self) -> str:
        return f"{self.name}.labels.npy"


@dataclass(frozen=True)
class Index:
    """Contents of index.json. sample_shape: (height, width, channels), or (tokens,) for text."""

    sample_shape: tuple[int, ...]
    classes: int
    train: tuple[Shard, ...]
    test: tuple[Shard, ...]


def read_index(folder: Path) -> Index:
    """Read a folder's index. Raises DataError."""
    path = folder / INDEX
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["v"] != VERSION:
            raise ValueError(f"version {document['v']!r}, this code reads version {VERSION}")
        shape, classes = tuple(map(_positive, document["sample_shape"])), _positive(document["classes"])
        if len(shape) not in (1, 3):
            raise ValueError(f"sample_shape {list(shape)} is neither [height, width, channels] nor [tokens]")
        return Index(shape, classes, *(_shards(document[part]) for part in ("train", "test")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path} is not the index of a data set in shards ({what}); make it with python -m harness.shards"
        ) from None


def write_index(folder: Path, index: Index) -> None:
    parts: dict[str, list[dict[str, Any]]] = {
        part: [{"name": shard.name, "samples": shard.samples} for shard in shards]
        for part, shards in (("train", index.train), ("test", index.test))
    }
    document = {"v": VERSION, "sample_shape": list(index.sample_shape), "classes": index.classes, **parts}
    (folder / INDEX).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def share(shards: tuple[Shard, ...], rank: int, world: int) -> tuple[Shard, ...]:
    """Shards read by `rank` of `world`, the same in every epoch: rank, rank + world, rank + 2 world, ...

    Raises DataError if there are fewer shards than ranks.
    """
    check_enough(len(shards), world)
    return shards[rank::world]


def check_enough(shards: int, world: int) -> None:
    """Raise DataError if there are fewer shards than replicas."""
    if shards < world:
        raise DataError(
            f"{shards} training shards are too few for {world} ranks that read different samples: each needs at "
            f"least one; create {world} or more with python -m harness.shards --shards, ideally a multiple of {world}"
        )


def unequal_shares(shards: tuple[Shard, ...], world: int) -> str:
    """Warn about uneven shares; empty if they differ only by rounding."""
    sizes = [sum(shard.samples for shard in share(shards, rank, world)) for rank in range(world)]
    fewest, most = min(sizes), max(sizes)
    if most <= 1.01 * fewest:
        return ""
    return (
        f"{len(shards)} training shards do not divide evenly between {world} ranks: their shares range from "
        f"{fewest:,} to {most:,} samples, and samples of small shares are seen up to {most / fewest:.2f} times as often"
    )


def _shards(entries: Any) -> tuple[Shard, ...]:
    shards = tuple(Shard(entry["name"], _positive(entry["samples"])) for entry in entries)
    if not shards:
        raise ValueError("a split has no shards")
    for shard in shards:
        if not isinstance(shard.name, str) or Path(shard.name).name != shard.name:
            raise ValueError(f"{shard.name!r} is not the name of a file in this folder")
    return shards


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a positive integer")
    return value
