"""The losses' Triton kernels compile for GPUs that are not here; elsewhere they are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fedproc.kernels import losses

FLOATS, BYTES, WORDS = "*fp32", "*u8", "*i64"

def compiled(kernel, given, numbers, warps):
    source = ASTSource(kernel, {**given, **dict.fromkeys(numbers, "constexpr")}, numbers)
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    assert triton.compile(source, target=target, options={"num_warps": warps}).asm["cubin"]

for shared in (False, True):
    for more in (False, True):
        flags = {"SHARED": shared, "OFFSET": more, "MASK": shared, "WEIGHT": more, "BM": 16, "BK": 16, "BLOCK": 64}
        said = {"offset": FLOATS, "mask": BYTES, "weight": FLOATS, "loss": FLOATS}
        ends = {"slope": FLOATS, "B": "i32", "K": "i32"}
        compiled(losses._cross_entropy, {"logits": FLOATS, "labels": WORDS, **said, **ends}, flags, 2)
        given = {"z": FLOATS, "labels": WORDS, "prototypes": FLOATS, "known": BYTES, **said, "counted": BYTES}
        given |= {"slope": FLOATS, "inverse_tau": "fp32", "B": "i32", "K": "i32"}
        for product in ("tf32", "tf32x3"):
            compiled(losses._contrast, given, {**flags, "Q": 256, "SHORT": False, "PRODUCT": product}, 4)
sums = {"sums": "*fp64", "count": "*fp64", "active": BYTES, "first": FLOATS, "second": FLOATS}
for terms in (1, 2):
    flags = {"TERMS": terms, "WEIGHT1": True, "WEIGHT2": True, "ACTIVE": True, "BLOCK": 64}
    compiled(losses._note_shares, {**sums, "weight1": FLOATS, "weight2": FLOATS, "B": "i32"}, flags, 1)
print("all")
"""


@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_losses(capability: str) -> None:
    here = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-c", PROGRAM, capability]
    done = subprocess.run(words, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.split() == ["all"], done.stderr
