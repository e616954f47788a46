"""`python -m analysis serve results/`: show running studies in a browser; local and read-only."""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path

from analysis.base.errors import StudyError


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the studies in a folder such as results/ while they run: how many runs are done, their latest "
        "throughput and accuracy, and the report on demand. Nothing is written. Ctrl-C ends it."
    )
    parser.add_argument("results", type=Path, help="folder that holds the studies, such as results/")
    parser.add_argument("--port", default="8765", help="0 takes any that is free (default: %(default)s)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve at (default: %(default)s, for this machine alone)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises StudyError for errors the user can fix."""
    results = options.results
    if not results.is_dir():
        raise StudyError(f"{results} is not a folder; give the folder that holds the studies, such as results/")
    if (results / "study.json").is_file():
        raise StudyError(f"{results} is one study; give the folder that it is in, {results.resolve().parent}")
    port = options.port
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise StudyError(f"--port {port}: give a whole number from 0 (any that is free) to 65535")
    return _serve(results, options.host, int(port), options.program)


def _serve(results: Path, host: str, port: int, program: str) -> int:
    from analysis.report.live.server import LOCAL, LiveServer

    try:
        server = LiveServer(results, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StudyError(f"port {port} is in use; give another with --port, or --port 0 for any") from None
        raise StudyError(f"cannot serve at {host}:{port}: {error.strerror or error}") from None
    if host not in LOCAL:
        print(
            f"{program}: {host} is not this machine alone, and nothing is encrypted: who reads the network can read "
            "the token and the studies",
            file=sys.stderr,
        )
    with server:
        address = f"http://{host}:{server.port}/?token={server.token}"
        print(f"{address} shows the studies in {results}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()
    return 0
