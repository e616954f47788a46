"""Helpers of the tests of harness/plan/site_resources.py: clusters, and texts that users might write into them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.config import cluster_checks
from harness.config.schema import Cluster, Scheduler
from harness.core.errors import UserError
from harness.core.rendezvous import Rendezvous

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
# Characters with a meaning to shells, sbatch or files.
NASTY = st.text(st.sampled_from(list(" \t'\"`\\#$(){};&|<>*?~!=%:,-\n\r\0aé→😀")), max_size=12)
RANK_3 = Rendezvous(3, 4, 1, 2, "n1", 20001)


def slurm_cluster(**changes: Any) -> Cluster:
    return Cluster(**{"name": "site", "scheduler": Scheduler.slurm, "gres": "gpu", **changes})


def refused(cluster: Cluster) -> str | None:
    """Return the rejection; None if accepted."""
    try:
        cluster_checks.check(cluster)
    except UserError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        assert message.startswith("cluster.")
        return message
    return None
