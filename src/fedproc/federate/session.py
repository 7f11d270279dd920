"""The administrator's line to the server: who is connected, which segment runs, how far it is."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from fedproc.errors import RunError
from fedproc.federate.kits import Kit
from fedproc.federate.names import ADMIN, RESULT, TOPIC

Record = dict[str, Any]
LAST = "result.json"
OVER = ("FINISHED", "ABORTED", "FAILED", "ABANDONED")


class Lost(RunError):
    """The server cannot be reached."""


class Forbidden(RunError):
    """The certificate's role may not do that."""


class Session:
    """A session with the server; every failure of the line is `Lost`."""

    def __init__(self, kit: Kit, timeout: float = 10.0) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._session = new_secure_session(ADMIN, str(kit.path), timeout=timeout)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise Lost(f"the server at {kit.host}:{kit.port} cannot be reached: {reason}") from error

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            self._session.close()

    def _do(self, name: str, *words: Any) -> Any:
        try:
            return getattr(self._session, name)(*words)
        except Exception as error:
            if type(error).__name__ == "AuthorizationError":
                raise Forbidden(f"the server does not allow that: {error}") from error
            raise Lost(f"the server did not answer ({type(error).__name__}: {error})") from error

    def connected(self) -> dict[str, float]:
        """When each connected site was last heard of, by the server's clock."""
        info = self._do("get_system_info")
        return {client.name: float(client.last_connect_time or 0) for client in info.client_info}

    def jobs(self, run: str) -> list[Record]:
        """The segments of a run that the server has, the latest last."""
        found = self._do("list_jobs", True, 100) or []
        mine = [job for job in found if job.get("job_name", job.get("name")) == run]
        return sorted(mine, key=lambda job: str(job.get("submit_time_iso", job.get("submit_time", ""))))

    def running(self) -> list[str]:
        """Segments under way, of whichever run."""
        found = self._do("list_jobs", True, 100) or []
        return [str(job["job_id"]) for job in found if str(job.get("status", "")).startswith("RUNNING")]

    def status(self, job: str) -> str:
        return str(self._do("get_job_meta", job).get("status", ""))

    def submit(self, folder: Path) -> str:
        return str(self._do("submit_job", str(folder)))

    def ask(self, job: str, **asked: Any) -> Record | None:
        """What a running segment says; None when it does not run."""
        try:
            found = self._do("do_app_command", job, TOPIC, asked or {"do": "status"})
        except Lost:
            return None
        return dict(found)

    def abort(self, job: str) -> None:
        with contextlib.suppress(Lost):
            self._do("abort_job", job)

    def disable(self, site: str) -> None:
        self._do("disable_client", site)

    def fetch(self, job: str, target: Path) -> Record | None:
        """Bring the run's folder as a segment left it into `target`; returns the segment's last status."""
        with tempfile.TemporaryDirectory(prefix="fedproc-fetch-") as place:
            found = Path(self._do("download_job_result", job, place))
            sources = [path for path in found.rglob(RESULT) if path.is_dir()]
            for archive in found.rglob("*.zip"):
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(archive.parent / "unpacked")
                sources += [path for path in (archive.parent / "unpacked").rglob(RESULT) if path.is_dir()]
            if not sources:
                return None
            status = sources[0] / "status.json"
            said = json.loads(status.read_text(encoding="utf-8")) if status.exists() else None
            shutil.copytree(sources[0], target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("status.json", LAST))
            over = said is not None and said.get("outcome") not in ("ended", "stopped")
            for result in sources[0].rglob(LAST) if over else ():  # what says that all is here comes last
                shutil.copyfile(result, target / result.relative_to(sources[0]))
            return said
