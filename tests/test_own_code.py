"""What counts as the source of a class: everything of one's own that it is made of, and nothing else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


USES = "class Mine(FedAvg):\n    name = 'mine'\n\n    def _uses(self):\n        return VALUE\n"
DEFAULT = "def helper(x, factor=SCALE, *, more=SCALE):\n    return factor * more * x\n\nVALUE = helper\n"
WRAPS = """
import functools

def twice(function):
    @functools.wraps(function)
    def wrapper(*given):
        return 2 * function(*given)
    return wrapper

@twice
def VALUE(x):
    return x + 1
"""
CACHED = "import functools\n\n@functools.cache\ndef VALUE(x):\n    return x + 1\n"
CONFIG = "import dataclasses\n\n@dataclasses.dataclass\nclass C:\n    x: float\n\nVALUE = C(1.5)\n"
FACTORY = """
from fedproc.methods.method import Options
from pydantic import Field

class VALUE(Options):
    x: tuple[int, ...] = Field(default_factory=lambda: (1, 2))
"""


@pytest.mark.parametrize(
    ("before", "old", "new"),
    [
        ("SCALE = 2\n" + DEFAULT, "SCALE = 2", "SCALE = 3"),
        ("SCALE = 2\n" + DEFAULT.replace(", *, more=SCALE", ", more=1"), "SCALE = 2", "SCALE = 3"),
        (WRAPS, "2 * function", "3 * function"),
        (WRAPS, "x + 1", "x + 2"),
        (CACHED, "x + 1", "x + 2"),
        ("import torch\nVALUE = torch.zeros(3)\nVALUE[0] = 1\n", "= 1", "= 2"),
        ("import torch\nVALUE = torch.zeros(2000)\nVALUE[1000] = 1\n", "= 1", "= 2"),
        ("import torch\nVALUE = torch.zeros(4, dtype=torch.bfloat16)\n", "bfloat16", "float16"),
        ("import numpy as np\nVALUE = np.arange(6).reshape(2, 3)\n", "2, 3", "3, 2"),
        ("import numpy as np\nVALUE = np.zeros(2000)\nVALUE[1000] = 1\n", "= 1", "= 2"),
        ("def f(x):\n    return x\n\nVALUE = {'f': [f]}\n", "return x", "return -x"),
        ("f, g = (lambda x: x + 1), (lambda x: x + 2)\nVALUE = [f, g]\n", "[f, g]", "[g, f]"),
        ("import functools\n\ndef f(x, y):\n    return x\n\nVALUE = functools.partial(f, 1)\n", "f, 1", "f, 2"),
        (CONFIG, "1.5", "2.5"),
        (FACTORY, "(1, 2)", "(1, 3)"),
        ("VALUE = {1, 2}\n", "2}", "3}"),
    ],
)
def test_a_change_behind_a_name_is_seen(before: str, old: str, new: str) -> None:
    assert old in before
    assert hashed(before, USES) == hashed(before, USES) != hashed(before.replace(old, new), USES)


def test_large_arrays_count_to_their_last_number() -> None:
    one = np.zeros(5_000_001, np.float32)
    other = one.copy()
    other[-1] = 1
    assert sha256_of(one) == sha256_of(one.copy()) != sha256_of(other)
    assert sha256_of(torch.from_numpy(one)) != sha256_of(torch.from_numpy(other))
    for odd in (torch.tensor(3.0), torch.zeros(0), torch.ones(3).to_sparse(), torch.ones(2, 3).T, np.array([{}, len])):
        assert len(sha256_of(odd)) == 64


def test_a_list_that_holds_itself_and_functions_that_name_each_other_have_an_end() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert sha256_of(ring) == sha256_of(ring) != sha256_of([1, [1]])
    both = "def f(x):\n    return g(x)\n\ndef g(x):\n    return f(x)\n\nVALUE = f\n"
    assert hashed(both, USES) == hashed(both, USES) != hashed(both.replace("g(x)", "g(-x)", 1), USES)


def test_a_lambda_is_its_own_part_of_the_line() -> None:
    one, other = (sha256_of(cell(f"{text}\n")["f"]) for text in ("f = lambda x: x + 1", "z, f = 3, lambda x: x + 1"))
    pair = cell("f, g = (lambda x: x + 1), (lambda x: x + 2)\n")
    assert one == other == sha256_of(pair["f"]) != sha256_of(pair["g"])


SAME = """
def f(x):
    return x

def g(x):
    return x in {'a', 'bc', 'def', 'ghij', 'klmno'}

WORDS = {'a', 'bc', 'def', 'ghij', 'klmno', 'pqrstu'}
FROZEN = frozenset(WORDS)
NESTED = {'names': [WORDS]}
OBJECTS = {'f': f, 'g': [g, (f, len)], 'h': {f, g}, 'odd': object()}

def words(x, y=WORDS):
    return WORDS

def frozen(x):
    return FROZEN

def nested(x):
    return NESTED

def objects(x):
    return OBJECTS
"""


def test_the_same_in_another_process_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(SAME)
    code = """
import same
from fedproc.own_code import sha256_of
hidden = {}
exec(open("same.py").read(), hidden)  # of which Python does not know the source
for name in ("g", "words", "frozen", "nested", "objects"):
    print(name, sha256_of(getattr(same, name)), sha256_of(hidden[name]))
"""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
        ).stdout.splitlines()
        for seed in ("1", "3")
    )  # fmt: skip
    assert len(first) == 5 and first == second


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
