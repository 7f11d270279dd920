#!/usr/bin/env python3
"""Copy what finished runs found, without their weights, to where it is kept: docs/results.

    python scripts/keep_results.py SOURCE TARGET

Every run folder below SOURCE whose run is finished or diverged becomes TARGET/<its path below SOURCE> with config,
metrics, result, environment, partition and the last confusion matrix. Where the data lay and where the run was written
say nothing and become DIR.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PLACES = ("--data-dir", "--out", "--import")


def without_places(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "data_dir": "DIR"} if config.get("data_dir") else config


def without_paths(environment: dict[str, Any]) -> dict[str, Any]:
    words = environment["command"]
    kept = ["DIR" if before in PLACES else word for before, word in zip(["", *words], words, strict=False)]
    return {**environment, "command": kept}


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:])
    for result in sorted(source.rglob("result.json")):
        home = target / result.parent.relative_to(source)
        home.mkdir(parents=True, exist_ok=True)
        for name, change in (("config.json", without_places), ("environment.json", without_paths)):
            found = json.loads((result.parent / name).read_text(encoding="utf-8"))
            (home / name).write_text(json.dumps(change(found), indent=2) + "\n", encoding="utf-8")
        for name in ("metrics.jsonl", "result.json", "partition.json"):
            if (result.parent / name).exists():
                (home / name).write_bytes((result.parent / name).read_bytes())
        if (result.parent / "confusion.jsonl").exists():
            *_, last = (result.parent / "confusion.jsonl").read_text(encoding="utf-8").splitlines()
            (home / "confusion.jsonl").write_text(last + "\n", encoding="utf-8")
        print(home)


if __name__ == "__main__":
    main()
