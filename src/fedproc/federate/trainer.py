"""The process of a site that holds its images and trains. It answers messages that come through a local socket; what
carries them over the network knows neither images nor networks, and this knows nothing of the network.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import numpy as np
import torch

from fedproc import __version__
from fedproc.assembly import Subject, assemble, fresh_weights, postprocessors, resolve_device
from fedproc.data import FEDERATION
from fedproc.data import own as own_images
from fedproc.data.augment import Normalisation
from fedproc.data.gather import Files
from fedproc.data.images import Images
from fedproc.data.partition import Indices, hold_out
from fedproc.data.pixels import PixelSums
from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.federate import audit
from fedproc.federate.joining import Agreed, Declined, Invitation, Joined, Look, Ready, Seen, heard, kind_of, tell
from fedproc.federate.lifeline import end_with_standard_input
from fedproc.federate.log import say
from fedproc.federate.names import LARGEST_MESSAGE
from fedproc.federate.policy import Policy, read_policy
from fedproc.federate.state import Answered, DiskState, expect_same_data
from fedproc.lanes import Bank, ClientData, Executor, Share, choose, resolve_precision, using_precision
from fedproc.lanes.evaluate import HeldOut
from fedproc.methods.checked_server import CheckedServer
from fedproc.methods.plugin import all_methods, plugin_hash
from fedproc.methods.robust import ROBUST
from fedproc.networks import encoder_file
from fedproc.privacy.client import own_noise
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.guard import Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.rounds import MEANS
from fedproc.protocol.task import Kind, Reply, Task
from fedproc.protocol.weights import Weights
from fedproc.site import Site

MOST_RUNS = 4  # that are held at once
ASKED_APART = frozenset({Kind.CLASS_MEANS, Kind.CLASS_COUNTS})  # from training and evaluation


@dataclass(frozen=True)
class OneRun:
    """A run that this site has agreed to take part in."""

    experiment: Experiment
    server: CheckedServer  # what the method asks of clients, known here as well
    site: Site
    states: DiskState
    executor: Executor
    answered: Answered | None = None  # where the site itself adds noise to its answers

    def needs_means(self, task: Task) -> bool:
        """Whether the method itself wants class means with this task, and not only its accuracy's measurement."""
        return task.kind in ASKED_APART or self.server.class_means(task.round) is not None

    def expect_due(self, task: Task) -> None:
        """Refuse what the run does not need, whatever a server asks for."""
        rounds, epochs = self.server.rounds, self.experiment.epochs
        trained = rounds + self.server.own_rounds
        if not 0 <= task.round <= rounds or (task.kind is Kind.TRAIN and task.round >= trained):
            raise Refused(f"asked about round {task.round + 1} of {rounds}")
        if task.kind is Kind.TRAIN and task.epochs > epochs * 4:
            raise Refused(f"asked for {task.epochs} epochs in a round of {epochs}")
        asks = (*self.server.opening(), *self.server.passes(min(task.round, rounds - 1)), *self.server.closing())
        if task.kind is Kind.CLASS_MEANS and all(each.counts_only for each in asks):
            raise Refused(f"asked for class means, which {self.experiment.method} does not need")
        if task.kind is Kind.CLASS_COUNTS and not any(each.counts_only for each in asks):
            raise Refused("asked for class counts, which the run does not need")


class Trainer:
    """A site's data and its part in each run."""

    def __init__(
        self,
        kit: Path,
        name: str,
        data: Path,
        device: str = "auto",
        plugins: Sequence[Path] = (),
        threads: int | None = None,
    ) -> None:
        self._kit, self._name, self._data, self._threads = kit, name, data, threads
        self._device = resolve_device(device)
        self._plugins = tuple(plugins)
        self._files: dict[tuple[float, int], Files] = {}
        self._images: dict[tuple[object, ...], Images] = {}
        self._banks: dict[int, tuple[Bank, Bank]] = {}
        self._stamp = ""
        self._invitations: dict[str, Experiment] = {}
        self._runs: dict[str, OneRun] = {}

    def answer(self, message: Message) -> Message:
        """Do what a message asks for; whatever goes wrong is an answer too."""
        try:
            policy = read_policy(self._kit)
            match kind_of(message):
                case "invitation":
                    return self._join(heard(message, Invitation), policy)
                case "look":
                    return self._look(heard(message, Look), policy)
                case "agreed":
                    return self._begin(heard(message, Agreed), policy)
                case "task":
                    return self._do(codec.decode_task(message), policy)
                case other:
                    raise Refused(f"does not know what {other} means")
        except Refused as error:
            return self._decline(str(error))
        except (InputError, RunError) as error:  # which may name files
            return self._decline("its images or its kit cannot be used as they are; its log says why", str(error))
        except torch.cuda.OutOfMemoryError as error:
            return self._decline("its GPU has not enough memory", str(error))
        except MemoryError:
            return self._decline("it has not enough memory")
        except Exception as error:
            trace = traceback.format_exc()
            return self._decline(f"{type(error).__name__}; its log says more", trace)

    def _decline(self, reason: str, detail: str = "") -> Message:
        """Say no. What may name files or people stays in this site's log."""
        say(self._kit, f"declined: {detail or reason}")
        return self._sent("", "declined", None, {"reason": reason}, tell(Declined(reason=reason[:2000])))

    def _join(self, asked: Invitation, policy: Policy) -> Message:
        if asked.version != __version__:
            raise Refused(f"it has fedproc {__version__}, the server {asked.version}; install the same")
        experiment = self._experiment(asked.experiment)
        if (objection := policy.objection(experiment)) is not None:
            raise Refused(objection)
        self._check_code(asked, experiment)
        self._files.clear()  # images may have come since the last run
        files = self._found(experiment)
        if (stamp := _stamp(files)) != self._stamp:
            self._stamp = stamp
            self._images.clear()
            self._banks.clear()
        strange = sorted(set(files.class_names) - set(asked.classes or files.class_names))
        if strange and experiment.privacy is not None:
            raise Refused("it has images of a class that is none of --classes")
        if strange:
            known = ", ".join(asked.classes or ())
            raise Refused(f"it has images of {strange[0]}, which is none of the classes {known}")
        self._invitations[asked.run] = experiment
        classes = list(files.class_names)
        if experiment.privacy is not None:
            if asked.classes is None:
                raise Refused("a private run needs --classes: which of them a site has is not told")
            classes = list(asked.classes)
        said = Joined(version=__version__, classes=classes, channels=files.channels, side=files.side)
        say(self._kit, f"invited to {asked.run}: {experiment.method}, {experiment.rounds} rounds; joining")
        return self._sent(asked.run, "joined", None, said.model_dump(exclude={"what"}), tell(said))

    def _experiment(self, config: dict[str, object]) -> Experiment:
        """The run's experiment with what is this site's own: where plugins lie, and its device."""
        tables = {*all_methods(self._plugins), *ROBUST}
        strange = sorted(set(config) - set(Experiment.model_fields) - tables)
        if config.get("method") in all_methods(self._plugins) and strange:
            raise Refused(f"it does not know what {strange[0][:50]} of the experiment means")
        if config.get("method") not in all_methods(self._plugins):
            raise Refused(f"it has no method {config.get('method')}: its plugin is not installed there")
        own = {"plugin": self._plugins, "device": str(self._device), "encoder_weights": None, "start_from": None}
        own["partition_file"] = None
        return Experiment(**{**config, **own, "data": FEDERATION})

    def _check_code(self, asked: Invitation, experiment: Experiment) -> None:
        """Code is never sent: a plugin or a network of one's own must be here already, and be the same."""
        if plugin_hash(experiment.method, self._plugins) != asked.plugin_sha256:
            raise Refused(f"its plugin with the method {experiment.method} is not the server's (another SHA-256)")
        own = encoder_file(experiment.network) if ":" in experiment.network else None
        digest = hashlib.sha256(own.read_bytes()).hexdigest() if own is not None else None
        if digest != asked.network_sha256:
            raise Refused(f"its network {experiment.network} is not the server's (another SHA-256)")

    def _found(self, experiment: Experiment) -> Files:
        """The site's image files, in training and test images by the experiment's split."""
        at = (experiment.test_fraction, experiment.data_seed)
        if at not in self._files:
            self._files.clear()  # one listing at a time is held
            self._files[at] = own_images.find(self._data, *at, lonely=True)
            if not self._files[at].test:
                raise InputError("no test images: expected two images of some class at least, or a part `test`")
        return self._files[at]

    def _read(self, experiment: Experiment, classes: Sequence[str], side: int, channels: int) -> Images:
        e = experiment
        at = (e.test_fraction, e.data_seed, tuple(classes), side, channels, e.fit, e.skip_unreadable)
        if at not in self._images:
            images = self._found(e).read(classes, side, channels, e.fit, e.skip_unreadable)
            if images.skipped:
                say(self._kit, f"{len(images.skipped)} image files cannot be read and are left out")
            self._images = {at: images}  # one reading at a time is held
            self._banks = {}
        return self._images[at]

    def _look(self, asked: Look, policy: Policy) -> Message:
        experiment = self._invited(asked.run)
        images = self._read(experiment, asked.classes, asked.side, asked.channels)
        found = PixelSums.of(images.train.images)
        counts = np.bincount(images.train.labels, minlength=len(asked.classes))
        shown = np.where(counts >= max(policy.smallest_class, experiment.smallest_class), counts, 0).tolist()
        said = Seen(sums=list(found.sums), squares=list(found.squares), pixels=found.pixels, counts=shown)
        if experiment.privacy is not None:
            nothing = [0] * asked.channels
            said = Seen(sums=nothing, squares=nothing, pixels=1, counts=[0] * len(asked.classes))
        return self._sent(asked.run, "seen", None, said.model_dump(exclude={"what"}), tell(said))

    def _invited(self, run: str) -> Experiment:
        if run not in self._invitations:
            raise Refused(f"it has not been invited to {run}")
        return self._invitations[run]

    def _begin(self, asked: Agreed, policy: Policy) -> Message:
        settled = {"batch_size": asked.batch_size, "epochs": asked.epochs}
        experiment = self._invited(asked.run).model_copy(update=settled)
        if (objection := policy.objection(experiment)) is not None:
            raise Refused(objection)
        images = self._read(experiment, asked.classes, asked.side, asked.channels)
        folder = self._kit / "state" / asked.run
        if (reason := expect_same_data(folder, images.fingerprint)) is not None:
            say(self._kit, f"put the old images back, or wait for the next run; {folder} tells them apart")
            raise Refused(f"{reason}; its log says what to do")
        normalisation = Normalisation(tuple(asked.mean), tuple(asked.std))
        subject = Subject(tuple(asked.classes), asked.channels, asked.side, normalisation)
        assembly = assemble(experiment, subject)
        train, test = self._bank(images)
        setting = assembly.setting(train, self._device)
        split = (experiment.val_fraction, experiment.data_seed, images.train.groups, asked.client)
        own, val = hold_out([np.arange(len(images.train))], images.train.labels, *split)[0]
        data = ClientData.of_all(
            [torch.from_numpy(own).to(self._device)], train.labels, len(asked.classes), setting.spec.dtype
        )[0]
        whole = self._held_out(test, None)
        held_out = self._held_out(train, val) if experiment.val_fraction else whole
        states = DiskState(folder, self._device)
        site = Site(
            asked.client, self._name, setting, data, states, held_out,
            partial(fresh_weights, experiment, setting), postprocessors(experiment, federation=True), whole,
        )  # fmt: skip
        kind = "streamed" if self._on_gpu(setting.spec.foreign) else "serial"
        share = None if self._threads is None else Share(self._threads)
        executor = choose(kind, 1, None, [setting], 1, share)
        if asked.run in self._runs:
            self._runs.pop(asked.run).executor.close()
        while len(self._runs) >= MOST_RUNS:
            self._runs.pop(next(iter(self._runs))).executor.close()
        private = experiment.privacy
        answered = Answered(folder) if private is not None and private.where == "client" else None
        self._runs[asked.run] = OneRun(experiment, assembly.server, site, states, executor, answered)
        said = Ready(samples=len(data) if private is None else 1)
        return self._sent(asked.run, "ready", None, said.model_dump(exclude={"what"}), tell(said))

    def _on_gpu(self, foreign: bool) -> bool:
        return self._device.type == "cuda" and not foreign

    def _bank(self, images: Images) -> tuple[Bank, Bank]:
        if id(images) not in self._banks:
            self._banks = {id(images): (Bank.of(images.train, self._device), Bank.of(images.test, self._device))}
        return self._banks[id(images)]

    def _held_out(self, bank: Bank, chosen: Indices | None) -> HeldOut:
        index = torch.arange(len(bank.labels)) if chosen is None else torch.from_numpy(chosen)
        index = index.to(self._device)
        return HeldOut(bank.images, bank.labels, index, torch.zeros_like(index), clients=1, whole=chosen is None)

    def _do(self, task: Task, policy: Policy) -> Message:
        run = self._runs.get(task.run)
        if run is None:
            raise Refused(f"it has not agreed to take part in {task.run}")
        if (objection := policy.objection(run.experiment)) is not None:
            raise Refused(objection)
        run.expect_due(task)
        if (objection := policy.objection_to_noise(own_noise(run.experiment.privacy, task.privacy))) is not None:
            raise Refused(objection)
        if run.answered is not None and (again := run.answered.again(task.round)) is not None:
            say(self._kit, f"{task.run} round {task.round + 1}: asked again, the same is sent")
            return self._sent(task.run, str(task.kind), task.round, {"again": True}, again)
        task = replace(task, payload=task.payload.to(self._device))
        run.states.settle(task.last_accepted)
        self._expect_state(run, task)
        began = time.monotonic()
        asked = run.experiment
        here = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with here, using_precision(resolve_precision(asked.precision, self._device, run.executor.name, asked.dtype)):
            reply = run.site.do(task, run.executor)
        if reply.payload is not None and not policy.diagnostics and not run.needs_means(task):
            kept = {name: t for name, t in reply.payload.tensors.items() if name not in MEANS}
            reply = Reply(Payload(kept, reply.payload.counts), reply.refused, reply.seconds)
        message = codec.encode_reply(reply)
        if run.answered is not None and reply.payload is not None:
            run.answered.keep(task.round, message)
        said = audit.contents(reply.payload) if reply.payload is not None else {"reason": reply.refused or ""}
        size = len(message.head) + len(message.body)
        outcome = f"sent {size / 1e6:.2f} MB" if reply.payload is not None else f"declined: {reply.refused}"
        say(self._kit, f"{task.run} round {task.round + 1}: {task.kind} in {time.monotonic() - began:.1f} s, {outcome}")
        return self._sent(task.run, str(task.kind), task.round, said, message)

    def _expect_state(self, run: OneRun, task: Task) -> None:
        """A state that the server counts on must be there: without it a method would go on wrongly, and silently."""
        if task.kind in ASKED_APART or task.last_accepted < 0 or run.states.latest(task.client) is not None:
            return
        sent = Weights.of(task.payload.tensors)
        first = run.site.setting.method.first_state(
            task.client, sent, partial(fresh_weights, run.experiment, run.site.setting)
        )
        if first:
            folder = self._kit / "state" / task.run
            say(self._kit, f"what was kept after round {task.last_accepted + 1} is not in {folder}")
            raise Refused(f"it has lost what it kept after round {task.last_accepted + 1}")

    def _sent(
        self, run: str, what: str, round_number: int | None, said: Mapping[str, object], message: Message
    ) -> Message:
        audit.note(self._kit, run, what, round_number, said, len(message.head) + len(message.body))
        return message


def _stamp(files: Files) -> str:
    """Tells one state of the image files from another, without reading them."""
    digest = hashlib.sha256()
    for item in (*files.train, *files.test):
        about = os.stat(item.picture.name)
        digest.update(
            f"{item.picture.name}\0{item.label}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(
                "utf-8", "surrogateescape"
            )
        )
    return digest.hexdigest()


def serve(trainer: Callable[[Message], Message], address: str) -> None:
    """Answer messages at a local socket for ever: one after another, though a segment that is about to end and the next
    may both be connected.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    one_at_a_time = threading.Lock()
    with Listener(address, family="AF_UNIX") as listener:
        os.chmod(address, 0o600)
        while True:
            caller = listener.accept()
            threading.Thread(target=_converse, args=(caller, trainer, one_at_a_time), daemon=True).start()


def _converse(caller: Connection, answer: Callable[[Message], Message], one_at_a_time: threading.Lock) -> None:
    with caller, contextlib.suppress(EOFError, OSError):  # whoever asked has gone
        while True:
            asked = Message(caller.recv_bytes(LARGEST_MESSAGE), caller.recv_bytes(LARGEST_MESSAGE))
            with one_at_a_time:
                replied = answer(asked)
            caller.send_bytes(replied.head)
            caller.send_bytes(replied.body)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    parser.add_argument("--threads", type=int)
    given = parser.parse_args(words)
    end_with_standard_input()
    trainer = Trainer(given.kit, given.name, given.data, given.device, given.plugin, given.threads)
    serve(trainer.answer, given.socket)
    return 0


if __name__ == "__main__":
    sys.exit(main())
