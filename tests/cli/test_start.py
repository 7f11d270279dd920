"""What a command loads before it answers: heavy libraries only where they are needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "pydantic", "pooch", "nvflare", "onnx"}


LIGHT = ("report", "list", "data", "federate", "paper", "predict", "export")  # whose flags need no experiment


def loaded(*words: str) -> set[str]:
    """The heavy libraries that a command has loaded when it ends."""
    code = f"""
import sys
from fedproc.cli import main
try:
    code = main({list(words)!r})
except SystemExit as end:
    code = end.code
assert not code, code
print("LOADED", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return HEAVY & set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], *([word, "--help"] for word in LIGHT)], ids=" ".join)
def test_help_and_versions_load_nothing(words: list[str]) -> None:
    assert loaded(*words) == set()


@pytest.mark.parametrize("words", [["list", "methods"], ["run", "--help"], ["compare", "--help"]], ids=" ".join)
def test_what_knows_methods_loads_torch_and_no_more(words: list[str]) -> None:
    assert loaded(*words) == {"torch", "numpy", "pydantic"}


def test_the_cache_folder_needs_no_library_for_downloads() -> None:
    code = "import sys\nfrom fedproc.cache import cache_folder\nprint(cache_folder())\n"
    code += "assert not {'pooch', 'tqdm.auto'} & set(sys.modules)"
    kept = {name: value for name, value in os.environ.items() if name != "FEDPROC_CACHE"}
    env = {**kept, "XDG_CACHE_HOME": "/tmp/caches"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert sys.platform != "linux" or done.stdout == "/tmp/caches/fedproc\n"
