"""What a command loads before it answers: heavy libraries only where they are needed."""

from __future__ import annotations

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
