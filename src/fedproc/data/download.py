"""Published archives, fetched once into the user's cache with checksum and progress bar."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedproc.cache import cache_folder
from fedproc.errors import RunError


@dataclass(frozen=True)
class Download:
    """Where an archive is published and its MD5."""

    url: str
    md5: str
    folder: str = ""  # of the cache, for files whose names are not unique

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def fetch(download: Download) -> Path:
    """The archive's path in the cache. A file with another checksum is deleted and fetched again."""
    folder = cache_folder() / download.folder
    path = folder / download.name
    if path.is_file() and _md5(path) == download.md5:
        return path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm, whose bars are not used, warns in notebooks without widgets
        import pooch  # takes a while to import, and most commands fetch nothing

    try:
        # pooch writes to a temporary file next to the target and moves it only when the checksum is right
        pooch.get_logger().setLevel("ERROR")
        pooch.retrieve(
            download.url,
            known_hash=f"md5:{download.md5}",
            fname=download.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=_Bar(download.name), timeout=30),
        )
    except Exception as error:  # requests, urllib3, OSError and ValueError (checksum) alike
        raise RunError(
            f"{download.name} could not be fetched from {download.url} ({type(error).__name__}); "
            f"put the file into {folder} (MD5 {download.md5}), or give the folder that holds it as --data-dir"
        ) from error
    return path


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


class _Bar:
    """The progress bar pooch asks for (total, update, reset, close), drawn by rich."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(name)
        self.total = 0

    def update(self, count: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
