"""`harness.data` against a server of HTTP that cuts answers off, is slow to start, or serves something else."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.cli.data import SOURCES, DownloadError, File, Source, download, main
from harness.core.data_location import locate
from harness.core.errors import UserError

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


class Server:
    """Serves files from memory, with ranges."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None  # bytes of each answer before the connection is closed
        self.ranges: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = outer.files.get(self.path.lstrip("/"))
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                if content is None:
                    self.send_error(404)
                    return
                start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                until = len(content) if outer.cut_after is None else start + outer.cut_after
                self.wfile.write(content[start:until])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def archive(self) -> Source:
        """Serve an archive like CIFAR-10's, with names that must not leave the folder. Returns its source."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name in [*(f"cifar-10-batches-bin/{name}" for name in BATCHES), "cifar-10-batches-bin/../../outside"]:
                content = bytes(range(256)) * 40
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo("cifar-10-batches-bin/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        self.files["cifar-10-binary.tar.gz"] = content = buffer.getvalue()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        file = File(f"{self.url}/cifar-10-binary.tar.gz", digest, len(content), archive=True)
        return replace(SOURCES["cifar10"], files=(file,), unpacked=80_000)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_download_is_where_the_reader_looks(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, root = server.archive(), tmp_path / "data"
    download("cifar10", source, root)
    assert locate("cifar10", "cifar10", str(root)) == root / "cifar-10-batches-bin"
    assert sorted(path.name for path in root.rglob("*")) == sorted([*BATCHES, "cifar-10-batches-bin"])
    assert not (tmp_path / "outside").exists()
    assert "a download of 0 MB" in capsys.readouterr().out
    download("cifar10", source, root)
    assert "already" in capsys.readouterr().out
    assert len(server.ranges) == 1


def test_a_connection_that_is_cut_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    source = server.archive()
    server.cut_after = source.files[0].size // 3
    download("cifar10", source, tmp_path)
    assert server.ranges[0] is None
    assert all(asked and asked.startswith("bytes=") for asked in server.ranges[1:])
    assert len(server.ranges) == 4


def test_what_arrived_is_kept_for_the_next_command(server: Server, tmp_path: Path) -> None:
    source = server.archive()
    content = server.files.pop("cifar-10-binary.tar.gz")
    part = tmp_path / ".cifar10.download" / "cifar-10-binary.tar.gz"
    part.parent.mkdir()
    part.write_bytes(content[:100])
    with pytest.raises(DownloadError, match="Not Found"):
        download("cifar10", source, tmp_path)
    server.files["cifar-10-binary.tar.gz"] = content
    download("cifar10", source, tmp_path)
    assert server.ranges == ["bytes=100-"] * 2


def test_another_file_than_the_published_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in SOURCES["fashion_mnist"].files:
        server.files[file.name] = gzip.compress(b"other images")
    assert main(["fashion_mnist", "--root", str(tmp_path), "--mirror", server.url]) == 1
    said = capsys.readouterr().err
    assert "is not the published file: its sha256 is" in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.gz"))


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        nobody = f"http://127.0.0.1:{free.server_port}"
    assert main(["cifar10", "--root", str(tmp_path), "--mirror", nobody]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "Connection refused" in last
    assert "--mirror" in last


def test_a_list_that_is_cut_short_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files |= {"TrainImages.txt": b"a/b.jpg\n" * 5359, "TestImages.txt": b"a/b.jpg\n" * 1340}
    lists = SOURCES["indoor67"].files[1:]
    source = replace(SOURCES["indoor67"], files=lists, unpacked=0)
    with pytest.raises(DownloadError, match=r"TrainImages\.txt lists 5359 files, not the published 5360"):
        download("indoor67", source, tmp_path, server.url)


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path) -> None:
    huge = replace(SOURCES["cifar10"], unpacked=10**18)
    with pytest.raises(UserError, match=r"name a larger disk with --root"):
        download("cifar10", huge, tmp_path)
