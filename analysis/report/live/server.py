"""Read-only HTTP server. The standard library's suffices for three pages without user state.

Only GET and HEAD, and only for who knows the token in the printed address, since every user of a login node reaches its
loopback address; a browser keeps it in a cookie. Requested names are looked up among existing ones and never joined to
a path. The Host header must match the served address, which prevents DNS rebinding.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.base.errors import StudyError
from analysis.base.text import printable
from analysis.report.live.studies import LiveStudy, study_names

LOCAL, EVERY = ("127.0.0.1", "localhost"), ("", "0.0.0.0")
PAGE_RUNS = 100  # runs per page of the table
REQUEST_SECONDS = 30.0  # for a whole request to arrive, however slowly its sender drips
MOST_UNKNOWN = 64  # connections that have not shown the token; more close the oldest
MOST_THREADS = 2 * MOST_UNKNOWN  # one per connection; more are closed
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
# The report is one file with inline style and script.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATIC = {"/live.css": "text/css; charset=utf-8", "/live.js": "text/javascript; charset=utf-8"}
TEMPLATES = Path(__file__).parent / "templates"


class LiveServer(ThreadingHTTPServer):
    """Serves the studies of a folder. hosts: accepted Host headers without port; None: any. token: admits readers."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, results: Path, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.results = results
        self.token = secrets.token_hex(16)
        self.hosts = set(LOCAL) if host in LOCAL else None if host in EVERY else {host.lower()}
        self._studies: dict[str, LiveStudy] = {}
        self._reports: dict[str, tuple[str, bytes]] = {}
        self._lock, self._report_lock = threading.Lock(), threading.Lock()
        self._unknown: dict[_Handler, None] = {}  # in order of arrival

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Name of the cookie; the servers of one host share its cookies."""
        return f"analysis-{self.port}"

    def verify_request(self, request: object, client_address: object) -> bool:
        return threading.active_count() < MOST_THREADS

    def arrived(self, connection: _Handler) -> None:
        """Make room for a connection by closing the one that has waited longest without showing the token."""
        with self._lock:
            self._unknown[connection] = None
            if len(self._unknown) > MOST_UNKNOWN:
                next(iter(self._unknown)).cut()

    def forget(self, connection: _Handler) -> None:
        """Called when a connection has shown the token, and when it ends."""
        with self._lock:
            self._unknown.pop(connection, None)

    def study(self, name: str) -> LiveStudy | None:
        """Return the current status of a study; None if there is none of this name."""
        if name not in study_names(self.results):
            return None
        with self._lock:
            study = self._studies.setdefault(name, LiveStudy(self.results / name))
        study.refresh()
        return study

    def report(self, study: LiveStudy) -> bytes:
        """Return the full report, rebuilt on request if the study has changed. Raises StudyError."""
        from analysis.read.study import read_study
        from analysis.report.findings import findings_of
        from analysis.report.outputs import documents_of

        with self._report_lock:  # one at a time: each occupies a core for seconds
            version = study.digest()
            kept = self._reports.get(study.folder.name)
            if kept is None or kept[0] != version:
                findings = findings_of(read_study(study.folder, keep=False))
                page = documents_of(findings, ("html",))["report.html"]
                kept = self._reports[study.folder.name] = (version, page)
            return kept[1]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "analysis", ""
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS  # of a single read

    def setup(self) -> None:
        super().setup()
        self.server.arrived(self)

    def finish(self) -> None:
        self.server.forget(self)
        super().finish()

    def handle_one_request(self) -> None:
        self.arriving = threading.Timer(REQUEST_SECONDS, self.cut)
        self.arriving.daemon = True
        self.arriving.start()
        try:
            super().handle_one_request()
        finally:
            self.arriving.cancel()

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self.arriving.cancel()
        if self.server.hosts is not None and _host(self.headers.get("Host", "")) not in self.server.hosts:
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server does not go by that name")
        url = urlsplit(self.path)
        if self._is(parse_qs(url.query).get("token", [""])[0]):
            return self._admit(url.path)
        if not self._is(self._cookie()):
            return self._refuse(HTTPStatus.FORBIDDEN, "open the address that the command printed, with its token")
        self.server.forget(self)
        parts = [unquote(part) for part in url.path.split("/") if part]
        try:
            self._answer(url.path, parts, parse_qs(url.query))
        except StudyError as error:
            self._refuse(HTTPStatus.CONFLICT, printable(str(error)))
        except (BrokenPipeError, ConnectionResetError):  # the browser closed the connection
            self.close_connection = True
        return None

    do_HEAD = do_GET

    def _is(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _admit(self, path: str) -> None:
        """Move the token from the address to a cookie."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Lax")
        self.send_header("Location", f"/{path.lstrip('/')}")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, path: str, parts: list[str], query: Mapping[str, list[str]]) -> None:
        if path in STATIC:
            return self._send((TEMPLATES / path[1:]).read_bytes(), STATIC[path])
        if not parts:
            return self._page("studies.html.j2", studies=self._studies())
        if path == "/studies.json":
            return self._json(self._studies())
        if parts[0] != "study" or len(parts) not in (2, 3):
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        study = self.server.study(parts[1])
        if study is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such study")
        what = parts[2] if len(parts) == 3 else ""
        if what == "":
            return self._page("study.html.j2", name=printable(parts[1]), url=_url(parts[1]))
        if what == "runs.json":
            return self._json(_runs(study, query))
        if what == "report.html":
            return self._send(self.server.report(study), "text/html; charset=utf-8", REPORT_POLICY)
        return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _studies(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for name in study_names(self.server.results):
            if (study := self.server.study(name)) is not None:
                counts = study.counts()
                found.append({"name": printable(name), "url": _url(name), "counts": counts, "runs": len(study.rows)})
        return found

    def _page(self, template: str, **values: Any) -> None:
        environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
        page = environment.get_template(template).render(**values)
        self._send(page.encode("utf-8", "replace"), "text/html; charset=utf-8")

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(sentence.encode("utf-8", "replace"), "text/plain; charset=utf-8", status=status)

    def _send(self, body: bytes, kind: str, policy: str = POLICY, status: HTTPStatus = HTTPStatus.OK) -> None:
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "ETag": tag,
            "Cache-Control": "no-cache",
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Suppress request logging: the terminal is for messages to the user."""


def _host(header: str) -> str | None:
    """Return the host name of a Host header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _url(name: str) -> str:
    return f"/study/{quote(name, safe='')}"


def _runs(study: LiveStudy, query: Mapping[str, list[str]]) -> Mapping[str, Any]:
    """Return one page of the runs, filtered by status and by text in their names."""
    status, text = query.get("status", [""])[0], query.get("text", [""])[0]
    rows = [row for row in study.rows if status in ("", row["status"]) and text in row["run_id"]]
    asked = query.get("page", ["0"])[0]
    last = max(0, (len(rows) - 1) // PAGE_RUNS)
    page = min(int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 0, last)
    return {
        "counts": study.counts(),
        "runs": len(study.rows),
        "found": len(rows),
        "page": page,
        "last_page": last,
        "rows": rows[page * PAGE_RUNS : (page + 1) * PAGE_RUNS],
    }
