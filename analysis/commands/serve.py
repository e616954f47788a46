"""`python -m analysis serve results/`: studies as they run, in a browser; local and read-only."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from analysis.errors import StudyError
from analysis.settings import settings_of

USAGE = """usage: python -m analysis serve RESULTS [port=8765] [host=127.0.0.1]

Shows the studies in a folder such as results/ while they run: how many runs are done, their latest throughput and
accuracy, and the report on demand. Nothing is written. Ctrl-C ends it.

port=    0: any that is free (default: 8765)
host=    the address to serve at (default: 127.0.0.1, which only this machine reaches)
"""


def main(arguments: list[str]) -> int:
    """Serves until Ctrl-C. Returns the exit code: 0. Raises StudyError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    results = Path(arguments[0])
    settings = {"port": "8765", "host": "127.0.0.1", **settings_of(arguments[1:], ("port", "host"))}
    if not results.is_dir():
        raise StudyError(f"{results} is not a folder; give the folder that holds the studies, such as results/")
    if (results / "study.json").is_file():
        raise StudyError(f"{results} is one study; give the folder that it is in, {results.resolve().parent}")
    port = settings["port"]
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise StudyError(f"port={port}: give a whole number from 0 (any that is free) to 65535")
    return _serve(results, settings["host"], int(port))


def _serve(results: Path, host: str, port: int) -> int:
    from analysis.live.server import LOCAL, LiveServer

    try:
        server = LiveServer(results, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StudyError(f"port {port} is in use; give another with port=, or port=0 for any") from None
        raise StudyError(f"cannot serve at {host}:{port}: {error.strerror or error}") from None
    if host not in LOCAL:
        print(
            f"python -m analysis serve: {host} is not this machine alone: everybody who reaches it can read "
            "the studies; there is no password and no encryption",
            file=sys.stderr,
        )
    with server:
        print(f"http://{host}:{server.port}/ shows the studies in {results}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()
    return 0
