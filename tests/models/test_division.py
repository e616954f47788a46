"""Division of a network between ranks."""

from __future__ import annotations

import itertools

import pytest

from models import catalog, division


def layers_of(name: str) -> tuple[catalog.Layers, int]:
    size = 16 if catalog.network(name).inputs == catalog.TEXT else 32
    return catalog.network(name).layers(3, 10, size), size


@pytest.mark.parametrize("name", ["cnn_small", "resnet20", "gpt_tiny"])
def test_stages_are_all_of_the_network_and_no_other_cut_has_a_smaller_largest_one(name: str) -> None:
    layers, size = layers_of(name)

    def largest(cuts: tuple[int, ...]) -> int:
        """Return the FLOPs of the largest stage. cuts: where stages begin."""
        until = [catalog.forward_flops(layers[:at], size) for at in (*cuts, len(layers))]
        return max(after - before for before, after in itertools.pairwise(until))

    for count in range(1, min(4, division.most_stages(layers, size)) + 1):
        found = division.stages(layers, size, count)
        assert [at for stage in found for at in range(*stage)] == list(range(len(layers)))
        assert len(found) == count
        every = ((0, *cuts) for cuts in itertools.combinations(range(1, len(layers)), count - 1))
        assert largest(tuple(begin for begin, _ in found)) == min(map(largest, every))


def test_stage_does_not_begin_with_what_has_no_work() -> None:
    layers, size = layers_of("cnn_small")
    begins = [layers[begin] for begin, _ in division.stages(layers, size, division.most_stages(layers, size))]
    assert all(isinstance(layer, (catalog.Convolution, catalog.Linear)) for layer in begins)
    with pytest.raises(ValueError, match="into 1 to 7 stages, not into 8"):
        division.stages(layers, size, 8)


def test_layers_are_divided_in_pairs_with_only_channelwise_layers_between() -> None:
    layers, _ = layers_of("cnn_small")
    assert division.units(layers) == [16, 64, 128]  # of the first, third and fifth of six layers, not the last
    last = catalog.parameters(layers[-1:])
    biases = 32 + 128 + 128  # of the second layer of each pair
    assert division.divided_parameters(layers) == catalog.parameters(layers) - last - biases
    assert division.units(layers_of("resnet20")[0]) == []
    text, _ = layers_of("gpt_tiny")
    assert division.units(text) == [4, 4]
    block = next(layer for layer in text if isinstance(layer, catalog.TransformerBlock))
    # Its norms, and the biases of project and contract, are not divided.
    assert division.divided_parameters((block,)) == catalog.parameters((block,)) - (4 + 2) * block.width
