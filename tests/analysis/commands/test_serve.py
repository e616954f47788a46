"""`python -m analysis serve`: a real server, queried over HTTP and once by a real browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_for
from project import PROJECT
from strangers import SAID, idle, saying
from study_builder import Logs, StudyBuilder, spec_of

from analysis.__main__ import main
from analysis.report.live import server, studies
from analysis.report.live.studies import LiveStudy
from harness.core.events import write_result

CHROMIUM = Path("/usr/bin/chromium")
TOKENS: dict[int, str] = {}  # by port
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m&amp;\"'"


@contextmanager
def serving(results: Path, *settings: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start the server and yield its port and process; afterwards it is stopped by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "analysis", "serve", str(results), *(settings or ("--port=0",))],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        address = re.search(r"http://[^:]+:([0-9]+)/\?token=([0-9a-f]{32}) ", line)
        assert address, line + process.communicate(timeout=60)[1]
        TOKENS[int(address[1])] = address[2]
        yield int(address[1]), process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """Return the CPU seconds of the process, without its children."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in {"Cookie": f"analysis-{port}={TOKENS[port]}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


@pytest.fixture
def results(tmp_path: Path) -> Path:
    study = StudyBuilder(tmp_path / "results" / "scaling")
    study.add(spec_of(1), Logs(accuracy=0.5))
    study.add(spec_of(2), Logs(block_seconds=[1.0, 2.0], ends=False, exit_codes=()), finished=False)
    study.add(spec_of(4), Logs(), result={"status": "failed", "reason": HOSTILE})
    study.requested.append("not-there-yet")
    study.write_study()
    hostile = StudyBuilder(tmp_path / "results" / "<b>bold & ümlaut")
    hostile.completed(1)
    (tmp_path / "results" / "scaling" / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "results" / "elsewhere").symlink_to(tmp_path)
    return tmp_path / "results"


def test_server_shows_studies_and_lets_nobody_out_of_the_folder(results: Path) -> None:
    before = sorted(path for path in results.rglob("*"))
    with serving(results) as (port, process):
        status, headers, page = ask(port, "/")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "&lt;b&gt;bold &amp; ümlaut" in page
        assert "<b>" not in page
        assert "1 running, 1 failed, 1 missing, 1 completed" in page
        studies = json.loads(ask(port, "/studies.json")[2])
        assert [(study["name"], study["runs"]) for study in studies] == [("<b>bold & ümlaut", 1), ("scaling", 4)]
        assert ask(port, studies[0]["url"])[0] == 200

        status, headers, text = ask(port, "/study/scaling/runs.json")
        rows = {row["status"]: row for row in json.loads(text)["rows"]}
        # The last block of rank 0: ten steps of 2 x 128 samples in 2 s.
        running = rows["running"]
        assert (running["samples_per_second"], running["steps_done"], running["gpus"]) == (1280.0, 30, 2)
        assert rows["completed"]["accuracy"] == 0.5
        assert rows["failed"]["reason"].startswith("<img src=x")
        assert "\u202e" not in rows["failed"]["reason"]
        assert "\x1b" not in rows["failed"]["reason"]
        assert ask(port, "/study/scaling/runs.json", If_None_Match=headers["ETag"])[0] == 304
        assert ask(port, "/study/scaling/runs.json?status=failed&page=99&text=resnet")[2].count("run_id") == 1

        used = processor_seconds(process)
        status, headers, report = ask(port, "/study/scaling/report.html")
        making = processor_seconds(process) - used
        assert status == 200
        assert "<img src=x" not in report
        assert "how-it-scales" in report
        used = processor_seconds(process)
        assert ask(port, "/study/scaling/report.html")[2] == report
        assert processor_seconds(process) - used < making / 3, "it is kept"

        for path in (
            "/secret.txt",
            "/../secret.txt",
            "/study/..",
            "/study/../runs.json",
            "/study/%2e%2e/runs.json",
            "/study/scaling%2f..%2f../runs.json",
            "/study/scaling/../../secret.txt",
            "/study/scaling/secret.txt",
            "/study/elsewhere/runs.json",
            "/study//etc/passwd",
            "//etc/passwd",
            "/study/scaling/%00",
            "/study/%ff%fe/runs.json",
            "/server.py",
            "/studies.html.j2",
        ):
            status, _, text = ask(port, path)
            assert status == 404, path
            assert "secret" not in text
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(port, "/", method)[0] == 501
        assert ask(port, "/", "HEAD")[2] == ""
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "",
            "[::",
            "localhost@evil.example",
        ):
            assert ask(port, "/", Host=host)[0] == 421, host
        assert ask(port, "/", Host=f"localhost:{port}")[0] == 200

        # Another user of the machine does not know the token.
        for wrong in ("", "analysis", f"analysis-{port}=", f"analysis-{port}={'0' * 32}", f"analysis-1={TOKENS[port]}"):
            for path in (
                "/",
                "/studies.json",
                "/live.js",
                "/study/scaling/runs.json",
                f"/?token={'0' * 32}",
                "/?token=é",
            ):
                assert ask(port, quote(path, safe="/?="), Cookie=wrong)[0] == 403, (wrong, path)
        status, headers, text = ask(port, f"//evil.example/?token={TOKENS[port]}", Cookie="")
        assert (status, headers["Location"], text) == (303, "/evil.example/", ""), "a path of this server"
        cookie = headers["Set-Cookie"].split("; ")
        assert cookie[1:] == ["Path=/", "HttpOnly", "SameSite=Lax"]
        assert ask(port, "/", Cookie=cookie[0])[0] == 200

        # A second server on the same port is rejected with a sentence.
        second = subprocess.run(
            [sys.executable, "-m", "analysis", "serve", str(results), f"--port={port}"],
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert f"port {port} is in use" in second.stderr
        assert "Traceback" not in second.stderr
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
    assert sorted(path for path in results.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "is not a folder"),
        ([".", "--port=http"], "give a whole number from 0"),
        ([".", "--port=70000"], "give a whole number from 0"),
        ([".", "--host=no.such.host.invalid", "--port=0"], "cannot serve at"),
    ],
)
def test_mistake_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_only_changed_runs_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(studies, "time", SimpleNamespace(monotonic=lambda: now))
    study = StudyBuilder(tmp_path / "study")
    for seed in range(5):
        run_dir = study.add(spec_of(1, seed=seed), Logs(ends=False, exit_codes=()), finished=False)
    live = LiveStudy(study.folder)
    assert live.refresh() == 5
    write_result(run_dir, {"v": 1, "status": "completed"})
    assert live.refresh() == 0  # too soon
    now += studies.SHORTEST_SECONDS
    assert live.refresh() == 1
    assert live.counts() == {"running": 4, "completed": 1}
    # A run whose files have not grown for a minute, or whose rank 0 ended long ago, has stopped.
    first, second = [path / "attempt-1" for path in (study.folder / "runs").iterdir() if path != run_dir][:2]
    for path in first.iterdir():
        os.utime(path, (1, 1))
    (second / "exit.rank0.json").write_text('{"t": 1}')
    now += studies.SHORTEST_SECONDS
    assert live.refresh() == 2
    assert live.counts() == {"running": 2, "stopped": 2, "completed": 1}
    (run_dir / "attempt-1" / "events.rank0.jsonl").write_bytes(b"\xff{\n" * 10_000)
    now += studies.SHORTEST_SECONDS
    assert live.refresh() == 1
    assert live.rows[-1].get("samples_per_second") is None or live.refresh() == 0


@pytest.mark.browser
def test_browser_watches_a_study_grow(results: Path) -> None:
    if not CHROMIUM.exists():
        pytest.skip("no Chromium: get it with sbatch/system-packages.sh browser")
    from playwright.sync_api import expect, sync_playwright

    run_dir = results / "scaling" / "runs" / spec_of(2).run_id
    with serving(results) as (port, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/?token={TOKENS[port]}")
        page.get_by_role("link", name="scaling").click()
        line = page.locator("#runs tbody tr", has_text=spec_of(2).run_id)
        expect(line).to_contain_text("1,280", timeout=30_000)
        expect(page.locator("#runs tbody")).to_contain_text("<img src=x")
        with open(run_dir / "attempt-1" / "events.rank0.jsonl", "a") as log:
            block = {"phase": "measure", "step": 30, "n": 10, "seconds": 0.5, "samples": 1280}
            log.write(json.dumps({"v": 1, "t": time.time(), "rank": 0, "ev": "steps", **block}) + "\n")
        expect(line).to_contain_text("5,120", timeout=30_000)
        write_result(run_dir, {"v": 1, "status": "completed"})
        expect(page.locator("#counts")).to_contain_text("2 completed", timeout=30_000)
        page.locator("#status").select_option("failed")
        expect(page.locator("#runs tbody tr")).to_have_count(1)
        browser.close()
    assert said == []
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{port}"}


@contextmanager
def live_server(folder: Path) -> Iterator[server.LiveServer]:
    with ExitStack() as stack:
        live = stack.enter_context(server.LiveServer(folder, "127.0.0.1", 0))
        thread = threading.Thread(target=live.serve_forever, args=(0.05,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(live.shutdown)
        TOKENS[live.port] = live.token
        yield live


def test_idle_and_dripping_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path))
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", live.port))) for _ in range(200)]
        with suppress(ConnectionError):
            while True:  # until it is closed
                made[0].sendall(b"G")
                time.sleep(0.2)
        wait_for(lambda: threading.active_count() < server.MOST_UNKNOWN / 2, 60)
        assert ask(live.port, "/")[0] == 200


def test_a_thousand_idle_connections_make_room_for_who_has_the_token(tmp_path: Path) -> None:
    with live_server(tmp_path) as live, idle(live.port):
        wait_for(lambda: threading.active_count() < server.MOST_THREADS)
        assert ask(live.port, "/")[0] == 200


@given(said=SAID, closes=st.booleans())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_studies_are_shown_whatever_strangers_send(tmp_path: Path, said: list[bytes], closes: bool) -> None:
    with live_server(tmp_path) as live, saying(live.port, said, closes):
        assert ask(live.port, "/")[0] == 200
        assert ask(live.port, "/", Cookie="")[0] == 403


def test_port_that_is_taken_by_another_program_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path), f"--port={port}"]) == 2
    assert f"port {port} is in use" in capsys.readouterr().err
