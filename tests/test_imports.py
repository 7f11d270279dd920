"""Which module imports which: every one can be the first, no two rooms import each other, and the protocol stands
alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_every_module_can_be_imported_first() -> None:
    assert "fedproc.methods" in MODULES
    first = "import torch, numpy, pydantic, matplotlib, nvflare.apis.impl.controller\n"
    found = subprocess.run(
        [sys.executable, "-c", first + CODE, *MODULES],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == ""


def test_no_room_imports_in_a_circle_and_the_page_shows_the_graph() -> None:
    script = SOURCE.parent.parent / "scripts" / "import_graph.py"
    found = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_protocol_loads_no_network_lane_or_data_code() -> None:
    modules = sorted(path.stem for path in (SOURCE / "protocol").glob("*.py") if path.stem != "__init__")
    assert "rounds" in modules
    code = f"""
import sys
for name in {modules}:
    __import__(f"fedproc.protocol.{{name}}")
print(" ".join(sorted(n.removeprefix("fedproc.") for n in sys.modules if n.startswith("fedproc."))))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.partition(".")[0] for name in found.stdout.split()}
    assert rooms == {"protocol", "errors", "prototypes", "streams"}
