"""Splits a network between ranks that share one copy of it, using the catalogue's rows.

Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from models import catalog

# Each output channel or unit depends only on the same input channel.
CHANNEL_WISE = (catalog.ReLU, catalog.MaxPool, catalog.GlobalAveragePool, catalog.Flatten)


def stages(layers: catalog.Layers, size: int, count: int) -> List[Tuple[int, int]]:
    """Cut a network into pipeline stages so that the largest stage has as few forward FLOPs as possible.

    Args:
        layers: the network.
        size: pixels per side of an image, or tokens of a sequence.
        count: number of stages.

    Returns:
        (first layer, layer after the last) of each stage.

    Raises:
        ValueError: the network cannot be cut into `count` stages.
    """
    pieces = _pieces(layers, size)
    if not 1 <= count <= len(pieces):
        raise ValueError(f"the network can be cut into 1 to {len(pieces)} stages, not into {count}")
    sums = [0]
    for _, flops in pieces:
        sums.append(sums[-1] + flops)
    # best[n]: for the first n pieces cut into so many stages, the FLOPs of the largest stage and where the stages
    # begin.
    best: Dict[int, Tuple[int, Tuple[int, ...]]] = {n: (sums[n], (0,)) for n in range(1, len(pieces) + 1)}
    for made in range(2, count + 1):
        best = {
            n: min((max(best[m][0], sums[n] - sums[m]), (*best[m][1], m)) for m in range(made - 1, n))
            for n in range(made, len(pieces) + 1)
        }
    starts = [pieces[piece][0] for piece in best[len(pieces)][1]]
    return list(zip(starts, [*starts[1:], len(layers)]))


def most_stages(layers: catalog.Layers, size: int) -> int:
    """The maximum number of pipeline stages."""
    return len(_pieces(layers, size))


def _pieces(layers: catalog.Layers, size: int) -> List[Tuple[int, int]]:
    """Split a network into indivisible pieces, returned as (first layer, forward FLOPs).

    A piece is a convolution, a fully connected layer or a block, together with the FLOP-free layers behind it: an
    in-place ReLU cannot begin a stage, and after a pooling layer there is less to send.
    """
    until = [catalog.forward_flops(layers[:end], size) for end in range(len(layers) + 1)]
    pieces = [(at, until[at + 1] - until[at]) for at in range(len(layers)) if until[at + 1] > until[at]]
    return [(0 if number == 0 else at, flops) for number, (at, flops) in enumerate(pieces)]


def pairs(layers: catalog.Layers) -> List[Tuple[int, int]]:
    """Find the pairs of convolutions and fully connected layers that tensor parallelism splits, as indices in `layers`.

    The first layer of a pair is split by outputs, the second by inputs (Shoeybi et al. 2019, Megatron-LM, arXiv
    1909.08053, section 3). The layers between them treat every channel separately.
    """
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
    """Number of channels, units or heads in each part of the network that tensor parallelism splits.

    The degree of parallelism must divide all of them. Empty if nothing can be split.
    """
    found = [layer.heads for layer in layers if isinstance(layer, catalog.TransformerBlock)]
    for first, _ in pairs(layers):
        layer = layers[first]
        assert isinstance(layer, (catalog.Convolution, catalog.Linear))
        found.append(layer.outputs)
    return found


def divided_parameters(layers: catalog.Layers) -> int:
    """Number of parameters of which each rank holds only a part; all others are replicated.

    Replicated are layers outside pairs and the bias of a pair's second layer, which is added after the sum over ranks.
    A transformer block consists of two pairs: query, key and value with project, and expand with contract.
    """
    count = 0
    for first, second in pairs(layers):
        last = layers[second]
        assert isinstance(last, (catalog.Convolution, catalog.Linear))
        bias = last.outputs if isinstance(last, catalog.Linear) or last.bias else 0
        count += catalog.parameters((layers[first], last)) - bias
    blocks = [layer for layer in layers if isinstance(layer, catalog.TransformerBlock)]
    return count + sum(12 * block.width**2 + (3 + 4) * block.width for block in blocks)
