"""Processes killed, networks cut, strangers at the door: a run over the network comes to its end all the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cluster import Cluster, Running, cluster, fedproc, free_port, quiet, until
from places import CLASSES, simulated, write_all, write_server_test
from safetensors.torch import load_file
from test_driver import WRONG

from fedproc.federate.jobs import write_job
from fedproc.simulation.drive import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("faults")]
LONGER = {"rounds": 30, "epochs": 60, "method": "scaffold", "no_alone": True}
LONG = {"rounds": 8, "epochs": 60, "method": "scaffold", "no_alone": True}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("federation"), ("a", "b", "c")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(three: Cluster) -> Path:
    """What the simulator makes of LONG."""
    everything = write_all(three.data, three.folder / "all.csv")
    given = {name: value for name, value in LONG.items() if name != "no_alone"}
    run(simulated(everything, dtype="float32", lr=0.01, **given), three.folder / "undisturbed")
    return three.folder / "undisturbed"


def metrics(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def expect_whole(out: Path, undisturbed: Path | None = None, rounds: int = 8) -> list[dict[str, object]]:
    """All rounds once, in order; and where nobody missed one, the simulator's weights."""
    records = metrics(out)
    assert [record["round"] for record in records] == list(range(1, rounds + 1))
    assert json.loads((out / "result.json").read_text())["status"] == "finished"
    if undisturbed is not None:
        here, there = load_file(out / "model.safetensors"), load_file(undisturbed / "model.safetensors")
        assert all(torch.equal(here[name], there[name]) for name in here)
    return records


def in_round(started: Running, number: int) -> None:
    """Wait until a round is done, so that the next is under way."""
    until(lambda: f"round {number} of" in started.said or started.process.poll() is not None, 120)
    assert started.process.poll() is None, started.said
    time.sleep(0.5)


def finish(started: Running, seconds: float = 240) -> str:
    assert started.process.wait(seconds) == 0, started.said
    return started.said


def test_scaffold_agrees_with_the_simulator(three: Cluster, undisturbed: Path) -> None:
    three.run("calm", **LONG)
    expect_whole(three.folder / "calm", undisturbed)


def test_a_killed_trainer_is_started_again_and_the_round_is_not_lost(three: Cluster, undisturbed: Path) -> None:
    started = three.start("trainer", **LONG)
    in_round(started, 2)
    trainer = three.sites["b"].find("fedproc.federate.trainer")
    assert trainer is not None
    trainer.kill()
    finish(started)
    expect_whole(three.folder / "trainer", undisturbed)
    assert "the trainer process ended (killed by SIGKILL); starting it again" in three.sites["b"].said


def test_a_killed_site_is_back_at_the_next_segment(three: Cluster) -> None:
    started = three.start("site", **LONGER)
    in_round(started, 2)
    three.sites["b"].kill()
    time.sleep(1)
    three.start_site("b")
    said = finish(started)
    records = expect_whole(three.folder / "site", rounds=30)
    assert records[-1]["clients"] == 3, said
    assert 1 <= sum(record["clients"] == 2 for record in records) < 28
    assert "b back; a new segment begins" in said


def test_a_killed_job_process_of_a_site_costs_a_segment(three: Cluster) -> None:
    started = three.start("job", **LONG)
    in_round(started, 2)
    job = three.sites["c"].find("worker_process")
    assert job is not None
    job.kill()
    finish(started)
    records = expect_whole(three.folder / "job")
    assert records[-1]["clients"] == 3


def test_a_killed_server_continues_where_it_was(three: Cluster, undisturbed: Path) -> None:
    started = three.start("server", **LONG)
    in_round(started, 3)
    three.server.kill()
    time.sleep(2)
    three.start_server()
    finish(started)
    expect_whole(three.folder / "server", undisturbed)
    three.await_sites(three.names)


def test_a_private_run_is_the_simulators_and_outlives_its_server(three: Cluster) -> None:
    """Clipped at the sites, noise at the server; whose death between two rounds releases no round twice."""
    log = three.kit("a") / "audit.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    test = write_server_test(three.folder / "images/a", three.folder / "server-test")
    privacy = {"noise": 0.2, "clip": 0.5, "random": "seeded"}
    more = {f"privacy.{name}": value for name, value in privacy.items()}
    private = {**LONG, "method": "fedproc", "normalize": "known"}
    started = three.start("private", server_test=test, classes=CLASSES, **private, **more)
    in_round(started, 3)
    three.server.kill()
    time.sleep(2)
    three.start_server()
    assert "privacy: epsilon" in finish(started)
    three.await_sites(three.names)
    everything = write_all(three.data, three.folder / "all.csv")
    given = {name: value for name, value in private.items() if name != "no_alone"}
    run(simulated(everything, dtype="float32", lr=0.01, privacy=privacy, **given), three.folder / "private-simulated")
    records = expect_whole(three.folder / "private", three.folder / "private-simulated")
    epsilons = [record["epsilon"] for record in metrics(three.folder / "private-simulated")]
    assert [record["epsilon"] for record in records] == epsilons == sorted(epsilons)
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    told = [line for line in lines if line["what"] == "train"]
    assert told and all(set(line["tensors"]) == {"update"} and not line["counts"] for line in told)


def test_a_killed_start_attaches_again(three: Cluster) -> None:
    started = three.start("start", **LONGER)
    in_round(started, 2)
    started.kill()
    time.sleep(1)
    said = finish(three.start("start", **LONGER))
    assert "attached to" in said
    expect_whole(three.folder / "start", rounds=30)


def test_a_run_is_stopped_and_goes_on(three: Cluster) -> None:
    started = three.start("stop", **LONGER)
    in_round(started, 2)
    assert fedproc("federate", "stop", str(three.kit("admin"))).returncode == 0
    assert started.process.wait(60) == 1
    assert "everything is kept, the same command continues" in started.said
    finish(three.start("stop", **LONGER))
    expect_whole(three.folder / "stop", rounds=30)


def test_wrong_answers_of_a_real_site_are_refused_and_rounds_go_on(three: Cluster) -> None:
    three.sites["c"].stop()
    script = Path(__file__).with_name("hostile_site.py")
    words = [sys.executable, str(script), str(three.kit("c")), str(three.data["c"])]
    hostile = Running(three.folder / "hostile.out", command=words)
    try:
        three.await_sites(three.names)
        three.run("hostile", rounds=len(WRONG), epochs=1, method="fedproc", no_alone=True)
    finally:
        hostile.stop()
        three.start_site("c")
        three.await_sites(three.names)
    for record, (name, (_, reason)) in zip(metrics(three.folder / "hostile"), WRONG.items(), strict=True):
        refused = record["refused"]
        assert record["clients"] == 2 and isinstance(refused, dict) and reason in refused["2"], (name, refused)
    assert three.server.said.count("the answer of site c is refused") == len(WRONG)
    model = load_file(three.folder / "hostile/model.safetensors")
    assert all(torch.isfinite(tensor.double()).all() for tensor in model.values())


def test_strangers_are_refused_in_words(three: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "kits"
    words = ["federate", "init", "--server", "localhost", "--port", str(three.port), "--sites", "a", "b"]
    assert fedproc(*words, "--out", str(other)).returncode == 0
    data = str(three.data["a"])
    # another authority
    found = fedproc("federate", "site", str(other / "a"), "--data", data, seconds=60)
    assert found.returncode == 2 and "not our federation's" in found.stderr
    # no certificate
    bare = tmp_path / "bare"
    shutil.copytree(three.kit("a"), bare)
    (bare / "startup/client.crt").unlink()
    found = fedproc("federate", "site", str(bare), "--data", data, seconds=60)
    assert found.returncode == 2 and "client.crt is missing; take the whole kit again" in found.stderr
    # another site's name
    mixed = tmp_path / "mixed"
    shutil.copytree(three.kit("a"), mixed)
    about = json.loads((mixed / "fedproc.json").read_text())
    (mixed / "fedproc.json").write_text(json.dumps({**about, "name": "b"}))
    found = fedproc("federate", "site", str(mixed), "--data", data, seconds=60)
    assert found.returncode == 2 and "the certificate is a's, expected b's; kits cannot be mixed" in found.stderr
    # the kit of another role
    found = fedproc("federate", "site", str(three.kit("admin")), "--data", data, seconds=60)
    assert found.returncode == 2 and "the kit of the administrator, expected that of a site" in found.stderr


def test_the_server_itself_lets_no_stranger_in(three: Cluster, tmp_path: Path) -> None:
    """The same strangers with our own checks left out: NVFlare's process is started directly."""
    other = tmp_path / "kits"
    words = ["federate", "init", "--server", "localhost", "--port", str(three.port), "--sites", "a", "spy"]
    assert fedproc(*words, "--out", str(other)).returncode == 0
    renamed = tmp_path / "renamed"
    shutil.copytree(three.kit("a"), renamed)
    nodes = [_node(other / "spy", "spy"), _node(renamed, "intruder")]
    time.sleep(12)
    with three.session() as session:
        there = set(session.connected())
    for node in nodes:
        node.kill()
        node.wait(10)
    assert there == {"a", "b", "c"}


def _node(kit: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedproc.federate.node", "site", str(kit), "--name", name]
    with (kit / "node.out").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=quiet(), cwd=kit)


def test_a_job_with_code_in_it_is_refused(three: Cluster, tmp_path: Path) -> None:
    job = write_job(tmp_path, "with-code", {}, {}, ["a"], ["a"])
    (job / "app/custom").mkdir()
    (job / "app/custom/evil.py").write_text("raise SystemExit\n")
    with three.session() as session:
        name = session.submit(job)
        status = until(lambda: (s := session.status(name)).startswith(("FAILED", "FINISHED")) and s, 60)
        detail = str(session._session.get_job_meta(name))
    assert "FAILED" in status or "ABNORMAL" in status
    assert "BYOC not permitted" in detail


def test_a_job_with_other_classes_is_refused(three: Cluster, tmp_path: Path) -> None:
    job = write_job(tmp_path, "other-classes", {}, {}, ["a"], ["a"])
    config = job / "app/config/config_fed_client.json"
    client = json.loads(config.read_text())
    client["executors"][0]["executor"]["path"] = "nvflare.app_common.np.np_trainer.NPTrainer"
    config.write_text(json.dumps(client))
    with three.session() as session:
        name = session.submit(job)
        status = until(lambda: (s := session.status(name)).startswith(("FAILED", "FINISHED")) and s, 90)
    assert status != "FINISHED:COMPLETED"
    logs = "".join(path.read_text() for path in three.kit("a").glob("*/log.txt"))
    assert "'nvflare.app_common.np.np_trainer.NPTrainer'" in logs and "is not in allow_list" in logs


def test_a_member_may_look_and_not_submit(three: Cluster, tmp_path: Path) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    kit = _member_kit(three, tmp_path)
    session = new_secure_session("guest@fedproc.local", str(kit), timeout=15)
    try:
        session.get_system_info()
        with pytest.raises(Exception, match="not authorized"):
            session.submit_job(str(write_job(tmp_path, "theirs", {}, {}, ["a"], ["a"])))
    finally:
        session.close()


def _member_kit(three: Cluster, tmp_path: Path) -> Path:
    """A kit of the same authority whose certificate has the role member."""
    from fedproc.federate import kits

    work = tmp_path / "made"
    shutil.copytree(three.folder / "kits/authority/state", work / "fedproc/state")
    made = kits._run_provisioner(
        work,
        [
            {"name": "server", "type": "server", "org": "fedproc", "fed_learn_port": three.port,
             "admin_port": three.port, "default_host": "localhost", "host_names": ["localhost"]},
            {"name": "guest@fedproc.local", "type": "admin", "org": "fedproc", "role": "member"},
        ],
    )  # fmt: skip
    return made / "guest@fedproc.local"


def test_a_site_is_added_and_removed_while_the_server_runs(three: Cluster) -> None:
    from places import write_site

    kits = str(three.folder / "kits")
    assert fedproc("federate", "add-site", "d", "--kits", kits).returncode == 0
    three.data["d"] = write_site(three.folder / "images/d", 3)
    three.start_site("d")
    three.await_sites(["a", "b", "c", "d"])
    three.run("four", **{**LONG, "rounds": 2, "epochs": 1})
    assert metrics(three.folder / "four")[-1]["clients"] == 4
    removed = fedproc("federate", "remove-site", "d", "--kit", str(three.kit("admin")))
    assert removed.returncode == 0 and "the server refuses it from now on" in removed.stdout
    three.run("again", **{**LONG, "rounds": 2, "epochs": 1})
    assert metrics(three.folder / "again")[-1]["clients"] == 3
    three.sites["d"].stop()
    three.start_site("d")
    time.sleep(10)
    with three.session() as session:
        assert "d" not in session.connected()
    three.sites.pop("d").stop()


def test_renewed_certificates_work(three: Cluster) -> None:
    before = (three.kit("c") / "startup/client.crt").read_bytes()
    three.sites["c"].stop()
    assert fedproc("federate", "renew", "c", "--kits", str(three.folder / "kits")).returncode == 0
    assert (three.kit("c") / "startup/client.crt").read_bytes() != before
    three.start_site("c")
    three.await_sites(["c"])


def _may_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", "fedproc-probe"], capture_output=True)
    subprocess.run(["ip", "netns", "del", "fedproc-probe"], capture_output=True)
    return made.returncode == 0


REQUIRED = os.environ.get("FEDPROC_NAMESPACES") == "required"


@pytest.mark.skipif(not REQUIRED and not _may_make_namespaces(), reason="no right to make network namespaces")
def test_a_site_that_is_cut_off_costs_one_wait_and_is_back(tmp_path: Path) -> None:
    """Packets are dropped, not refused: the site's network namespace loses its line, and gets it back."""
    space, host, site = "fedproc-test", "10.231.77.1", "10.231.77.2"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    subprocess.run(["ip", "netns", "del", space], capture_output=True)
    ip("netns", "add", space)
    processes: list[Running] = []
    try:
        ip("link", "add", "fedproc0", "type", "veth", "peer", "name", "fedproc1")
        ip("link", "set", "fedproc1", "netns", space)
        ip("addr", "add", f"{host}/24", "dev", "fedproc0")
        ip("link", "set", "fedproc0", "up")
        ip("netns", "exec", space, "ip", "addr", "add", f"{site}/24", "dev", "fedproc1")
        ip("netns", "exec", space, "ip", "link", "set", "fedproc1", "up")
        ip("netns", "exec", space, "ip", "link", "set", "lo", "up")
        _cut_and_join(tmp_path, host, space, ip, processes)
    finally:
        for process in processes:
            process.kill()
        subprocess.run(["ip", "link", "del", "fedproc0"], capture_output=True)
        subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _cut_and_join(tmp_path: Path, host: str, space: str, ip: object, processes: list[Running]) -> None:
    from places import write_site

    port, kits = free_port(), tmp_path / "kits"
    words = ["federate", "init", "--server", host, "--port", str(port), "--sites", "a", "b", "--out", str(kits)]
    assert fedproc(*words).returncode == 0
    data = {name: str(write_site(tmp_path / "images" / name, place)) for place, name in enumerate(("a", "b"))}
    processes.append(Running(tmp_path / "server.out", "federate", "server", str(kits / "server")))
    time.sleep(3)
    site = ["federate", "site", "--device", "cpu", "--threads", "1"]
    processes.append(Running(tmp_path / "a.out", *site, str(kits / "a"), "--data", data["a"]))
    inside = ["ip", "netns", "exec", space]
    processes.append(Running(tmp_path / "b.out", *site, str(kits / "b"), "--data", data["b"], before=inside))
    started = Running(
        tmp_path / "start.out", "federate", "start", str(kits / "admin"), "--out", str(tmp_path / "out"), "--rounds=40",
        "--epochs=20", "--batch-size=8", "--lr=0.01", "--min-sites=1", "--timeout=120", "--no-alone",
        "--fine-tune=0", "--method=scaffold",
    )  # fmt: skip
    processes.append(started)
    in_round(started, 2)
    assert callable(ip)
    ip("link", "set", "fedproc0", "down")  # packets are lost from here on
    until(lambda: "site b away" in started.said, 120)
    ip("link", "set", "fedproc0", "up")
    until(lambda: "b back; a new segment begins" in started.said, 120)
    finish(started, 300)
    records = metrics(tmp_path / "out")
    assert [record["round"] for record in records] == list(range(1, 41)) and records[-1]["clients"] == 2
