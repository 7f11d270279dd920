#!/usr/bin/env python3
"""Ask for known weaknesses of every package that constraints.txt pins, with pip-audit in an environment of its own.

    python scripts/check_dependencies.py

Fails if one is known, or if the packages that are installed do not fit together. Where nobody can be asked (offline)
it says so and does not fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED: dict[str, str] = {}  # identities of weaknesses that do not concern us, each with the reason
INSTALLING, ASKING = 180, 300  # seconds


def main() -> int:
    fits = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    if fits.returncode != 0:
        print(f"packages do not fit together:\n{fits.stdout}")
        return 1
    with tempfile.TemporaryDirectory(prefix="fedproc-audit-") as folder:
        try:
            found = _asked(Path(folder))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"dependencies: nobody could be asked for known weaknesses ({type(error).__name__})")
            return 0
    skipped = [each for each in found if "skip_reason" in each]
    print(f"dependencies: {len(found) - len(skipped)} of {len(found)} packages were looked up")
    if len(skipped) == len(found):
        print("no database of weaknesses can be reached from here")
    known = [(each, one) for each in found for one in each.get("vulns", []) if one["id"] not in ACCEPTED]
    for each, one in known:
        better = ", ".join(one.get("fix_versions") or []) or "no version yet"
        print(f"{each['name']} {each['version']}: {one['id']}, mended in {better}")
    return 1 if known else 0


def _asked(folder: Path) -> list[dict[str, list[dict[str, list[str]]]]]:
    venv.create(folder, with_pip=True)
    python, plain = folder / "bin" / "python", {"capture_output": True, "text": True}
    subprocess.run([python, "-m", "pip", "install", "-q", "pip-audit"], check=True, timeout=INSTALLING, **plain)
    words = ["-m", "pip_audit", "--no-deps", "--disable-pip", "-f", "json", "-r", str(ROOT / "constraints.txt")]
    said = subprocess.run([python, *words], timeout=ASKING, **plain)
    return list(json.loads(said.stdout)["dependencies"])


if __name__ == "__main__":
    raise SystemExit(main())
