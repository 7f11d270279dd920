"""Clients whose answers are refused are told of everywhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

from conftest import work
from rich.console import Console

from fedproc.report.contents import write_report
from fedproc.runs.lines import rewrite
from fedproc.runs.result import refusals, refusals_in_words
from fedproc.runs.schema import content_checksum
from fedproc.watchers.console import Display

RECORDS = [
    {"round": 1, "refused": {"3": "params is not finite", "4": "no answer"}},
    {"round": 2, "closing": {"refused": {"3": "params is not finite"}}},
]


def test_refusals_are_counted() -> None:
    reasons = {"params is not finite": 2, "no answer": 1}
    assert refusals(RECORDS) == {"refused": {"answers": 3, "clients": 2, "reasons": reasons}}
    assert refusals_in_words(RECORDS) == "3 answers of 2 clients refused: params is not finite (2); no answer (1)"
    assert refusals([{"round": 1}]) == {} and refusals_in_words([{"round": 1}]) == ""


def test_terminal_result_and_page_tell(tmp_path: Path) -> None:
    """A learning rate at which some client's answer is not finite while others go on."""
    session = work(tmp_path / "run", rounds=3, lr=1.5, method="fedavg", epochs=2)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    if not any("refused" in record for record in records):  # the same, put on record by hand
        records[0]["refused"] = {"2": "params is not finite"}
        for record in records:
            record.pop("chain")
        confirmed = rewrite(tmp_path / "run" / "metrics.jsonl", records)
        path = tmp_path / "run" / "result.json"
        result = {**json.loads(path.read_text()), "metrics_checksum": confirmed, **refusals(records)}
        path.write_text(json.dumps({**result, "checksum": content_checksum(result)}))
        session.records = records[:1]
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text(encoding="utf-8")
    assert "refused: params is not finite" in page
    said = io.StringIO()
    display = Display(Console(file=said, width=200))
    session.result = None
    display.begin([session], "", [])
    display.update(session)
    display.end()
    assert "refused: client" in said.getvalue()
