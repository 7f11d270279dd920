"""What counts as the source of a class: everything of one's own that it is made of, and nothing else."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
from cells import cell
from torch import nn

from fedproc import InputError
from fedproc.networks.own import OwnEncoder, importable
from fedproc.own_code import packed, sha256_of, unpacked

HELPER = "SCALE = 2\n\n\ndef double(x):\n    return SCALE * x\n"
BASE = "class Base(FedAvg):\n    name = 'base'\n\n    def _own(self):\n        return 1\n"
MINE = "class Mine(Base):\n    name = 'mine'\n\n    def _also(self):\n        return double(3)\n"
IMPORTS = "from fedproc.methods.fedavg import FedAvg\n"


def hashed(*parts: str) -> str:
    return sha256_of(cell(IMPORTS + "\n".join(parts))["Mine"])


def test_the_same_cells_run_again_are_the_same() -> None:
    assert hashed(HELPER, BASE, MINE) == hashed(HELPER, BASE, MINE)
    assert hashed(HELPER, BASE, MINE) == hashed("x = 1\n", HELPER, "def other():\n    return 0\n", BASE, MINE)


@pytest.mark.parametrize(
    "changed",
    [
        (HELPER, BASE, MINE.replace("double(3)", "double(4)")),
        (HELPER, BASE.replace("return 1", "return 2"), MINE),
        (HELPER.replace("SCALE * x", "SCALE + x"), BASE, MINE),
        (HELPER.replace("SCALE = 2", "SCALE = 3"), BASE, MINE),
        (HELPER, BASE, MINE.replace("name = 'mine'\n", "name = 'mine'\n    merge = 'normalised'\n")),
    ],
)
def test_a_change_in_anything_it_is_made_of_is_seen(changed: tuple[str, ...]) -> None:
    assert hashed(*changed) != hashed(HELPER, BASE, MINE)


def test_without_source_the_compiled_code_counts() -> None:
    def hidden(text: str) -> str:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(text, space)
        return sha256_of(space["f"])

    assert hidden("def f(x):\n    return x + 1\n") == hidden("def f(x):\n    return x + 1\n")
    assert hidden("def f(x):\n    return x + 1\n") != hidden("def f(x):\n    return x + 2\n")


def test_an_encoder_is_known_by_its_source_its_settings_and_its_weights() -> None:
    made = cell("from torch import nn\n\nclass Enc(nn.Linear):\n    pass\n")["Enc"]
    one, other = made(2, 3), made(2, 3)
    assert OwnEncoder.of(one) == OwnEncoder.of(one) != OwnEncoder.of(other)
    other.load_state_dict(one.state_dict())
    assert OwnEncoder.of(one) == OwnEncoder.of(other)
    assert OwnEncoder.of(functools.partial(made, 2, 3)) != OwnEncoder.of(functools.partial(made, 2, 4))
    assert OwnEncoder.of(one).name == "__main__:Enc"
    assert OwnEncoder.of(one).made() is not one
    assert importable(nn.Flatten) == "torch.nn.modules.flatten:Flatten" and importable(made) is None


def test_what_workers_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cell(IMPORTS + HELPER + BASE + MINE)["Mine"]
    assert unpacked(packed(mine, "--method mine")).name == "mine"
    with pytest.raises(InputError, match=r"network: cannot be sent to workers .* take workers 1"):
        packed(lambda file=sys.stdout: file, "--network")
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InputError, match="pip install cloudpickle"):
        packed(mine, "--method mine")
    assert unpacked(packed(nn.Flatten, "--network")) is nn.Flatten
