#!/usr/bin/env python3
"""Copy what finished runs found, without their weights, to where it is kept: docs/results.

    python scripts/keep_results.py SOURCE TARGET [COMMIT]

Every run folder below SOURCE whose run is finished or diverged becomes TARGET/<its path below SOURCE> with config,
metrics, result, environment, partition and the last confusion matrix; a table or figure of `fedproc paper` is copied
but for the paths of its runs. Where the data lay and where the run was written say nothing and become DIR. Of what
`fedproc compare` wrote, TARGET/comparison.json says what all runs in TARGET come to, with those that earlier calls put
there; what `fedproc sweep` wrote beside its runs is copied. COMMIT is the one that the runs were made with, for
machines without git: it is refused where its sources have another hash than a run recorded, and goes on record
otherwise.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from fedproc.comparison.compare import Comparison, Row, rows_in, summary, usual_order, usual_reference
from fedproc.files import write_json
from fedproc.runs.lines import append_line, read_lines
from fedproc.runs.provenance import hash_of
from fedproc.runs.schema import ConfusionLine, content_checksum

SWEPT = (
    "ranking.json",
    "ranking.csv",
    "ranking.md",
    "options.csv",
    "options.md",
    "options.png",
    "options.svg",
    "winners.toml",
)
PLACES = ("--data-dir", "--out", "--import")


def without_places(config: dict[str, Any]) -> dict[str, Any]:
    there = {"data_dir": "DIR"} if config.get("data_dir") else {}
    if config.get("plugin"):
        there["plugin"] = [Path(path).name for path in config["plugin"]]
    if config.get("partition_file"):
        there["partition_file"] = Path(config["partition_file"]).name
    return {**config, **there}


def without_paths(environment: dict[str, Any]) -> dict[str, Any]:
    words = environment["command"]
    shown = ["DIR" if before in PLACES else word for before, word in zip(["", *words], words, strict=False)]
    shown = [Path(word).name if word.startswith("/") else word for word in shown]
    return {**environment, "command": shown}


def made_with(revision: str) -> tuple[str, str]:
    """A commit's full name and the hash of its sources."""
    name = subprocess.run(["git", "rev-parse", revision], check=True, capture_output=True, text=True).stdout.strip()
    packed = subprocess.run(["git", "archive", name, "src/fedproc"], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
        return name, hash_of(Path(place) / "src" / "fedproc")


def expect_sources(run: Path, name: str, digest: str) -> None:
    """Refuse a commit that a run was not made with."""
    if json.loads((run / "environment.json").read_text(encoding="utf-8"))["source_sha256"] != digest:
        raise SystemExit(f"{run}: its sources are not those of {name}")


def compared(folder: Path) -> dict[str, Any]:
    """What the runs FOLDER/<label>/seed-<n> come to, methods in their usual order, variants after them."""
    found = rows_in(folder)
    order = usual_order(list(found))
    return summary(Comparison([Row.of(label, found[label]) for label in order], folder, usual_reference(order)))


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:3])
    commit = made_with(sys.argv[3]) if len(sys.argv) > 3 else None
    for result in sorted(source.rglob("result.json")):
        home = target / result.parent.relative_to(source)
        if commit is not None:
            expect_sources(result.parent, *commit)
        home.mkdir(parents=True, exist_ok=True)
        for name, change in (("config.json", without_places), ("environment.json", without_paths)):
            found = json.loads((result.parent / name).read_text(encoding="utf-8"))
            if name == "environment.json" and commit is not None:
                found["commit"] = commit[0]
            kept = change(found)
            if "checksum" in kept:
                kept["checksum"] = content_checksum(kept)
            (home / name).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        for name in ("metrics.jsonl", "partition.json"):
            if (result.parent / name).exists():
                (home / name).write_bytes((result.parent / name).read_bytes())
        kept = json.loads(result.read_text(encoding="utf-8"))
        if "confusion_checksum" in kept:  # of lines that are not kept
            kept = {name: value for name, value in kept.items() if name not in ("confusion_checksum", "sites_checksum")}
            kept["checksum"] = content_checksum(kept)
        write_json(home / "result.json", kept)
        if (result.parent / "confusion.jsonl").exists():
            *_, last = read_lines(result.parent / "confusion.jsonl", ConfusionLine)
            (home / "confusion.jsonl").unlink(missing_ok=True)
            append_line(home / "confusion.jsonl", last, "")
        print(home)
    for exhibit in sorted(source.rglob("exhibit.json")):
        home = target / exhibit.parent.relative_to(source)
        home.mkdir(parents=True, exist_ok=True)
        for file in exhibit.parent.iterdir():
            (home / file.name).write_bytes(file.read_bytes())
        write_json(home / "exhibit.json", {**json.loads(exhibit.read_text(encoding="utf-8")), "runs": {}})
        print(home)
    if (source / "sweep.json").exists():
        for name in ("sweep.json", "trials.json", *SWEPT):
            if (source / name).exists():
                (target / name).write_bytes((source / name).read_bytes())
    if (source / "comparison.json").exists():
        write_json(target / "comparison.json", compared(target))


if __name__ == "__main__":
    main()
