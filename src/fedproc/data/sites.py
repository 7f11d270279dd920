"""A partition written as image folders, one per site: what each participant of a federation would hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedproc.data.images import Bytes, Images, Split
from fedproc.data.partition import Indices
from fedproc.errors import InputError
from fedproc.files import naming


def write_sites(
    images: Images,
    shares: Sequence[Indices],
    out: Path,
    names: Sequence[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> None:
    """`out`/site-N/<class>/*.png for each share, `out`/test/<class>/*.png, and `out`/sites.json, which has
    the sites' names where they are known.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: already there; expected a new or empty folder")
    folders = [_folder_name(name) for name in images.class_names]
    if len(set(folders)) != len(folders):
        raise InputError(f"--data {images.name}: two class names give the same folder name")
    digits = len(str(len(shares)))
    sites = {f"site-{number:0{digits}d}": share for number, share in enumerate(shares, start=1)}
    with naming(out):
        for site, share in sites.items():
            _write(images.train, share, out / site, folders, progress)
        _write(images.test, np.arange(len(images.test)), out / "test", folders, progress)
        summary = {
            "data": images.name,
            "fingerprint": images.fingerprint,
            "classes": dict(zip(folders, images.class_names, strict=True)),
            **({"names": dict(zip(sites, names, strict=True))} if names else {}),
            "sites": {site: [int(i) for i in np.sort(share)] for site, share in sites.items()},
        }
        (out / "sites.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")


def _write(split: Split, share: Indices, target: Path, folders: Sequence[str], progress: Callable[[int], None]) -> None:
    for k in np.unique(split.labels[share]):
        (target / folders[int(k)]).mkdir(parents=True)
    for index in share:
        picture(split.images[index]).save(target / folders[int(split.labels[index])] / f"{index:06d}.png")
        progress(1)


def picture(image: Bytes) -> Image.Image:
    """(C, H, W) bytes as a grey or colour image."""
    return Image.fromarray(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0))


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "_"
