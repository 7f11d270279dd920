"""Lines with checksums: whatever is done to a file of an interrupted run shows."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from conftest import ToyLibrary, contents, toy_experiment, toy_images, work

from fedproc import InputError, RunError
from fedproc.lanes import choose
from fedproc.runs.lines import append_line, checksum_of, last_checksum, read_lines, rewrite
from fedproc.runs.saved import read_run
from fedproc.runs.schema import MetricsLine
from fedproc.simulation.drive import drive
from fedproc.simulation.session import Session
from fedproc.simulation.watching import Watched


def test_lines_are_chained_and_read_back(tmp_path: Path) -> None:
    path, checksum = tmp_path / "metrics.jsonl", ""
    records = [{"round": r, "test_accuracy": r / 7, "words": 'a "b" \u00fc'} for r in range(1, 5)]
    for record in records:
        checksum = append_line(path, record, checksum)
    assert read_lines(path, MetricsLine) == records
    assert last_checksum(path, MetricsLine) == checksum == checksum_of(records)
    with path.open("a") as file:
        file.write('{"round": 5, "te')  # cut off by a kill
    assert len(read_lines(path, MetricsLine)) == 4
    before = path.read_text().splitlines()[:2]
    rewrite(path, records[:2])
    assert path.read_text().splitlines() == before


def test_one_digit_changed_in_an_interrupted_run_shows(tmp_path: Path) -> None:
    """Before, it gave another result.json in 40 of 40."""
    work(tmp_path / "run", rounds=3, method="fedavg", checkpoint_every=1)
    original = (tmp_path / "run" / "metrics.jsonl").read_text()
    (tmp_path / "run" / "result.json").unlink()
    places = [m.start() for m in re.finditer(r"\d", original) if original[m.start() - 1] != '"']
    chosen = random.Random(0)
    for trial in range(40):
        at = chosen.choice(places)
        digit = str((int(original[at]) + chosen.randint(1, 9)) % 10)
        folder = tmp_path / f"trial-{trial}"
        shutil.copytree(tmp_path / "run", folder)
        (folder / "metrics.jsonl").write_text(original[:at] + digit + original[at + 1 :])
        with pytest.raises(InputError, match=r"metrics\.jsonl: line \d.*; remove .* made again"):
            work(folder, rounds=3, method="fedavg", checkpoint_every=1)
        shutil.rmtree(folder)
    work(tmp_path / "run", rounds=3, method="fedavg", checkpoint_every=1)


def test_lines_of_another_run_are_not_continued(tmp_path: Path) -> None:
    for seed in (0, 1):
        work(tmp_path / str(seed), rounds=3, method="fedavg", model_seed=seed)
        (tmp_path / str(seed) / "result.json").unlink()
    shutil.copy(tmp_path / "1" / "metrics.jsonl", tmp_path / "0" / "metrics.jsonl")
    with pytest.raises(InputError, match="not the lines that the checkpoint of round 3 confirms"):
        work(tmp_path / "0", rounds=3, method="fedavg", model_seed=0)


def test_a_finished_runs_lines_are_those_its_result_was_made_from(tmp_path: Path) -> None:
    work(tmp_path / "run", rounds=2, method="fedavg")
    path = tmp_path / "run" / "metrics.jsonl"
    records = read_lines(path, MetricsLine)
    rewrite(path, [{**records[0], "test_accuracy": 0.9}, records[1]])  # with checksums that are right
    with pytest.raises(InputError, match=r"result\.json: made from other lines"):
        read_run(tmp_path / "run")


def test_folders_of_the_first_format_are_read(tmp_path: Path) -> None:
    work(tmp_path / "run", rounds=2, method="fedproc")
    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    del config["format"], config["checksum"], config["fedproc"]["of"]
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    old = [{name: value for name, value in line.items() if name != "chain"} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    result = json.loads((folder / "result.json").read_text())
    old_result = {name: value for name, value in result.items() if not name.endswith("checksum")}
    (folder / "result.json").write_text(json.dumps(old_result))
    found = read_run(folder)
    assert found is not None and len(found.metrics) == 2 and found.config["fedproc"]["of"] == "clients"
    assert work(folder, rounds=2, method="fedproc").result is not None  # finished: its result is shown again


def test_a_folder_that_was_moved_away_is_not_mixed_with_another(tmp_path: Path) -> None:
    """Two runs' metrics were once found in one file."""
    images = toy_images()
    first = Session(toy_experiment(method="fedavg", rounds=3), ToyLibrary(images))
    first.claim(tmp_path / "run")
    first.open(False)
    (tmp_path / "run").rename(tmp_path / "moved")
    work(tmp_path / "run", images, method="fedavg", rounds=2)
    before = contents(tmp_path / "run")
    executor = choose("serial", 1, 1, [first.setting], 5)
    with pytest.raises(RunError, match="another folder was put in its place"):
        drive([first], executor)
    shutil.rmtree(tmp_path / "run")
    second = Session(toy_experiment(method="fedavg", rounds=3), ToyLibrary(images))
    second.claim(tmp_path / "again")
    second.open(False)
    (tmp_path / "again").rename(tmp_path / "gone")
    with pytest.raises(RunError, match="no longer there"):
        drive([second], executor)
    executor.close()
    assert before["metrics.jsonl"] and not (tmp_path / "again").exists()


def test_the_last_round_is_evaluated_also_where_it_was_passed_without(tmp_path: Path) -> None:
    """`--rounds 7 --eval-every 3` interrupted after round 5, then `--rounds 5`, once reported round 3's accuracy."""

    class Stops:
        def begin(self, *given: object) -> None: ...

        def update(self, run: Watched) -> None:
            if len(run.records) == 5:
                raise KeyboardInterrupt

        def end(self) -> None: ...

    given = {"method": "fedavg", "eval_every": 3}
    session = Session(toy_experiment(rounds=7, checkpoint_every=2, **given), ToyLibrary(toy_images()))
    session.claim(tmp_path / "run")
    session.open(False)
    executor = choose("serial", 1, 1, [session.setting], 5)
    with pytest.raises(KeyboardInterrupt):
        drive([session], executor, Stops())
    session.close()
    executor.close()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    done = work(tmp_path / "run", rounds=5, **given)
    assert "test_accuracy" in done.records[-1] and done.records[-1]["round"] == 5
    work(tmp_path / "whole", rounds=5, **given)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_more_rounds_after_a_last_one_that_was_evaluated_out_of_turn(tmp_path: Path) -> None:
    given = {"method": "fedavg", "eval_every": 3, "sample": 0.4}
    work(tmp_path / "run", rounds=4, **given)
    work(tmp_path / "run", rounds=7, **given)
    work(tmp_path / "whole", rounds=7, **given)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("environment.json", {"lanes": "many"}, r"environment\.json: lanes many: expected a whole number"),
        ("config.json", {"rounds": 2.5}, r"config\.json: rounds 2\.5: expected a whole number"),
        ("config.json", {"lr": "fast"}, r"config\.json: lr fast: expected a number"),
    ],
)
def test_wrong_types_are_named_before_any_work(
    name: str, change: dict[str, object], words: str, tmp_path: Path
) -> None:
    from fedproc import Experiment, run

    given = {"clients": 2, "rounds": 1, "epochs": 1, "batch_size": 512, "device": "cpu", "method": "fedavg"}
    run(Experiment(**given), tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=words):
        run(Experiment(**given), tmp_path)


def test_where_numbers_come_from_is_on_record(tmp_path: Path) -> None:
    from fedproc import Experiment, run
    from fedproc.runs.provenance import source_hash

    given = {"clients": 2, "rounds": 1, "epochs": 1, "batch_size": 512, "device": "cpu", "method": "fedavg"}
    run(Experiment(**given), tmp_path)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["source_sha256"] == source_hash() and len(source_hash()) == 64
    assert found["kernels"] in ("own", "torch")


def test_sources_of_rounds_before_stay_on_record(tmp_path: Path) -> None:
    from fedproc import Experiment, run

    given = {"clients": 2, "epochs": 1, "batch_size": 512, "device": "cpu", "method": "fedavg"}
    run(Experiment(**given, rounds=1), tmp_path)
    path = tmp_path / "environment.json"
    before = {"commit": "a" * 40, "source_sha256": "b" * 64}
    path.write_text(json.dumps({**json.loads(path.read_text()), **before}))
    run(Experiment(**given, rounds=2), tmp_path)
    found = json.loads(path.read_text())
    assert found["earlier"] == [before] and found["source_sha256"] != "b" * 64


def test_other_kernels_are_not_mixed_in_silence(tmp_path: Path) -> None:
    from fedproc.runs.provenance import environment
    from fedproc.simulation.drive import executor_for, which_kernels

    session = Session(toy_experiment(method="fedavg", rounds=3), ToyLibrary(toy_images()))
    session.claim(tmp_path / "run")
    session.open(False)
    assert session.folder is not None
    with executor_for([session]) as first:
        layout = (first.name, first.lanes, first.threads, "fp32")
    now = which_kernels(session.device)
    other = "torch" if now == "own" else "own"
    session.folder.write_environment({**environment(session.device, *layout), "kernels": other})
    with executor_for([session]):
        assert session.notes == [f"kernels was {other}, is {now}"]
    session.close()
