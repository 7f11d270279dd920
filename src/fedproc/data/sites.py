"""A partition written as image folders, one per site: what each participant of a federation would hold."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedproc.data.images import Bytes, Images, Split
from fedproc.data.partition import Indices
from fedproc.errors import InputError
from fedproc.files import TEMPORARY, move, naming, read_text, write_json

DONE, BEGUN = "sites.json", ".sites-begun.json"


def write_sites(
    images: Images,
    shares: Sequence[Indices],
    out: Path,
    names: Sequence[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> None:
    """`out`/site-N/<class>/*.png for each share, `out`/test/<class>/*.png, and `out`/sites.json, which has
    the sites' names where they are known. One that was interrupted is continued.
    """
    folders = [_folder_name(name) for name in images.class_names]
    if len(set(folders)) != len(folders):
        raise InputError(f"--data {images.name}: two class names give the same folder name")
    digits = len(str(len(shares)))
    sites = {f"site-{number:0{digits}d}": share for number, share in enumerate(shares, start=1)}
    summary = {
        "data": images.name,
        "fingerprint": images.fingerprint,
        "classes": dict(zip(folders, images.class_names, strict=True)),
        **({"names": dict(zip(sites, names, strict=True))} if names else {}),
        "sites": {site: [int(i) for i in np.sort(share)] for site, share in sites.items()},
    }
    _expect_room(out, summary)
    with naming(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / BEGUN, summary)
        for site, share in sites.items():
            _write(images.train, share, out / site, folders, progress)
        _write(images.test, np.arange(len(images.test)), out / "test", folders, progress)
        move(out / BEGUN, out / DONE)


def _expect_room(out: Path, summary: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but the beginning of the same split."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / BEGUN).exists():
        raise InputError(f"--out {out}: already there; expected a new or empty folder")
    try:
        same = json.loads(read_text(out / BEGUN)) == summary
    except (OSError, ValueError, RecursionError):
        same = False
    if not same:
        raise InputError(f"--out {out}: another split was begun there; expected the same one, or a new or empty folder")
    for place in out.rglob("*"):
        if place.is_symlink():
            raise InputError(f"{place}: a link, which is not followed; take another --out")


def _write(split: Split, share: Indices, target: Path, folders: Sequence[str], progress: Callable[[int], None]) -> None:
    for k in np.unique(split.labels[share]):
        (target / folders[int(k)]).mkdir(parents=True, exist_ok=True)
    for index in share:
        path = target / folders[int(split.labels[index])] / f"{index:06d}.png"
        if not path.exists() or not path.stat().st_size:
            temporary = path.with_name(TEMPORARY + path.name)
            picture(split.images[index]).save(temporary, format="png")
            os.replace(temporary, path)
        progress(1)


def picture(image: Bytes) -> Image.Image:
    """(C, H, W) bytes as a grey or colour image."""
    return Image.fromarray(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0))


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "_"
