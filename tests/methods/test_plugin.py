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
EASGD = EXAMPLES / "easgd.py"


def test_an_own_method_from_a_file(own: Path, tmp_path: Path) -> None:
    assert len(EASGD.read_text().splitlines()) < 60
    done = fedproc("run", "--plugin", EASGD, "--help")
    assert "--easgd.rho" in done.stdout and "of the springs" in done.stdout
    flags = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--image-size", "20", "--seeds", "0", "1"]
    words = ["compare", "--plugin", EASGD, "--methods", "fedavg", "easgd", "--easgd.rho", 0.05]
    done = fedproc(*words, "--data", own, *flags, "--out", tmp_path / "cmp")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "cmp" / "easgd" / "seed-1" / "config.json").read_text())
    assert config["easgd"] == {"rho": 0.05, "rate": 0.9} and len(config["plugin_sha256"]) == 64
    assert "easgd" in done.stdout
    done = fedproc("run", "--method", "easgd")
    assert done.returncode == 2 and "--method easgd: expected" in done.stderr


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


def test_easgd_by_hand() -> None:
    easgd = all_methods([EASGD])["easgd"]
    assert "easgd" not in METHODS and plugin_hash("easgd", [EASGD]) is not None
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0])]
    world = World(easgd, clients, [1.0], options={"rho": 0.5, "rate": 0.5})
    # Round 1, lr 0.5: A moves to 0.5, B to 2.5; the server goes from 1 half of the way to 1.5.
    # Round 2 from their own: A: 0.5 - 0.5 (0.5 + 0.5 (0.5 - 1.25)) = 0.4375; B: 2.5 - 0.5 (-1.5 + 0.5 * 1.25) = 2.9375;
    # the server goes from 1.25 half of the way to 1.6875.
    assert [p[0] for p in world.path] == pytest.approx([1.25, 1.46875])
    assert world.client_state(0, "own") == pytest.approx([0.4375])


BAD = """from fedproc.methods.fedavg import FedAvg


def second(sizes):
    return sizes[9]


class Bad(FedAvg):
    name = "bad"

    def logits(self, batch, local):
        return super().logits(batch, local) * second((1, 2))
"""


def test_what_an_own_file_raises_is_said_once_with_its_line(own: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "badplug.py"
    plugin.write_text(BAD)
    flags = ["--data", own, "--clients", "3", "--rounds", "2", "--epochs", "1", "--image-size", "20"]
    done = fedproc("run", "--plugin", plugin, "--method", "bad", *flags, "--out", tmp_path / "run")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and said.count("IndexError") == 1 and "Traceback" not in said
    assert "IndexError: tuple index out of range (badplug.py, line 5)" in done.stderr
    written = (tmp_path / "run" / "result.json").read_text()
    assert "(badplug.py, line 5)" in written and str(tmp_path) not in written
    words = ["compare", "--plugin", plugin, "--methods", "fedavg", "bad", "--seeds", "0", "1", *flags]
    done = fedproc("--debug", *words, "--out", tmp_path / "cmp")
    assert f'File "{plugin}", line 5, in second' in done.stderr and "return sizes[9]" in done.stderr
    assert done.stderr.count("IndexError") == 2  # raised, and named after its hook
