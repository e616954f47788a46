"""`python -m harness.shards dataset=<name>`: write a data set as shards for dataset.reader=shards.

The file format is described in harness/core/shards.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.console_script import Parser
from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.core.shards import Shard
    from harness.worker.data.splits import Split

SHARDS = 48  # divides evenly over 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks
PIECE_BYTES = 2**24
# Shuffle: samples of a class are often adjacent, and a reader's shuffle buffer is too small to mix them.
SEED = 0


def main(argv: Sequence[str] | None = None, program: str = "python -m harness.shards") -> int:
    """Return the exit code: 0 success, 1 a library is missing, 2 invalid request."""
    arguments = _arguments(argv, program)
    try:
        folder, parts = _make(arguments)
    except ModuleNotFoundError as error:
        print(f"missing: {sys.executable} has no {error.name}; `make login` builds .venv with it", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{folder}: {parts}; read them with dataset.reader=shards")
    return 0


def _arguments(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = Parser(
        prog=program,
        description="Write a data set as shards, in random order, for dataset.reader=shards.",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for python -m harness: dataset, data.root"
    )
    parser.add_argument(
        "--shards", type=int, default=SHARDS, metavar="N", help=f"number of training shards (default: {SHARDS})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: <data.root>/<name>-shards")
    parser.add_argument("--config-dir", metavar="DIR", help="folder with your own configuration files")
    return parser.parse_intermixed_args(argv)


def _make(arguments: argparse.Namespace) -> tuple[Path, str]:
    """Write the shards; return their folder and index. Raises UserError."""
    from harness.config import composition
    from harness.core.shards import Index, write_index
    from harness.plan import request
    from harness.worker.data.readers import open_dataset

    composition.register()
    [point, *others] = composition.compose(arguments.overrides, False, "config", arguments.config_dir)
    if others:
        raise UserError("a command writes the shards of one data set; name only one")
    spec, root = request.dataset(point), Path(point.data.root).expanduser()
    if spec.reader == "shards":
        raise UserError("dataset.reader=shards: the data set is in shards already; leave it out")
    folder = arguments.out or root / f"{spec.name}-shards"
    if folder.exists():
        raise UserError(f"{folder} is already there; remove it, or name another folder with --out")
    try:
        train, test = open_dataset(spec, str(root), point.seed)
        if not 0 < arguments.shards <= len(train):
            raise UserError(f"--shards {arguments.shards}: give a number from 1 to {len(train)}, the training samples")
        samples = -(-len(train) // arguments.shards)
        # Renamed when complete, so that an interrupted command leaves no partial data set.
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        index = Index(
            train.image_shape,
            spec.classes,
            _write(unfinished, "train", train, arguments.shards),
            _write(unfinished, "test", test, -(-len(test) // samples)),
        )
        write_index(unfinished, index)
        unfinished.rename(folder)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    of = f"{len(index.train)} training shards of at most {samples:,} samples, {len(index.test)} test shards"
    return folder, of


def _write(folder: Path, part: str, split: Split, shards: int) -> tuple[Shard, ...]:
    """Write a part's samples in random order, as shards whose sizes differ by at most one sample."""
    import numpy as np
    from numpy.lib.format import open_memmap

    from harness.core.shards import Shard
    from harness.worker.data.sharding import SampleOrder

    written = []
    most = max(1, PIECE_BYTES // int(np.prod(split.image_shape)))
    for number, chosen in enumerate(np.array_split(SampleOrder(len(split), SEED).epoch(0), shards)):
        shard = Shard(f"{part}-{number:05d}", len(chosen))
        samples = open_memmap(folder / shard.samples_file, "w+", np.uint8, (len(chosen), *split.image_shape))
        for start in range(0, len(chosen), most):
            samples[start : start + most] = split.images(chosen[start : start + most])
        samples.flush()
        np.save(folder / shard.labels_file, split.labels[chosen])
        written.append(shard)
    return tuple(written)
