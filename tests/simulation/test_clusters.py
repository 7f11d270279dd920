"""What is asked of the folder that the nodes of a cluster share, and jobs as workers."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import contents, toy_experiment

from fedproc import InputError
from fedproc.runs.lock import Lock
from fedproc.simulation.drive import run_all
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.preparation import Library
from fedproc.simulation.watching import Nobody
from fedproc.simulation.workers.choice import parsed
from fedproc.simulation.workers.cluster import (
    Cluster,
    expect_locks,
    expect_seen,
    file_system,
    show_folder,
    wait_for_locks,
)  # fmt: skip
from fedproc.simulation.workers.distant import Job
from fedproc.simulation.workers.run import _Driver, run_many
from fedproc.simulation.workers.slurm_cluster import SlurmJobs

GIVEN = {"clients": 3, "min_size": 5, "rounds": 3, "epochs": 1, "batch_size": 16, "device": "cpu"}
MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / {0} rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / {0}/with\\040space rw - tmpfs tmpfs rw
"""


def test_a_cluster_is_named_with_its_address() -> None:
    assert parsed("auto", "ray") == Cluster("ray")
    assert parsed("3", "ray:10.0.0.1:6379", True) == Cluster("ray", "10.0.0.1:6379", 3, True)
    assert str(parsed("auto", "slurm:gpu")) == "slurm:gpu"
    for word, said in (("dask", "expected ray"), ("ray://host:1", "on a node of the cluster")):
        with pytest.raises(InputError, match=said):
            parsed("auto", word)
    with pytest.raises(InputError, match="is for cluster"):
        parsed("auto", None, True)


def test_locks_on_a_network_file_system_need_somebodys_word(tmp_path: Path) -> None:
    mounts, home = tmp_path / "mountinfo", tmp_path / "home"
    (home / "with space").mkdir(parents=True)
    mounts.write_text(MOUNTS.format(home))
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(home / "not" / "there" / "yet", mounts) == "nfs4"
    assert file_system(home / "with space" / "out", mounts) == "tmpfs"
    assert file_system(home, tmp_path / "no such file") == ""
    with pytest.raises(InputError, match=r"lies on nfs4.*shared_lock"):
        expect_locks(home / "out", False, mounts)
    expect_locks(home / "out", True, mounts)
    expect_locks(tmp_path, False, mounts)


def test_a_node_that_sees_another_folder_is_refused(tmp_path: Path) -> None:
    word = show_folder(tmp_path / "workers")
    expect_seen(tmp_path / "workers", word, "here")
    for other in (tmp_path / "elsewhere", tmp_path / "workers"):
        with pytest.raises(InputError, match="node there does not see"):
            expect_seen(other, "another" if other.exists() else word, "there")


def test_a_folder_is_waited_for_until_it_is_free_or_it_takes_too_long(tmp_path: Path) -> None:
    held = Lock(tmp_path)
    began = time.monotonic()
    wait_for_locks([tmp_path, tmp_path / "not there"], 0.6)
    assert 0.5 < time.monotonic() - began < 5
    held.release()
    wait_for_locks([tmp_path], 60.0)
    assert time.monotonic() - began < 10


def test_a_cluster_needs_a_folder(pictures: Path) -> None:
    with pytest.raises(InputError, match="needs out"):
        run_many({"a": (toy_experiment(**GIVEN, data=str(pictures)), None)}, Cluster("ray"), None)


@pytest.mark.slow
def test_jobs_of_submitit_train_what_one_process_trains(pictures: Path, tmp_path: Path) -> None:
    """With its local executor, whose jobs are processes of this machine. What is not seen here is Slurm itself."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    out = tmp_path / "out"
    both = {
        where: {
            f"fedavg/seed-{seed}": (toy_experiment(**GIVEN, data=str(pictures), seed=seed), where / str(seed))
            for seed in (0, 1)
        }
        for where in (tmp_path / "alone", out)
    }
    run_all(both[tmp_path / "alone"])
    jobs = SlurmJobs(Cluster("slurm"), "local")
    with ExitStack() as ends:
        driver = _Driver(both[out], Library(), out / "workers", ends)
        choice = driver.choose_on(jobs, Cluster("slurm", workers=2), False)
        word = show_folder(out / "workers")
        done = driver.run(choice, False, Nobody(), Interrupt(), lambda place: Job(jobs, place, out / "workers", word))
    assert [len(run.metrics) for run in done] == [3, 3]
    for seed in ("0", "1"):
        assert contents(out / seed) == contents(tmp_path / "alone" / seed)
    events = json.loads((out / "workers" / "workers.json").read_text())["events"]
    assert [event["event"] for event in events].count("done") == 2
    assert not list((out / "workers").glob("job-*"))
