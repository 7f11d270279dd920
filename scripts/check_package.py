"""Tries what `make package` built: what is in the archives, and the wheel in an empty environment.

That environment holds the wheel and what its metadata requires, nothing else, so that a library which is used but not
declared is noticed. The required packages are not downloaded again: they are linked from where this script runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MOST_MEGABYTES = 20
INSIDE = (
    "py.typed",
    "report/page.css",
    "report/page.js",
    "federate/live.html",
    "kernels/cpu.h",
    "kernels/cpu.c",
    "kernels/conv.c",
    "kernels/products.c",
    "kernels/chain.c",
    "kernels/losses.c",
    "kernels/simple_cnn.cu",
)
LEFT_OUT = re.compile(r"/(\.venv|\.git|\.ci|site|checkpoint|__pycache__)/|docs/results/.*/(runs|seed-)|\.safetensors$")
RELATIVE = re.compile(r"\]\((?!https?:|#|mailto:)[^)]*\)")
CLEAN = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
TRIED = (
    (["--version"], 0),
    (["--help"], 0),
    (["list", "methods"], 0),
    (["run", "--rounds", "1", "--epochs", "1", "--clients", "2", "--out", "tiny"], 0),
    (["run", "--rounds", "1", "--epochs", "1", "--clients", "2", "--out", "tiny"], 0),  # prints what is there
    (["report", "tiny"], 0),
    (["data", "show"], 0),
    (["export", "tiny"], 1),  # the extras are not there, and that is said
    (["federate", "init", "--server", "localhost", "--sites", "a", "b"], 2),
)


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        described = message_from_bytes(archive.read(about))
    places = {name.split("/")[0] for name in names}
    expect(places == {"fedproc", about.split("/")[0]}, f"{wheel.name}: holds {places}")
    missing = [name for name in INSIDE if f"fedproc/{name}" not in names]
    expect(not missing, f"{wheel.name}: without {missing}")
    relative = RELATIVE.findall(str(described.get_payload()))
    expect(not relative, f"{wheel.name}: its README has links that lead nowhere on an index: {relative}")
    with tarfile.open(sdist) as tar:
        found = [name for name in tar.getnames() if LEFT_OUT.search(name)]
    expect(not found, f"{sdist.name}: holds {len(found)} files that do not belong there, as {found[:1]}")
    for archive_path in (wheel, sdist):
        size = archive_path.stat().st_size / 1e6
        expect(size < MOST_MEGABYTES, f"{archive_path.name}: {size:.1f} MB, expected at most {MOST_MEGABYTES}")
        print(f"{archive_path.name}: {size:.1f} MB")
    if any("example.org" in url for url in described.get_all("Project-URL", [])):
        print("not ready to be published: [project.urls] Repository in pyproject.toml is still a placeholder")


def required(wheel: Path) -> list[metadata.Distribution]:
    """The installed distributions that a wheel needs, directly or not, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        waiting = message_from_bytes(archive.read(about)).get_all("Requires-Dist", [])
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found[name] = metadata.distribution(name)
            waiting += found[name].requires or []
    return list(found.values())


def environment(folder: Path, wheel: Path) -> Path:
    """An environment with the wheel and what it requires; returns its Python."""
    venv.create(folder)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    for distribution in required(wheel):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", wheel], check=True, env=CLEAN)
    subprocess.run([*pip, "check"], check=True, env=CLEAN)
    return python


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


def main(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory() as name:
        python = environment(Path(name) / "environment", wheel.resolve())
        for words, code in TRIED:
            print("fedproc", *words, flush=True)
            done = subprocess.run(
                [python.parent / "fedproc", *words], cwd=name, env=CLEAN, capture_output=True, text=True
            )
            expect(
                done.returncode == code, f"ended with {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}"
            )
            expect("Traceback" not in done.stderr, done.stderr)
            print("\n".join(f"    {line}" for line in (done.stdout + done.stderr).splitlines()[-3:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
