"""benchmarks/federation.py with Flower 1.41 in place of fedproc: seconds and memory that a deployment costs.

    python -m venv DIR && DIR/bin/pip install -r benchmarks/rivals/flower_deployed.txt
    python benchmarks/federation_flower.py --env DIR --sites 2 4 8 --network simple-cnn --rounds 6 --out flower.json

Every process is a real one on this machine: a SuperLink, a SuperNode for each site, and what these start (SuperExecs,
a ServerApp, a ClientApp for each message, as Flower does unless told otherwise). Flower's FedAvg runs the rounds. A
round is one exchange of training, in which a client gets the model as one float32 vector and sends as much back, the
merging, and one exchange of evaluation, answered with a few numbers; the median is over all rounds but the first.

What to know before comparing:
- Flower names what it sends by its content, and does not send what the other side still holds. So that all weights
  travel, a client adds a little to each first; --unchanged leaves them as they came.
- TLS is on between SuperLink, SuperNodes and ServerApp (--no-tls turns it off), and one-sided: SuperNodes check the
  SuperLink's certificate and have none of their own, where fedproc's sites have. ClientApps talk to their SuperNode
  without it.
- Flower writes no checkpoint, fedproc one a round.
- Most of a small model's round is waiting, and the start of a process for each message: SuperNodes and the ServerApp
  ask for messages every 3 s, which is fixed, and SuperExecs for tasks every second (--task-poll sets it).
- Telemetry, the search for updates and the installation of dependencies are off: nothing outside is reached.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

CLASSES, SIDE, CHANNELS = 10, 32, 3
MOST_SECONDS = 900  # a run that takes longer counts as hung
KINDS = {
    "flower-superlink": "superlink", "flwr-serverapp": "serverapp", "flower-supernode": "supernode",
    "flwr-clientapp": "clientapp", "flower-superexec": "superexec",
}  # fmt: skip

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"

[tool.flwr.app.config]
sites = {sites}
rounds = {rounds}
parameters = {parameters}
step = {step}
answer = "{answer}"
"""

SERVER = '''
"""FedAvg that notes when rounds begin and end."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def __init__(self, sites):
        super().__init__(min_train_nodes=sites, min_evaluate_nodes=sites, min_available_nodes=sites)
        self.sites, self.times = sites, []

    def configure_train(self, *given):
        self.times.append({"began": time.monotonic()})
        return super().configure_train(*given)

    def aggregate_train(self, server_round, replies):
        replies = self.complete(replies)
        merged = super().aggregate_train(server_round, replies)
        self.times[-1]["trained"] = time.monotonic()
        return merged

    def aggregate_evaluate(self, server_round, replies):
        merged = super().aggregate_evaluate(server_round, self.complete(replies))
        self.times[-1]["ended"] = time.monotonic()
        return merged

    def complete(self, replies):
        replies = list(replies)
        wrong = [reply.error.reason for reply in replies if reply.has_error()]
        if wrong or len(replies) != self.sites:
            raise RuntimeError(f"{len(replies)} replies, {len(wrong)} with errors {wrong[:1]}")
        return replies


@app.main()
def main(grid, context):
    told = context.run_config
    weights = np.random.default_rng(0).standard_normal(told["parameters"], dtype=np.float32)
    strategy = Timed(told["sites"])
    config = ConfigRecord({"step": told["step"]})
    strategy.start(grid, ArrayRecord([weights]), num_rounds=told["rounds"], train_config=config)
    answer = Path(told["answer"])
    answer.with_suffix(".part").write_text(json.dumps(strategy.times))
    answer.with_suffix(".part").rename(answer)
'''

CLIENT = '''
"""A client that answers at once."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    step = message.content["config"]["step"] * (1 + context.node_id % 1000)
    if step:
        arrays = ArrayRecord([weights + np.float32(step) for weights in arrays.to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": 1000})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": 1000, "loss": 1.0, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
'''


def measure(given: argparse.Namespace, sites: int, parameters: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fp-flower-") as place:
        home = Path(place)
        deployment = Deployment(home, given.env.absolute(), given.tls, given.task_poll)
        write_app(home, sites, given.rounds, parameters, 0.0 if given.unchanged else 1e-6)
        loads = [os.getloadavg()[0]]
        try:
            deployment.start(sites)
            times, total = deployment.run()
        finally:
            deployment.end()
        loads.append(os.getloadavg()[0])
    walls = [after["began"] - before["began"] for before, after in pairwise(times)][1:]
    walls.append(times[-1]["ended"] - times[-1]["began"])
    train = [one["trained"] - one["began"] for one in times[1:]]
    return {
        "sites": sites, "network": given.network, "model_mb": round(parameters * 4 / 1e6, 2), "rounds": given.rounds,
        "seconds_per_round": round(statistics.median(walls), 3), "least": round(min(walls), 3),
        "most": round(max(walls), 3), "training": round(statistics.median(train), 3),
        "whole_command": round(total, 1), "fixed": round(total - sum(walls), 1),
        "memory_mb": {name: round(peak / 1e6) for name, peak in deployment.peaks.items()},
        "load": [round(load, 1) for load in loads],
        "tls": given.tls, "unchanged": given.unchanged, "task_poll": given.task_poll,
    }  # fmt: skip


def write_app(home: Path, sites: int, rounds: int, parameters: int, step: float) -> None:
    package = home / "app/echo"
    package.mkdir(parents=True)
    words = PROJECT.format(
        sites=sites, rounds=rounds, parameters=parameters, step=step, answer=home / "answer.json"
    )  # fmt: skip
    (home / "app/pyproject.toml").write_text(words)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER)
    (package / "client.py").write_text(CLIENT)


class Deployment:
    """A SuperLink and SuperNodes on free ports, with all that they write under one folder."""

    def __init__(self, home: Path, env: Path, tls: bool, task_poll: float | None) -> None:
        self.home, self.programs = home, env / "bin"
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.peaks = dict.fromkeys(KINDS.values(), 0)
        self.port = free_port()
        self.environment = {
            **os.environ, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(home / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        }  # fmt: skip
        self.environment.pop("PYTHONPATH", None)
        if task_poll is not None:
            self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(task_poll)
        self.certificate = make_certificate(home) if tls else None
        (home / "flwr").mkdir()
        how = f'root-certificates = "{self.certificate}"' if tls else "insecure = true"
        words = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{how}\n'
        (home / "flwr/config.toml").write_text(words)

    def start(self, sites: int) -> None:
        """Until every SuperNode has a number from the SuperLink."""
        proof, root = ["--insecure"], ["--insecure"]
        if self.certificate is not None:
            key = self.certificate.with_name("key.pem")
            same = str(self.certificate)
            proof = ["--ssl-certfile", same, "--ssl-keyfile", str(key), "--ssl-ca-certfile", same]
            root = ["--root-certificates", same]
        offline = "--disable-runtime-dependency-installation"
        superlink = self._launch("flower-superlink", *proof, "--port", str(self.port), offline)
        until(lambda: listening(self.port), superlink)
        address = f"127.0.0.1:{self.port}"
        nodes = [
            self._launch("flower-supernode", *root, "--superlink", address, "--port", str(free_port()))
            for _ in range(sites)
        ]
        for node in nodes:
            until(lambda log=node[1]: "SuperNode ID" in log.read_text(), node)

    def run(self) -> tuple[list[dict[str, float]], float]:
        """When rounds began and ended, and the seconds from the command to the ServerApp's end."""
        over = threading.Event()
        watch = threading.Thread(target=self._memory, args=(over,))
        watch.start()
        answer = self.home / "answer.json"
        began = time.monotonic()
        try:
            command = self._launch("flwr", "run", str(self.home / "app"), "here", "--stream")
            until(answer.exists, command, MOST_SECONDS, *self.started)
        finally:
            total = time.monotonic() - began
            over.set()
            watch.join()
        return json.loads(answer.read_text()), total

    def end(self) -> None:
        """End what was started and what that has started."""
        family: list[psutil.Process] = []
        for process, _ in self.started:
            try:
                one = psutil.Process(process.pid)
                family += [*one.children(recursive=True), one]
            except psutil.Error:
                continue
        for one in family:
            try:
                one.kill()
            except psutil.Error:
                continue
        for process, _ in self.started:
            process.wait(10)
        psutil.wait_procs(family, timeout=10)

    def _launch(self, program: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        path = self.home / f"process-{len(self.started)}.log"
        with path.open("wb") as log:
            command = [str(self.programs / program), *words]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=self.home)
        self.started.append((process, path))
        return self.started[-1]

    def _memory(self, over: threading.Event) -> None:
        """The largest resident sizes of the kinds of processes."""
        while not over.wait(0.2):
            for one in psutil.Process().children(recursive=True):
                try:
                    programs, size = {Path(word).name for word in one.cmdline()[:2]}, one.memory_info().rss
                except psutil.Error:
                    continue
                for kind in programs & KINDS.keys():
                    self.peaks[KINDS[kind]] = max(self.peaks[KINDS[kind]], size)


def make_certificate(home: Path) -> Path:
    """The SuperLink's, signed by itself, with its key beside it in key.pem."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"],
        cwd=home, check=True, capture_output=True,
    )  # fmt: skip
    return home / "certificate.pem"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(
    what: Callable[[], bool],
    one: tuple[subprocess.Popen[bytes], Path],
    seconds: float = 180,
    *others: tuple[subprocess.Popen[bytes], Path],
) -> None:
    """Wait for it; when the process ends before, or it does not come, say what the processes said last."""
    end = time.monotonic() + seconds
    while not what():
        if one[0].poll() is not None or time.monotonic() > end:
            time.sleep(1.0)  # it may have come with the process's end
            if what():
                return
            said = [f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for _, path in (*others, one)]
            raise SystemExit("\n".join(["Flower did not do what it should have:", *said]))
        time.sleep(0.05)


def parameters_of(network: str) -> int:
    """How many float32 numbers make up fedproc's model file of this network."""
    from fedproc.networks import NetworkSpec, build

    spec = NetworkSpec(network, 64, CHANNELS, SIDE, CLASSES, normalize_z=True)
    state = build(spec, 0).state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in state) // 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="environment made from rivals/flower_deployed.txt")
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--network", choices=["simple-cnn", "resnet50"], default="simple-cnn")
    parser.add_argument("--parameters", type=int, help="a vector of this length, without asking fedproc")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--no-tls", dest="tls", action="store_false")
    parser.add_argument("--unchanged", action="store_true", help="clients send back exactly what came")
    parser.add_argument("--task-poll", type=float, help="seconds between SuperExecs' questions; Flower's default is 1")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: expected at least 2, as the first does not count")
    parameters = given.parameters or parameters_of(given.network)
    found = []
    for sites in given.sites:
        found.append(measure(given, sites, parameters))
        print(json.dumps(found[-1]), flush=True)
    if given.out:
        version = subprocess.run([given.env / "bin/flwr", "--version"], capture_output=True, text=True).stdout.strip()
        given.out.write_text(json.dumps({"version": version, "measured": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
