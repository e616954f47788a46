"""Real data, made samples in its place, or both: `data=real`, `synthetic`, `both`.

What is made has the shapes, the number of classes and the number of samples of the data set that it stands for, and a
name of its own: it is another data set, whose accuracy says nothing of the real one.
"""

from __future__ import annotations

from dataclasses import replace

from harness.config.schema import Config, Source
from harness.core.data_location import SYNTHETIC
from harness.core.errors import UserError


def variants(config: Config) -> list[Config]:
    """The point with the data that it asks for; twice, neighbours, where it asks for both. Raises UserError."""
    source = config.data.source
    real = replace(config, data=replace(config.data, source=Source.real))
    if source is Source.real:
        return [config]
    if config.dataset.reader == SYNTHETIC:
        if source is Source.synthetic:
            return [real]  # it is made as it is
        raise UserError(
            f"data=both: data set '{config.dataset.name}' is made from the seed, and has no real data to compare with; "
            "take a data set that has files, or leave out data=both"
        )
    _check_counts(config)
    made = replace(
        config,
        data=replace(config.data, source=Source.synthetic),
        dataset=replace(config.dataset, reader=SYNTHETIC),
    )
    return [made] if source is Source.synthetic else [real, made]


def names(config: Config) -> dict[str, str]:
    """The name of the point's data, and the name of the data set that it stands for, if it does, as `DatasetSpec` has
    them; of one of the `variants`."""
    name = config.dataset.name
    if config.data.source is Source.synthetic:
        return {"name": f"{name}-synthetic", "stands_for": name}
    return {"name": name}


def _check_counts(config: Config) -> None:
    for key in ("train_samples", "test_samples"):
        if getattr(config.dataset, key) < 1:
            raise UserError(
                f"data={config.data.source.name}: the configuration of data set '{config.dataset.name}' does not say "
                f"how many samples it has; set dataset.{key} to as many as are to be made"
            )
