"""The attacks, each in a process of its own (they fork): seconds of all in `make test`, minutes in .ci/run. Both always
draw the same; `everything.py`, run by hand, draws anew.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = [
    "kills",
    "disks",
    "damage",
    "payloads",
    "configs",
    "commands",
    "run-files",
    "images",
    "archives",
    "models",
    "figures",
]
MINUTES = {"kills": 2.0, "disks": 1.0, "damage": 2.5, "commands": 1.0}  # with the others ten together
SEED = "17"


def attack(*words: str, script: str = "everything.py") -> None:
    command = [sys.executable, str(HERE / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=1200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]


def test_a_moment_of_every_attack() -> None:
    attack("--seed", SEED, "--minutes", "0.1")


@pytest.mark.attack
@pytest.mark.parametrize("name", NAMES)
def test_minutes_of_an_attack(name: str) -> None:
    attack(name, "--seed", SEED, "--minutes", str(MINUTES.get(name, 0.5)))


@pytest.mark.attack
def test_nothing_grows() -> None:
    attack("--rounds", "200", script="soak.py")
