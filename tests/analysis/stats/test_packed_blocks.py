"""Packing a run's blocks into one text, and unpacking them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from analysis.base.values import LARGEST_COUNT, LONGEST_SECONDS
from analysis.read.log.packed import Blocks, packed, unpacked
from analysis.read.log.values import MEASURE, Block

COUNTS = st.integers(0, LARGEST_COUNT)
BLOCKS = st.builds(Block, st.just(MEASURE), COUNTS, COUNTS, st.floats(0, LONGEST_SECONDS), COUNTS)


@given(st.lists(BLOCKS, max_size=8))
def test_unpacking_is_exact(blocks: list[Block]) -> None:
    each = [(block.step, block.n, block.seconds, block.samples) for block in blocks]
    columns = Blocks(*map(list, zip(*each, strict=True))) if each else Blocks([], [], [], [])
    text = packed(blocks)
    assert text.isascii()
    assert unpacked(text) == columns


def test_a_run_of_even_blocks_takes_little_more_than_its_seconds() -> None:
    blocks = [Block(MEASURE, 10 + 10 * i, 10, 0.1 + i / 3, 1280) for i in range(400)]
    assert len(packed(blocks)) < 400 * 8 * 4 / 3 + 150
    assert json.loads(packed(blocks))["step"] == {"from": 10, "by": 10}
    assert unpacked(packed(blocks)).step[-1] == 4000


def test_a_run_without_measured_blocks_has_none() -> None:
    assert unpacked(None) == unpacked(packed([])) == Blocks([], [], [], [])
