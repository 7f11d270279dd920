"""Every module can be the first that is imported: a person's own method begins with `from fedproc.methods ...`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedproc

SOURCE = Path(fedproc.__file__).parent
MODULES = [
    ".".join(("fedproc", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem not in ("__main__",)
]
CODE = """
import sys, os
for name in sys.argv[1:]:
    child = os.fork()  # torch comes up once; what is ours is imported anew in each child
    if child == 0:
        try:
            __import__(name)
        except Exception as error:  # a ring of imports may end in others than ImportError
            if getattr(error, "name", None) != "triton":
                print(name, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_every_module_can_be_imported_first() -> None:
    assert "fedproc.methods" in MODULES
    found = subprocess.run(
        [sys.executable, "-c", "import torch, numpy, pydantic, matplotlib\n" + CODE, *MODULES],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == ""
