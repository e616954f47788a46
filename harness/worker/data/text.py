"""Text as sequences of bytes, from files or synthetic.

A token is a byte. A sample is `context` tokens, each labelled with the next one. The last token of a sample is followed
by the first of the next sample, so that every byte but the first is predicted once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence, Tuple

import numpy as np

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.bits import SYNTHETIC_TEXT, random_bits
from harness.worker.data.splits import TextSplit

# One byte in this many, at the end, belongs to the test split.
_TEST_PART = 10
_FOLLOWERS, _TRAIN, _TEST = 0, 1, 2
# In 256: how often a synthetic token is random instead of following from the previous one.
_ANY = 64


def read(paths: Sequence[Path], spec: DatasetSpec) -> Tuple[TextSplit, TextSplit]:
    """Concatenate the files; the last tenth of all bytes is the test split. Raises DataError if either is shorter than
    one sample."""
    content = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    test = len(content) // _TEST_PART
    if test <= spec.context:
        raise DataError(
            f"data set '{spec.name}' has {len(content)} bytes in {paths[0].parent}; with dataset.context={spec.context}"
            f" it needs at least {_TEST_PART * (spec.context + 1)}, a tenth of which are for the test; add text, or "
            "use a smaller context"
        )
    return _sequences(content[:-test], spec.context), _sequences(content[-test:], spec.context)


def make(spec: DatasetSpec, seed: int) -> Tuple[TextSplit, TextSplit]:
    """Return `spec.train_samples` and `spec.test_samples` sequences, determined by spec and seed.

    A Markov chain, so that there is something to learn: with probability 3/4 a token is followed by its fixed
    successor, otherwise by any. Raises DataError if a number of samples is not positive.
    """
    for key, samples in (("train_samples", spec.train_samples), ("test_samples", spec.test_samples)):
        if samples < 1:
            raise DataError(f"synthetic data set '{spec.name}' has {key} = {samples}; set it to 1 or more")
    vocabulary = min(spec.classes, 256)
    followers = np.argsort(random_bits(vocabulary, SYNTHETIC_TEXT, seed, _FOLLOWERS), kind="stable").astype(np.uint8)
    return (
        _chains(spec, followers, seed, _TRAIN, spec.train_samples),
        _chains(spec, followers, seed, _TEST, spec.test_samples),
    )


def _sequences(content: np.ndarray, context: int) -> TextSplit:
    samples = (len(content) - 1) // context
    last = samples * context
    return TextSplit(content[:last].reshape(samples, context), content[1 : last + 1].reshape(samples, context))


def _chains(spec: DatasetSpec, followers: np.ndarray, seed: int, part: int, samples: int) -> TextSplit:
    length = spec.context + 1
    words = random_bits((2 * samples * length + 7) // 8, SYNTHETIC_TEXT, seed, part).astype("<u8", copy=False)
    numbers = words.view(np.uint8)[: 2 * samples * length].reshape(2, length, samples)
    follows, tokens = numbers[0] >= _ANY, (numbers[1] % np.uint16(len(followers))).astype(np.uint8)
    for at in range(1, length):
        tokens[at] = np.where(follows[at], followers[tokens[at - 1]], tokens[at])
    sequences = np.ascontiguousarray(tokens.T)
    return TextSplit(sequences[:, :-1], sequences[:, 1:])
