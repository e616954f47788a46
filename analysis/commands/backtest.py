"""`python -m analysis backtest <csv>`: how well the scaling laws would have predicted existing measurements."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.base.settings import positive, settings_of

BANDWIDTH = "bandwidth_gbit"
MOST_TRIED = 500  # series; about 0.1 s each


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "For each series of a table of measurements: predicts the largest size from all up to half of it, "
        "and each size from all others, beside linear, flat, ring term, the best law of the textbooks, and Extra-P."
    )
    parser.add_argument("csv", type=Path, help="table with the columns of benchmarks/published/throughput.csv")
    parser.add_argument("--json", action="store_true", help="print JSON, with every left-out size")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="name=value",
        help="bandwidth_gbit=100: between nodes, to predict from one node (default: what the column `system` says)",
    )
    parser.add_argument(
        "--extrap", metavar="PYTHON", help="a Python that has Extra-P (`pip install extrap`), to print it beside"
    )


def run(options: argparse.Namespace) -> int:
    """Print predictions of the largest sizes next to those of the baselines. Raises StudyError for errors the user can
    fix."""
    from analysis.report.terminal.backtest import backtest_json, print_backtest
    from analysis.report.terminal.tables import terminal
    from analysis.scaling.backtest import try_series
    from analysis.scaling.extra_p import with_extrap
    from analysis.scaling.measurements import first_series, read_table

    bandwidth_gbit = positive(BANDWIDTH, settings_of(options.settings, [BANDWIDTH]).get(BANDWIDTH))
    bytes_per_second = None if bandwidth_gbit is None else bandwidth_gbit * 1e9 / 8
    table = first_series(read_table(options.csv), MOST_TRIED)
    tests = [try_series(series, bytes_per_second) for series in table.series]
    tests, extrap_note = with_extrap(tests, options.extrap)
    if options.json:
        print(json.dumps(backtest_json(table, tests, extrap_note), indent=1, allow_nan=False))
    else:
        print_backtest(terminal(sys.stdout), table, tests, extrap_note)
    return 0
