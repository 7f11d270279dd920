"""Who trains what where: groups, the number of workers, their places, and what becomes of a dead one's runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import toy_experiment, toy_images

from fedproc import Experiment, InputError, RunError, compare
from fedproc.cli.commands import execute
from fedproc.data.images import Skipped
from fedproc.errors import Diverged
from fedproc.lanes import Share, choose
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.place import Place
from fedproc.simulation.preparation import Library
from fedproc.simulation.watching import Everybody, Nobody, Watched
from fedproc.simulation.workers import mps, supervisor
from fedproc.simulation.workers.choice import Choice, on_cpu, on_gpus, parsed
from fedproc.simulation.workers.grouping import Group, Work, estimated, grouped, groups_on_cpu, left
from fedproc.simulation.workers.images import shared, taken
from fedproc.simulation.workers.messages import Lines, Message, encoded
from fedproc.simulation.workers.run import _Driver, run_many
from fedproc.simulation.workers.supervisor import DistantRun, Supervisor

METHODS = {"fedavg": 1.0, "fedprox": 1.0, "scaffold": 1.0, "moon": 4.0, "fednova": 1.0, "fedproc": 1.0}


def work(label: str, operations: float = 1.0, alike: str = "", forward: float = 1e6) -> Work:
    return Work(label, operations, 10, alike or label, forward)


def sweep(scale: float = 1.0) -> list[Work]:
    return [work(f"{m}/{seed}", scale * cost, m) for m, cost in METHODS.items() for seed in range(3)]


@pytest.mark.parametrize(
    ("count", "loads"),
    [(1, [27]), (2, [14, 13]), (3, [9, 9, 9]), (4, [7, 7, 7, 6]), (7, [4, 4, 4, 4, 4, 4, 3])],
)
def test_groups_have_similar_work_and_runs_that_are_alike_go_together(count: int, loads: list[float]) -> None:
    groups = grouped(sweep(), count)
    of = {work.label: work.operations for work in sweep()}
    assert [sum(of[label] for label in group.labels) for group in groups] == loads
    assert sorted(label for group in groups for label in group.labels) == sorted(of)
    assert [group.number for group in groups] == list(range(count))
    sections = [len({label.partition("/")[0] for label in group.labels}) for group in groups]
    assert sum(sections) <= len(METHODS) + 3 * (count - 1)  # 6 in each where everything is dealt out in turn


def test_there_are_no_empty_groups_and_one_core_has_one_run_at_a_time() -> None:
    assert [group.labels for group in grouped([work("a"), work("b")], 5)] == [["a"], ["b"]]
    some = grouped([work("a", 0.0), work("b"), work("c", 0.0)], 2)
    assert [group.labels for group in some] == [["b"], ["a", "c"]]
    assert len(groups_on_cpu(sweep(), 2, 1)) == 18
    # eight cores and cohorts of ten: 32 clients keep them busy, which four runs have
    assert [len(group.labels) for group in groups_on_cpu([work(str(n)) for n in range(16)], 2, 8)] == [4, 4, 4, 4]


def test_a_groups_pace_is_that_of_the_runs_that_it_had_to_do() -> None:
    group = Group(0, ["a", "b", "over before"], began=time.monotonic() - 20)
    assert group.pace() is None
    group.rounds.update({"a": 10, "b": 9})  # b is a round behind, at most
    assert group.pace() == pytest.approx(2.0, rel=0.05)


def test_what_is_left_of_a_run(tmp_path: Path) -> None:
    assert left(None, 10, False) == 1.0 and left(tmp_path, 10, False) == 1.0
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n{}\n{}\n")
    assert left(tmp_path, 10, False) == pytest.approx(0.6) and left(tmp_path, 4, False) == 0.0
    assert left(tmp_path, 10, True) == 1.0
    (tmp_path / "result.json").write_text('{"status": "diverged"}')
    assert left(tmp_path, 10, False) == 0.0


def test_work_is_estimated_from_samples_epochs_and_the_network() -> None:
    small = {"data": "fashion-mini", "device": "cpu", "rounds": 4, "epochs": 2}
    one = estimated({"a": (toy_experiment(**small), None)}, Library(), False)[0]
    more = {"b": (toy_experiment(**{**small, "rounds": 8, "sample": 0.4, "method": "moon"}), None)}
    other = estimated(more, Library(), False)[0]
    assert other.operations / one.operations == pytest.approx(2 * 0.4 * 4)  # twice the rounds; MOON counts four times
    assert (one.cohort, other.cohort) == (5, 2)
    assert one.operations == pytest.approx(3 * one.forward / 16 * 10_000 * 8)


def test_on_cpus_workers_are_started_where_there_is_enough_to_do() -> None:
    assert on_cpu("auto", sweep(), 4, None).workers == 1
    assert on_cpu("auto", sweep(1e13), 4, None).workers == 4
    assert on_cpu("auto", sweep(1e13), 64, None).workers == 18
    few = on_cpu("auto", sweep(1e13), 4, 3 << 30)
    assert few.workers == 3 and "3.0 GiB" in few.reason
    assert on_cpu(2, sweep(), 4, None).workers == 2
    done = [work("a", 0.0), work("b", 0.0), work("c")]
    assert on_cpu(2, done, 4, None) == Choice(1, "2 were requested, and there is something to do for 1")


def never(count: int) -> str | None:
    raise AssertionError("no daemon is needed")


def test_on_gpus_workers_go_with_mps() -> None:
    long = sweep(1e15)
    assert on_gpus("auto", sweep(), [None], never).workers == 1
    under = on_gpus("auto", long, [None], lambda count: None)
    assert under.workers == 7 and under.mps  # four runs' work for each but one; 6 and 8 have 5 beside 4, and 4 beside 3
    assert on_gpus("auto", [work(str(n), 1e15) for n in range(24)], [None], lambda count: None).workers == 6
    assert on_gpus("auto", [work(str(n), 1e15) for n in range(5)], [None], lambda count: None).workers == 5
    without = on_gpus("auto", long, [None], lambda count: "it is not there")
    assert without.workers == 1 and not without.mps and "it is not there" in without.reason
    heavy = [work(str(n), 1e18, forward=6e9) for n in range(8)]
    assert on_gpus("auto", heavy, [None], never).workers == 1
    assert on_gpus("auto", heavy, ["cuda:0", "cuda:1"], never).workers == 2
    asked = on_gpus(3, long, [None], lambda count: "it is not there")
    assert asked.workers == 3 and not asked.mps and "take turns" in asked.reason
    alone = on_gpus("auto", [work("a", 1e18)], [None], never)
    assert alone.workers == 1 and alone.obvious and not without.obvious
    two = on_gpus("auto", [work("a", 1e18), work("b", 1e18)], ["cuda:0", "cuda:1", "cuda:2"], never)
    assert (two.workers, two.devices) == (2, ("cuda:0", "cuda:1"))
    assert on_gpus(2, long, ["cuda:0", "cuda:1"], never) == Choice(2, "as requested", ("cuda:0", "cuda:1"))


def test_workers_are_pinned_to_their_gpus_and_share_their_memory() -> None:
    chosen = on_gpus(8, sweep(1e15), ["cuda:0", "cuda:1"], lambda count: None)
    places = chosen.places(16, 18, ["fedproc", "compare"])
    assert [place.device for place in places] == ["cuda:0", "cuda:1"] * 4
    assert {place.share for place in places} == {Share(2, 0.25)}
    assert [place.worker for place in places] == list(range(8))
    three = Choice(3, "", ("cuda:0", "cuda:1")).places(16, 3, [])
    assert [(place.device, place.share.memory) for place in three] == [("cuda:0", 0.5), ("cuda:1", 1), ("cuda:0", 0.5)]
    assert Place.of(json.loads(json.dumps(places[5].message()))) == places[5]


def test_a_share_bounds_lanes(train: Callable[..., Any]) -> None:
    setting = train(rounds=1, dtype="float64").setting
    for share, lanes, threads in ((Share(1), 1, 1), (Share(3), 3, 1), (Share(20), 10, 2)):
        made = choose("serial", "auto", None, [setting], 10, share)
        assert (made.lanes, made.threads) == (lanes, threads)
        made.close()
    whole, part = (choose("stacked", "auto", None, [setting], 10**9, Share(1, memory)) for memory in (1.0, 0.25))
    assert part.lanes == pytest.approx(whole.lanes / 4, abs=1)


@pytest.mark.parametrize("word", ["0", "-1", "two", "1.5", ""])
def test_a_number_of_workers_that_is_none(word: str, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workers .*: expected auto, or a whole number of at least 1"):
        execute(["compare", "--data", str(pictures), "--out", str(tmp_path / "out"), f"--workers={word}"])
    assert parsed("auto") == "auto" and parsed("12") == 12


def test_workers_need_folders(pictures: Path) -> None:
    with pytest.raises(InputError, match="workers 2: needs out"):
        compare(["fedavg"], [0, 1], workers=2, data=str(pictures), device="cpu")


def test_messages_come_whole() -> None:
    lines, whole = Lines(), encoded({"a": 1}) + encoded({"b": ["ä\n"]})
    found = [message for at in range(0, len(whole), 3) for message in lines.feed(whole[at : at + 3])]
    assert found == [{"a": 1}, {"b": ["ä\n"]}]


class OneShelf(Library):
    """Has toy images under every name."""

    def images(self, experiment: Any) -> Any:
        return self._images.setdefault(self.key(experiment), toy_images())


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
def test_images_are_mapped_and_private_to_each_reader() -> None:
    mine, theirs, experiment = OneShelf(), Library(), toy_experiment()
    (made,) = shared(mine, [experiment, toy_experiment(method="fedavg", seed=3)])
    taken(theirs, json.loads(json.dumps([made.message()])))
    made.close()
    first, second = mine.images(experiment), theirs.images(experiment)
    assert second.fingerprint == toy_images().fingerprint == first.fingerprint
    assert second.class_names == toy_images().class_names and second.train.sites is None
    for split in ("train", "test"):
        for part in ("images", "labels"):
            assert np.array_equal(getattr(getattr(second, split), part), getattr(getattr(toy_images(), split), part))
    second.train.images[0] = 0
    assert first.train.images[0].any()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
def test_what_is_known_of_own_images_comes_along(own: Path) -> None:
    mine, theirs, experiment = Library(), Library(), Experiment(data=str(own), image_size=16)
    read = mine.images(experiment)
    skipped = (Skipped("red/x.png", "red", "", ""),)
    mine.put(mine.key(experiment), replace(read, group_names=("p1",), skipped=skipped))
    (made,) = shared(mine, [experiment])
    taken(theirs, json.loads(json.dumps([made.message()])))
    made.close()
    found = theirs.images(experiment)
    assert found.skipped == skipped and found.group_names == ("p1",) and found.train.names == read.train.names
    assert found.listing() == [*read.listing(), ("red/x.png", "red", "", "", "unreadable")]


class Scripted:
    """A worker that says what it was told to say, and then dies or waits."""

    def __init__(self, number: int, says: list[Message], dies: bool) -> None:
        self.number, self.pid, self.one_group = number, 0, False
        self.orders: list[Message] = []
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._lines, self._says, self._dies = Lines(), says, dies
        self.killed = self.stopped = self.released = False

    def fileno(self) -> int:
        return self._read

    def send(self, message: Message) -> None:
        self.orders.append(message)
        for said in self._says:
            os.write(self._write, encoded({"group": message["group"], **said}))
        if self._dies:
            os.close(self._write)

    def receive(self) -> list[Message]:
        data = os.read(self._read, 1 << 16)
        if not data:
            raise EOFError
        return self._lines.feed(data)

    def release(self) -> None:
        self.released = True

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.killed = True

    def wait(self, seconds: float) -> bool:
        return True

    def fate(self) -> str:
        return "was ended by SIGKILL"

    def last_words(self) -> str:
        return "last words"


def state(label: str, *rounds: int, over: bool = False) -> Message:
    return {"label": label, "round": max(rounds, default=0), "notes": [], "over": over,
            "records": [{"round": number} for number in rounds]}  # fmt: skip


class Seen(Nobody):
    def __init__(self) -> None:
        self.updates: list[tuple[str, int, list[str]]] = []

    def update(self, run: Watched) -> None:
        self.updates.append((run.label, len(run.records), list(run.notes)))
        run.notes.clear()

    noted = update  # as those who show runs have it


def supervised(scripts: list[tuple[list[Message], bool]], watcher: Any, count: int = 1) -> tuple[Supervisor, list[Any]]:
    hired: list[Scripted] = []

    def start(number: int) -> Scripted:
        hired.append(Scripted(number, *scripts[len(hired)]))
        return hired[-1]

    runs = {label: DistantRun(label, 4, "test", None, []) for label in ("a", "b")}
    made = Supervisor(count, start, lambda group: {"group": group.number}, runs, watcher, Interrupt())
    return made, hired


BEGUN = {"event": "begun", "about": "", "notes": [], "runs": {"a": state("a"), "b": state("b")}}
AGAIN = {"event": "begun", "about": "", "notes": [], "runs": {"a": state("a", 1), "b": state("b", 1)}}
ROUND_ONE = [{"event": "update", **state(label, 1)} for label in "ab"]
REST = [{"event": "update", **state(label, 2, 3, 4, over=True)} for label in "ab"]
DONE = {"event": "done"}


def test_what_a_dead_worker_leaves_is_taken_over() -> None:
    seen = Seen()
    made, hired = supervised([([BEGUN, *ROUND_ONE], True), ([AGAIN, *REST, DONE], False)], seen)
    made.work([Group(0, ["a", "b"])])
    made.dismiss()
    assert [worker.orders for worker in hired] == [[{"group": 0}], [{"group": 0}]]
    assert ("a", 1, ["worker 0 was ended by SIGKILL"]) in seen.updates and seen.updates[-1] == ("b", 4, [])
    assert hired[1].released and not hired[1].stopped


class Plain(Nobody):
    """As a person writes a watcher."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def update(self, run: Watched) -> None:
        self.told.append((run.label, run.records[-1]["round"]))


def test_those_who_show_nothing_are_told_of_rounds_alone() -> None:
    watcher = Plain()
    ahead = {**AGAIN, "runs": {"a": state("a", 1), "b": state("b", 1, 2)}}  # the dead one did not tell of that round
    rest = [{"event": "update", **state("a", 2, 3, 4, over=True)}, {"event": "update", **state("b", 3, 4, over=True)}]
    made, _ = supervised([([BEGUN, *ROUND_ONE], True), ([ahead, *rest, DONE], False)], Everybody([watcher]))
    made.work([Group(0, ["a", "b"])])
    assert watcher.told == [("a", 1), ("b", 1), ("b", 2), ("a", 4), ("b", 4)]


def test_a_group_in_which_workers_die_again_and_again_is_given_up_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE", 0.0)
    begun = [{**BEGUN, "runs": {label: state(label)}} for label in "ab"]
    dies = ([begun[0]], True)
    made, hired = supervised([dies, dies, dies, ([begun[1], REST[1], DONE], False)], Seen())
    with pytest.raises(RunError, match=r"(?s)a: given up, since 3 workers in a row .* SIGKILL; .*\nlast words"):
        made.work([Group(0, ["a"]), Group(1, ["b"])])
    assert [worker.orders[0]["group"] for worker in hired] == [0, 0, 0, 1]


def test_deaths_after_a_round_was_done_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE", 0.0)
    script = ([BEGUN, *ROUND_ONE], True)
    made, hired = supervised([script] * 7 + [([AGAIN, *REST, DONE], False)], Seen())
    made.work([Group(0, ["a", "b"])])
    assert len(hired) == 8


def test_a_worker_that_says_nothing_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SILENCE", 0.2)
    monkeypatch.setattr(supervisor, "TICK", 0.05)
    seen = Seen()
    made, hired = supervised([([BEGUN], False), ([BEGUN, *ROUND_ONE, *REST, DONE], False)], seen)
    made.work([Group(0, ["a", "b"])])
    assert hired[0].killed and not hired[1].killed
    assert ("a", 0, ["worker 0 said nothing for 0 s"]) in seen.updates


def test_an_error_that_is_not_the_workers_ends_all() -> None:
    refused = {"event": "refused", "kind": "input", "text": "--lr 3: no"}
    made, hired = supervised([([BEGUN], False), ([BEGUN, refused], False)], Seen(), count=2)
    with pytest.raises(InputError, match=r"^lr 3: no$"):
        made.work([Group(0, ["a"]), Group(1, ["b"])])
    made.dismiss()
    assert hired[0].stopped and hired[1].released


def test_a_run_that_ends_early_says_why() -> None:
    run = DistantRun("a", 4, "test", None, [])
    run.follow({**state("a"), "over": True, "ended": {"status": "diverged", "round": 2, "reason": "too large"}})
    assert isinstance(run.ended, Diverged) and run.ended.round == 2 and run.result == {"status": "diverged"}


CONTROL = """#!/bin/sh
echo "$@ $CUDA_VISIBLE_DEVICES" >> {log}
case "$1" in -d) echo 999999999 > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"; sleep 5 & ;; esac
[ "$1" = -d ] || cat >> {log}
"""


def test_a_daemon_that_does_not_work_is_ended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here there is no GPU, so a CUDA program under the daemon fails. The daemon outlives its starter, as a real one
    does, and keeps its output open.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(mps.NoDaemon, match=f"there is no {mps.CONTROL}"):
        mps.Daemon(tmp_path / "workers")
    log, script = tmp_path / "log", tmp_path / mps.CONTROL
    script.write_text(CONTROL.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    try:
        with pytest.raises(mps.NoDaemon, match=r"libcuda|cuInit|server"):
            mps.Daemon(tmp_path / "workers").wait()
    finally:
        said = log.read_text()
    assert said.startswith("-d 3\n") and said.endswith("quit\n")
    assert not (tmp_path / "workers" / "pipes").exists()
    assert mps.VISIBLE not in mps.client_environment(tmp_path)


DAEMON = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
if [ "$1" = -d ]; then
    sleep 60 &
    echo $! > "$pid"
else
    read command
    [ "$command" = get_server_list ] && echo 4242
    [ "$command" = quit ] && kill "$(cat "$pid")"
fi
"""
CUDA = "".join(
    f"int {name}() {{ return 0; }}\n"
    for name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2",
                 "cuMemsetD8_v2", "cuCtxSynchronize")
)  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a CUDA library that says yes to everything, and a daemon that can be started and ended."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "cuda.c").write_text(CUDA)
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "cuda.c")], check=True)
    (tmp_path / mps.CONTROL).write_text(DAEMON)
    (tmp_path / mps.CONTROL).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return tmp_path


def gone(pid: int) -> bool:
    """Within some seconds; a zombie that nobody has waited for is gone, too."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("killed", [False, True], ids=["in order", "with its driver killed"])
def test_a_daemon_ends_with_its_driver(killed: bool, machine: Path) -> None:
    folder = machine / "w"
    code = (
        "import sys; from pathlib import Path; from fedproc.simulation.workers.mps import Daemon\n"
        f"daemon = Daemon(Path({str(folder)!r})); daemon.wait()\n"
        "print(daemon.environment['CUDA_MPS_PIPE_DIRECTORY'], flush=True)\n"
        "sys.stdin.read(); daemon.close()"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdin is not None and driver.stdout is not None
    pipes = Path(driver.stdout.readline().strip())
    assert (pipes == folder / "pipes") == (len(str(folder / "pipes")) <= mps.LONGEST)
    pid = int((pipes / f"{mps.CONTROL}.pid").read_text())
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    driver.kill() if killed else driver.stdin.close()
    driver.wait(40)
    assert gone(pid)
    deadline = time.monotonic() + 20
    while pipes.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not pipes.exists()
    driver.stdout.close()


def test_workers_come_up_beside_their_daemon(machine: Path, pictures: Path) -> None:
    """They are told of the daemon when it works, and those that were started early are those that train."""
    experiments = {
        f"fedavg/seed-{seed}": (toy_experiment(**GIVEN, data=str(pictures), seed=seed), machine / str(seed))
        for seed in (0, 1)
    }  # fmt: skip
    with ExitStack() as ends:
        driver = _Driver(experiments, Library(), machine / "w", ends)
        driver.choose(2, ["cpu"], False)
        assert driver._start_mps(2) is None
        early = [process.pid for process in driver._early]
        done = driver.run(Choice(2, "as requested", mps=True), False, Nobody(), Interrupt())
    assert [len(run.metrics) for run in done] == [3, 3]
    events = json.loads((machine / "w" / "workers.json").read_text())["events"]
    assert [event["process"] for event in events if event["event"] == "started"] == early
    assert all(event["seconds_per_round"] > 0 for event in events if event["event"] == "done")
    assert all(gone(pid) for pid in early)


def test_a_long_path_gets_short_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / mps.CONTROL
    script.write_text(
        CONTROL.format(log=tmp_path / "log").replace(
            "sleep 5 &", f"pwd; echo $CUDA_MPS_PIPE_DIRECTORY > {tmp_path}/where"
        )
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(mps.NoDaemon):
        mps.Daemon(tmp_path / ("long" * 30)).wait()
    where = (tmp_path / "where").read_text().strip()
    assert len(where) < mps.LONGEST and not Path(where).exists()


GIVEN = {"preset": "paper", "clients": 3, "min_size": 5, "rounds": 3, "epochs": 1, "batch_size": 16, "device": "cpu"}


def test_a_refused_command_changes_nothing_and_finished_runs_need_no_workers(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "seeds": [0, 1], "out": tmp_path}
    compare(["fedavg"], **{**given, "seeds": [0]})
    before = {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    with pytest.raises(InputError, match=r"rounds 2: .* has done 3|rounds 2: .* has 3"):
        compare(["fedavg", "fedprox"], workers=2, **{**given, "rounds": 2})
    assert before == {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    compare(["fedavg"], workers=2, **{**given, "seeds": [0]})
    assert not (tmp_path / "workers").exists()


def test_what_must_be_there_at_once_waits_for_no_torch() -> None:
    """The guard and a worker's first moments load neither torch nor anything of ours that does."""
    code = (
        "import sys, fedproc.simulation.workers.worker, fedproc.simulation.workers.mps; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_declared_devices_are_spread_over_workers(pictures: Path, tmp_path: Path) -> None:
    experiments = {
        f"fedavg/seed-{seed}": (toy_experiment(**GIVEN, data=str(pictures), seed=seed), tmp_path / str(seed))
        for seed in (0, 1)
    }  # fmt: skip
    done = run_many(experiments, 2, tmp_path, devices=["cpu", "cpu"])
    assert [run.label for run in done] == list(experiments) and [len(run.metrics) for run in done] == [3, 3]
    made = json.loads((tmp_path / "workers" / "workers.json").read_text())
    assert made["devices"] == ["cpu", "cpu"] and made["groups"] == [["fedavg/seed-0"], ["fedavg/seed-1"]]
    for run in done:
        assert run.path is not None
        environment = json.loads((run.path / "environment.json").read_text())
        assert (environment["workers"], environment["runs_at_once"]) == (2, 2)
        assert json.loads((run.path / "config.json").read_text())["device"] == "cpu"


@pytest.mark.slow
def test_more_rounds_and_a_fresh_start_over_workers(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "methods": ["fedavg"], "seeds": [0, 1], "workers": 2, "out": tmp_path}
    compare(**given)
    longer = compare(**{**given, "rounds": 4})
    assert [len(run.metrics) for run in longer.rows[0].runs] == [4, 4]
    lines = (tmp_path / "fedavg" / "seed-1" / "metrics.jsonl").read_bytes()
    again = compare(**given, fresh=True)
    assert [len(run.metrics) for run in again.rows[0].runs] == [3, 3]
    assert not lines.startswith((tmp_path / "fedavg" / "seed-1" / "metrics.jsonl").read_bytes())  # other seconds
    assert [r["train_loss"] for r in again.rows[0].runs[1].metrics] == [
        r["train_loss"] for r in longer.rows[0].runs[1].metrics[:3]
    ]


@pytest.mark.slow
def test_a_fresh_start_over_workers_keeps_what_is_finished(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "methods": ["fedavg"], "workers": 2, "out": tmp_path, "progress": False}
    compare(**given, seeds=[0, 1])
    kept = {seed: (tmp_path / "fedavg" / f"seed-{seed}" / "metrics.jsonl").read_bytes() for seed in (0, 1)}
    done = compare(**given, seeds=[0, 1, 2, 3], fresh="unfinished")
    assert [run.seed for run in done.rows[0].runs] == [0, 1, 2, 3]
    for seed, lines in kept.items():
        assert (tmp_path / "fedavg" / f"seed-{seed}" / "metrics.jsonl").read_bytes() == lines
