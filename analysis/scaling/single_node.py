"""From one node to several, by a bandwidth alone: what an allreduce of the gradients between nodes ought to take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from analysis.scaling.bayesian import Posterior, Prior, posterior, usual_prior
from analysis.scaling.communication import ring_seconds
from analysis.scaling.series import Series
from harness.core.spec import WEAK

# Parameters of networks by the letters and digits of their names; published counts, as far as models/catalog.py, which
# knows them by classes and size of the input, has not got them.
PARAMETERS = {
    "alexnet": 61.1e6,  # Krizhevsky 2014, and below: as in torchvision's table of models
    "vgg16": 138.4e6,
    "vgg19": 143.7e6,
    "inceptionv3": 27.2e6,  # with the auxiliary classifier, Szegedy et al. 2016
    "resnet18": 11.7e6,
    "resnet50": 25.6e6,  # He et al. 2015
    "resnet101": 44.5e6,
    "resnet152": 60.2e6,
    "bertbase": 110e6,  # Devlin et al. 2019, section 3
    "bertlarge": 340e6,
    "transformerbase": 65e6,  # Vaswani et al. 2017, table 3
    "transformerbig": 213e6,
    "vitb": 86e6,  # Dosovitskiy et al. 2021, table 1
    "vitl": 307e6,
    "gpt2": 124e6,  # Radford et al. 2019; the counts that its authors published later
    "gpt2medium": 355e6,
    "gpt2large": 774e6,
    "gpt2xl": 1558e6,
}
HALF = ("fp16", "bf16", "float16", "bfloat16")


@dataclass(frozen=True)
class OneNode:
    """posterior, and the prior that it was made with: None where `why` says what is missing; else `why` says what they
    were made from."""

    posterior: Posterior | None
    why: str
    prior: Prior | None = None


def one_node(series: Series, bytes_per_second: float | None = None, gradient_bytes: float | None = None) -> OneNode:
    """A prediction for several nodes from sizes on one. What is None is read from the names of system and model.

    The median of what the ring between nodes costs becomes bytes / bandwidth: all of it exposed, at full speed. Overlap
    makes it less, protocols and other traffic more; the prior is as wide as ever.
    """
    given = bytes_per_second is not None
    if bytes_per_second is None:
        bytes_per_second = bandwidth_in(series.system)
    if bytes_per_second is None:
        return OneNode(None, f"no bandwidth in the system's name {series.system!r}; give one with --bandwidth")
    if gradient_bytes is None:
        parameters = parameters_of(series.model)
        if parameters is None:
            return OneNode(None, f"the number of parameters of {series.model!r} is not known here")
        gradient_bytes = parameters * (2 if series.precision.lower() in HALF else 4)
    if series.batch_per_gpu is None or series.scaling != WEAK:
        return OneNode(None, "the batch per GPU is not constant")
    step_seconds = float(series.costs[-1]) * series.batch_per_gpu
    between = ring_seconds(2, gradient_bytes, bytes_per_second) / step_seconds
    why = (
        f"{gradient_bytes / 1e6:,.3g} MB of gradients over {bytes_per_second * 8 / 1e9:g} Gb/s "
        f"({'given' if given else 'from the name of the system'}): {100 * between:.1f} % of a step between two nodes"
    )
    prior = usual_prior(between, series.noise)
    return OneNode(posterior(series, prior), why, prior)


def bandwidth_in(text: str) -> float | None:
    """Bytes per second, of 'InfiniBand EDR 100 Gb/s' or '12.5 GB/s'; None where the text has none."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*(Gb/s|Gbit/s|Gbps|GbE|GB/s)", text)
    if found is None or float(found[1]) <= 0:
        return None
    return float(found[1]) * 1e9 / (1 if found[2] == "GB/s" else 8)


def parameters_of(model: str) -> float | None:
    """Of the network in the table that the name begins with: 'ResNet50 V1.5' is resnet50; None where it is none."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    found = [known for known in PARAMETERS if name.startswith(known)]
    return PARAMETERS[max(found, key=len)] if found else None
