"""One server and two sites as real processes: from start-up kits to a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cluster import Cluster, cluster, fedproc, psutil
from places import CLASSES, simulated, write_all
from safetensors.torch import load_file

from fedproc.simulation.drive import run


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("federation"), ("a", "b")) as made:
        yield made


def test_two_sites_train_what_the_simulator_trains_and_each_sees_its_gain(two: Cluster) -> None:
    said = two.run("out", method="fedproc", fine_tune=2)
    out = two.folder / "out"
    everything = write_all(two.data, two.folder / "all.csv")
    run(simulated(everything, method="fedproc", dtype="float32", lr=0.01), two.folder / "simulated")
    here, there = load_file(out / "model.safetensors"), load_file(two.folder / "simulated/model.safetensors")
    assert set(here) == set(there) and all(torch.equal(here[name], there[name]) for name in here)
    assert "round 3 of 3: 2 sites" in said and "federated gain" in said
    alone = json.loads((out / "alone/sites.jsonl").read_text().splitlines()[-1])["sites"]
    assert set(alone) == {"a", "b"}
    tuned = json.loads((out / "fine-tuned/config.json").read_text())
    assert (tuned["method"], tuned["rounds"]) == ("solo", 2)
    # the result is a run like any other
    image = next((two.folder / "images/a").glob("test-cat-*.png"))
    table = two.folder / "predictions.csv"
    assert fedproc("predict", str(out), str(image), "--out", str(table)).returncode == 0
    assert any(name in table.read_text() for name in CLASSES)
    page = fedproc("report", str(out), "--out", str(two.folder / "page"))
    assert page.returncode == 0, page.stderr
    assert "fedproc" in (two.folder / "page/index.html").read_text()
    # the same command on what is finished says the same; another value is refused
    again = fedproc(*two.words("out", method="fedproc", fine_tune=2))
    assert again.returncode == 0 and "accuracy over all" in again.stdout
    other = fedproc(*two.words("out", method="fedproc", lr=0.1))
    assert other.returncode == 2 and "--lr 0.1: the run in" in other.stderr
    # what left a site is on its log, and the site's console shows it
    audit = [json.loads(line)["what"] for line in (two.kit("a") / "audit.jsonl").read_text().splitlines()]
    assert audit.count("train") == 8 and "class means" in audit
    assert "round 3: train in" in two.sites["a"].said and "connected to the server as a" in two.sites["a"].said


def test_status_shows_who_is_there(two: Cluster) -> None:
    found = fedproc("federate", "status", str(two.kit("admin")))
    assert found.returncode == 0 and found.stdout.count(" connected") == 2


@pytest.mark.slow
def test_nothing_stays_behind(tmp_path: Path) -> None:
    with cluster(tmp_path, ("a",)) as made:
        mine = [p.pid for running in (made.server, made.sites["a"]) for p in running.family()]
        assert len(mine) == 5
    left = [pid for pid in mine if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not left
