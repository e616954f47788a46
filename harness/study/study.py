"""A study's results folder: opening and locking it, existing results, and `study.json`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.core import events, run_files, spec
from harness.core.errors import UserError
from harness.core.events import STUDY_VERSION
from harness.core.seals import is_intact, sealed
from harness.plan.plan import Array, Plan, Request
from harness.study import outcome


class Study:
    """A study's folder. Reading creates nothing; `locked` creates it."""

    def __init__(self, name: str, folder: Path) -> None:
        """Raises UserError if the folder belongs to another study or is not a study."""
        self.name = name
        self.folder = folder
        self.document = self._read()  # read again under the lock, since another command may have added to it

    def run_dir(self, run_id: str) -> Path:
        return self.folder / run_files.RUNS / run_id

    def prepared(self, run_ids: Iterable[str]) -> list[str]:
        """Those runs that have a folder. One look at the study's folder is faster than one for each run, most of which
        are new. Raises UserError."""
        try:
            there = set(os.listdir(self.folder / run_files.RUNS))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}; {_OTHER}") from None
        return [run_id for run_id in run_ids if run_id in there]

    def ended(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Statuses of those runs that have a result. Raises UserError for a damaged one."""
        results = {run_id: self.result(run_id) for run_id in run_ids}
        return {run_id: str(result["status"]) for run_id, result in results.items() if result is not None}

    def result(self, run_id: str) -> dict[str, Any] | None:
        """Return a run's result. Raises UserError if it is unreadable: overwriting it could lose a completed run."""
        try:
            return events.read_result(self.run_dir(run_id))
        except (ValueError, OSError) as error:
            raise UserError(f"{error}; move it away to measure the run again") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it against other commands. Raises UserError."""
        try:
            (self.folder / run_files.RUNS).mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / run_files.LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise self._cannot_write(error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    # Some parallel file systems do not support locks.
                    print(f"note: {self.folder} cannot be locked here ({error.strerror}); start one command at a time")
                else:
                    raise UserError(
                        f"another harness command is using {self.folder}; wait for it, or choose another study=…"
                    ) from None
            try:
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
            except OSError as error:
                raise self._cannot_write(error) from None
            self.document = self._read()
            yield
        finally:
            os.close(handle)

    def check_folder(self, program: str, placeholders: str) -> None:
        """Raise UserError if a program would look for the logs elsewhere, as it expands these placeholders (a regular
        expression) in their paths."""
        if re.search(placeholders, str(self.folder.absolute())):
            raise UserError(
                f"{program} would expand the % in {self.folder}, where its logs are: choose another results=<folder>"
            )

    def _cannot_write(self, error: OSError) -> UserError:
        return UserError(f"the results folder {self.folder} cannot be written: {error.strerror}; {_OTHER}")

    def prepare(self, request: Request, submission: str, array_index: int) -> int:
        """Prepare the run directory for a new attempt and return its number.

        An existing result moves into its attempt's folder, so nothing is lost. A completed run starts over; a failed
        one resumes from its last checkpoint.

        Args:
            request: the run.
            submission: token of the submission.
            array_index: index in the submission's job array.
        """
        run_dir = self.run_dir(request.spec.run_id)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            attempts = events.attempt_dirs(run_dir)
            if (result := self.result(request.spec.run_id)) is not None:
                kept = attempts[-1] if attempts else run_dir
                (run_dir / run_files.RESULT).replace(kept / run_files.REPLACED_RESULT)
                if result["status"] == events.COMPLETED:
                    shutil.rmtree(run_dir / run_files.CHECKPOINT, ignore_errors=True)
            spec.write_run(run_dir, request.spec, request.site)
            number = run_files.attempt_number(attempts[-1]) + 1 if attempts else 1
            (run_files.attempt_dir(run_dir, number)).mkdir()
            outcome.write_job(run_files.attempt_dir(run_dir, number), submission, None, array_index)
        except OSError as error:
            raise UserError(f"{run_dir} cannot be written: {error.strerror}; {_OTHER}") from None
        return number

    def withdraw(self, request: Request, number: int) -> None:
        """Undo `prepare` after the scheduler refused the attempt."""
        run_dir = self.run_dir(request.spec.run_id)
        shutil.rmtree(run_files.attempt_dir(run_dir, number), ignore_errors=True)
        attempts = events.attempt_dirs(run_dir)
        kept = (attempts[-1] if attempts else run_dir) / run_files.REPLACED_RESULT
        if kept.exists():
            kept.replace(run_dir / run_files.RESULT)

    def code_versions(self, run_ids: Iterable[str]) -> set[str]:
        """Code versions that measured these runs."""
        return {spec.read_run(self.run_dir(run_id))[1].code_version for run_id in run_ids}

    def record(
        self,
        plan: Plan,
        command: Sequence[str],
        cluster: str,
        code_version: str,
        skipped: Sequence[str],
        target_accuracy: float | None = None,
    ) -> None:
        """Append this command to `study.json`.

        Args:
            plan: what the command planned.
            command: its argv.
            cluster: the scheduler.
            code_version: version of the harness.
            skipped: one sentence per combination that the sweep left out.
            target_accuracy: accuracy for which the report states the cost.
        """
        self.document["invocations"].append(
            {
                "t": time.time(),
                "command": list(command),
                "code_version": code_version,
                "cluster": cluster,
                "runs": [request.spec.run_id for request in plan.requests],
                **({"skipped": list(skipped)} if skipped else {}),
                **({} if target_accuracy is None else {"target_accuracy": target_accuracy}),
                "arrays": [_array(array) for array in plan.arrays],
            }
        )
        try:
            spec.write_json(self.folder / run_files.STUDY, sealed(self.document))
        except OSError as error:
            raise UserError(f"{self.folder / 'study.json'} cannot be written: {error.strerror}; {_OTHER}") from None

    def _read(self) -> dict[str, Any]:
        path = self.folder / run_files.STUDY
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # A command killed while it made the study leaves the lock or a temporary file.
            if self.folder.is_dir() and any(
                path.name != run_files.RUNS and not path.name.startswith(".") for path in self.folder.iterdir()
            ):
                raise UserError(
                    f"{self.folder} has files but no study.json, so it is not a study; choose another study=<name>"
                ) from None
            return {"v": STUDY_VERSION, "study": self.name, "created": time.time(), "invocations": []}
        except NotADirectoryError:
            raise UserError(f"{self.folder.parent} is a file; results= names the folder for studies") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); {_RESTORE}") from None
        if not isinstance(document, dict) or document.get("v") != STUDY_VERSION or "invocations" not in document:
            raise UserError(f"{path} is not a study.json of version {STUDY_VERSION}; choose another study=<name>")
        if not is_intact(document):
            raise UserError(f"{path} was changed: its checksum does not fit; {_RESTORE}")
        if document.get("study") != self.name:
            raise UserError(
                f"{self.folder} belongs to study '{document.get('study')}', not to '{self.name}'; "
                "choose another results=<folder> or study=<name>"
            )
        return document


def _array(array: Array) -> dict[str, Any]:
    return {
        "nodes": array.resources.nodes,
        "ranks_per_node": array.resources.placement.ranks_per_node,
        "timeout_minutes": array.resources.timeout_minutes,
        "worst_case_node_hours": array.worst_case_node_hours,
        "runs": [request.spec.run_id for request in array.requests],
    }


_OTHER = "choose another results=<folder>"
_RESTORE = "restore it, or move it away and run the study's commands again; the runs next to it stay valid"
