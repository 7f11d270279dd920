"""Makes a folder of odd images as people have them, to try docs/own-images.md with: three hospitals, two scans of each
patient, 128 x 48 pixels in four formats, a list with semicolons, one file that is cut off and one that is there twice.

    python examples/hospitals.py hospitals
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

FORMATS = {"north": ("png", "png"), "south": ("jpg", "bmp"), "west": ("tif", "tif")}
MARKS = {"left": 4, "right": 112, "none": None}  # where the class shows, near the edges


def make(folder: Path, patients: int = 8) -> None:
    rng = np.random.default_rng(0)
    lines = ["path;label;group;site"]
    for site, formats in FORMATS.items():
        (folder / site).mkdir(parents=True)
        for label, mark in MARKS.items():
            for patient in range(patients):
                for scan, ending in enumerate(formats):
                    pixels = rng.integers(60, 110, (48, 128)).astype(np.uint8)
                    if mark is not None:
                        pixels[16:32, mark : mark + 12] = 250
                    path = f"{site}/{label}-{patient}-{scan}.{ending}"
                    Image.fromarray(pixels).save(folder / path)
                    lines.append(f"{path};{label};{site}-{label}-{patient};{site}")
    cut, copy = folder / "south" / "left-0-0.jpg", folder / "west" / "again.png"
    cut.write_bytes(cut.read_bytes()[:300])
    copy.write_bytes((folder / "north" / "right-0-0.png").read_bytes())
    lines.append("west/again.png;none;west-again;west")
    (folder / "images.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
