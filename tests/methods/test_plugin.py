"""Methods of one's own: from a file, and what becomes of one that breaks the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import fedproc
from quadratics import Client, World

from fedproc import InputError
from fedproc.methods import METHODS
from fedproc.methods.plugin import all_methods, plugin_hash

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
FEDDYN, BOTH = EXAMPLES / "feddyn.py", EXAMPLES / "both.py"


def test_an_own_method_from_a_file(own: Path, tmp_path: Path) -> None:
    assert len(FEDDYN.read_text().splitlines()) < 60
    done = fedproc("run", "--plugin", FEDDYN, "--help")
    assert "--feddyn.strength" in done.stdout and "of the bending" in done.stdout
    flags = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--image-size", "20", "--seeds", "0", "1"]
    words = ["compare", "--plugin", FEDDYN, "--methods", "fedavg", "feddyn", "--feddyn.strength", 0.05]
    done = fedproc(*words, "--data", own, *flags, "--out", tmp_path / "cmp")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "cmp" / "feddyn" / "seed-1" / "config.json").read_text())
    assert config["feddyn"] == {"strength": 0.05} and len(config["plugin_sha256"]) == 64
    assert "feddyn" in done.stdout
    done = fedproc("run", "--method", "feddyn")
    assert done.returncode == 2 and "--method feddyn: expected" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("x = (", "SyntaxError"),
        ("1/0", "ZeroDivisionError"),
        ("x = 1", "defines no method"),
        (
            "from fedproc.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'fedprox'\n",
            "has the name of one of ours",
        ),
    ],
)
def test_plugins_that_are_none(content: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"plugin .*mine\.py") as caught:
        all_methods([path])
    assert words in str(caught.value)


def test_feddyn_by_hand() -> None:
    feddyn = all_methods([FEDDYN])["feddyn"]
    assert "feddyn" not in METHODS and plugin_hash("feddyn", [FEDDYN]) is not None
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0])]
    world = World(feddyn, clients, [1.0], options={"strength": 0.5})
    # Round 1, lr 0.5: A moves to 0.5, B to 2.5; they moved by -0.5 and 1.5, so h = -0.5 * 1/2 = -0.25 and the model
    # is 1.5 + 0.25/0.5 = 2; h_A = 0.25, h_B = -0.75.
    # Round 2: A: 2 - 0.5 (2 - 0.25) = 1.125; B: 2 - 0.5 (-2 + 0.75) = 2.625; they moved by -0.875 and 0.625, so
    # h = -0.25 + 0.0625.
    assert [p[0] for p in world.path] == pytest.approx([2.0, 1.875 + 0.1875 / 0.5])
    assert world.client_state(0, "h") == pytest.approx([0.25 + 0.5 * 0.875])
