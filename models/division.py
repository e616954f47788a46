"""How a network is divided over ranks that have one copy of it between them: arithmetic on the catalogue's rows.

Standard library only, no syntax newer than Python 3.8.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from models import catalog

# What they give for one channel, or one unit, comes from that channel alone.
CHANNEL_WISE = (catalog.ReLU, catalog.MaxPool, catalog.GlobalAveragePool, catalog.Flatten)


def stages(layers: catalog.Layers, size: int, count: int) -> List[Tuple[int, int]]:
    """(first layer, layer after the last) of each stage of a pipeline, cut so that the stage with the most forward
    FLOPs has as few as there can be. size: pixels of an image's side, or tokens of a sequence.

    Raises ValueError where the network cannot be cut into `count` stages.
    """
    pieces = _pieces(layers, size)
    if not 1 <= count <= len(pieces):
        raise ValueError(f"the network can be cut into 1 to {len(pieces)} stages, not into {count}")
    sums = [0]
    for _, flops in pieces:
        sums.append(sums[-1] + flops)
    # Of the first n pieces in so many stages: the FLOPs of the largest, and the pieces at which they begin.
    best: Dict[int, Tuple[int, Tuple[int, ...]]] = {n: (sums[n], (0,)) for n in range(1, len(pieces) + 1)}
    for made in range(2, count + 1):
        best = {
            n: min((max(best[m][0], sums[n] - sums[m]), (*best[m][1], m)) for m in range(made - 1, n))
            for n in range(made, len(pieces) + 1)
        }
    starts = [pieces[piece][0] for piece in best[len(pieces)][1]]
    return list(zip(starts, [*starts[1:], len(layers)]))


def most_stages(layers: catalog.Layers, size: int) -> int:
    """Of how many stages a pipeline can be at most."""
    return len(_pieces(layers, size))


def _pieces(layers: catalog.Layers, size: int) -> List[Tuple[int, int]]:
    """(first layer, forward FLOPs) of what is not to be cut: a convolution, a fully connected layer or a block, with
    what has no FLOPs behind it. An in-place ReLU cannot begin a stage, and behind a pooling layer less is sent."""
    until = [catalog.forward_flops(layers[:end], size) for end in range(len(layers) + 1)]
    pieces = [(at, until[at + 1] - until[at]) for at in range(len(layers)) if until[at + 1] > until[at]]
    return [(0 if number == 0 else at, flops) for number, (at, flops) in enumerate(pieces)]


def pairs(layers: catalog.Layers) -> List[Tuple[int, int]]:
    """The convolutions and fully connected layers that a tensor-parallel network divides, two by two, as places in
    `layers`: the outputs of the first over the ranks, and the inputs of the second as these come (Shoeybi et al. 2019,
    Megatron-LM, arXiv 1909.08053, section 3). Between them each channel is by itself."""
    found: List[Tuple[int, int]] = []
    first = None
    for at, layer in enumerate(layers):
        if isinstance(layer, (catalog.Convolution, catalog.Linear)):
            if first is not None:
                found.append((first, at))
            first = at if first is None else None
        elif not isinstance(layer, CHANNEL_WISE):
            first = None
    return found


def units(layers: catalog.Layers) -> List[int]:
    """Of what is divided over the ranks, how much there is in each part of the network: channels, units, heads. The
    degree of tensor parallelism must divide all of them. Empty where nothing can be divided."""
    found = [layer.heads for layer in layers if isinstance(layer, catalog.TransformerBlock)]
    for first, _ in pairs(layers):
        layer = layers[first]
        assert isinstance(layer, (catalog.Convolution, catalog.Linear))
        found.append(layer.outputs)
    return found


def divided_parameters(layers: catalog.Layers) -> int:
    """Of how many parameters each rank has a share only; of the others, all. Not divided: the bias of the second layer
    of a pair, which is added to the sum over the ranks, and what is in no pair. A block of a transformer is two pairs:
    query, key and value with project, expand with contract."""
    count = 0
    for first, second in pairs(layers):
        last = layers[second]
        assert isinstance(last, (catalog.Convolution, catalog.Linear))
        bias = last.outputs if isinstance(last, catalog.Linear) or last.bias else 0
        count += catalog.parameters((layers[first], last)) - bias
    blocks = [layer for layer in layers if isinstance(layer, catalog.TransformerBlock)]
    return count + sum(12 * block.width**2 + (3 + 4) * block.width for block in blocks)
