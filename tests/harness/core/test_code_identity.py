"""What identifies the code of the user's own training, in real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.core.workload.code_identity import identity, program_identity


def git(folder: Path, *arguments: str) -> str:
    user = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", folder, *user, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("import model\n")
    (folder / "model.py").write_text("layers = 3\n")
    (folder / ".gitignore").write_text("data\n")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_tracked_script_is_known_by_the_commit_of_its_repository(repository: Path) -> None:
    first = identity(repository / "src" / "train.py")
    assert first == f"git:{git(repository, 'rev-parse', 'HEAD')}"
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert identity(repository / "src" / "train.py") != first


def test_changed_tracked_files_count_and_others_do_not(repository: Path) -> None:
    script = repository / "src" / "train.py"
    clean = identity(script)
    (repository / "notes.txt").write_text("x")
    (repository / "data").write_text("x")
    assert identity(script) == clean
    (repository / "model.py").write_text("layers = 4\n")
    changed = identity(script)
    assert changed.startswith(f"{clean}+")
    (repository / "model.py").write_text("layers = 5\n")
    assert identity(script) not in (clean, changed)
    git(repository, "add", "model.py")
    (repository / "model.py").write_text("layers = 4\n")
    assert identity(script) == changed
    (repository / "model.py").unlink()
    assert identity(script) not in (clean, changed)
    (repository / "model.py").write_text("layers = 3\n")
    git(repository, "add", "model.py")
    assert identity(script) == clean


def test_a_settings_file_of_the_user_changes_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = repository / "src" / "train.py"
    (repository / "model.py").write_text("layers = 4\n")
    before = identity(script)
    for number, (key, value) in enumerate(
        (("diff.noprefix", "true"), ("color.ui", "always"), ("diff.relative", "true"))
    ):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "3")
    assert identity(script) == before


def test_a_link_to_a_script_is_the_script(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to(repository / "src" / "train.py")
    assert identity(tmp_path / "train.py") == identity(repository / "src" / "train.py")


def test_a_script_that_git_does_not_track_is_known_by_its_content(repository: Path, tmp_path: Path) -> None:
    for folder in (repository, tmp_path):
        script = folder / "other.py"
        script.write_text("a\n")
        first = identity(script)
        assert first.startswith("file:")
        (repository / "model.py").write_text(str(folder))
        assert identity(script) == first
        script.write_text("b\n")
        assert identity(script) != first
    assert identity(tmp_path / "absent.py") == ""


def test_without_git_a_script_is_known_by_its_content(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert identity(repository / "src" / "train.py").startswith("file:")


def test_of_programs_only_scripts_and_tracked_ones_are_known(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    assert program_identity(tmp_path / "run").startswith("file:")
    assert program_identity(tmp_path / "binary") == ""
    assert program_identity(tmp_path / "absent") == ""
    assert program_identity(repository / "model.py").startswith("git:")
