"""Attacks with inputs: payloads, configs and command lines, run files, images, archives, models, figures."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import pickle
import random
import re
import tarfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from conftest import work
from folders import IMAGES, RUNS, stopped
from hypothesis import strategies as st
from PIL import Image
from tally import Tally, forked, fuzz

from fedproc.cli import BUG, main
from fedproc.cli.commands import build_parser
from fedproc.comparison.overrides import read_toml
from fedproc.data import cifar_python
from fedproc.data.cifar import CIFAR10, Part
from fedproc.data.idx import read_idx
from fedproc.data.pictures import Picture
from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.files import write_json
from fedproc.protocol import codec
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.guard import Expected, Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Reply, Task
from fedproc.report.contents import write_report
from fedproc.report.gather import gather
from fedproc.report.inline import inline
from fedproc.runs.lines import rewrite
from fedproc.runs.model import load_model
from fedproc.runs.provenance import environment
from fedproc.runs.schema import content_checksum

ODD_TEXT = st.sampled_from(
    [
        "",
        " ",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "9" * 40,
        "../..",
        "/dev/null",
        "\x1b[2J",
        "=1+1",
        "ä€😀",
        "a\x00b",
        "x" * 300,
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CHANGE = st.tuples(st.integers(0, 1 << 20), st.integers(0, 255))
CHANGES = st.lists(CHANGE, min_size=1, max_size=6)


def changed(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Bytes replaced, and for values divisible by 16 everything after the place cut off."""
    made = bytearray(content)
    for at, value in changes:
        if made:
            made[at % len(made)] = value
            if value % 16 == 0:
                del made[at % len(made) + 1 :]
    return bytes(made)


def told(act: Callable[[], object], *allowed: type[Exception]) -> str:
    try:
        act()
    except (InputError, *allowed) as error:
        return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


EXPECTED = Expected(
    {
        "params": ((3,), torch.float32),
        "counters": ((1,), torch.int64),
        "class_counts": ((2,), torch.int64),
        "losses": ((2,), torch.float32),
        "seen": ((2,), torch.float32),
    },
    {"samples": None, "classes": 3},
    frozenset({"seen"}),
    frozenset({"losses"}),
)
GOOD = Payload(
    {name: torch.ones(shape, dtype=dtype) for name, (shape, dtype) in EXPECTED.tensors.items()},
    {"samples": 3, "classes": 3},
)
MOST = 1 << 53
TASK = Task(Kind.TRAIN, 0, 0, Payload({"params": torch.zeros(3)}, {}), EXPECTED, {"lr": 0.1})


def payloads(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Replies and tasks as a hostile site or server would write them: refused, or whole and finite."""
    reply, task = codec.encode_reply(Reply(GOOD, None, {"train": 1.0})), codec.encode_task(TASK)
    fields = [*json.loads(task.head), *json.loads(reply.head)]
    heads = st.tuples(st.sampled_from(["reply", "task"]), st.sampled_from(fields), JSON)

    def attack(example: tuple[str, Any, Any]) -> str:
        kind, way, how = example
        message = reply if kind == "reply" else task
        if way == "head":
            message = replace(message, head=changed(message.head, how))
        elif way == "body":
            message = replace(message, body=changed(message.body, how))
        elif way == "noise":
            message = codec.Message(how, how)
        else:
            message = replace(message, head=json.dumps({**json.loads(message.head), way: how}).encode())
        if kind == "task":
            return told(lambda: codec.decode_task(message), Refused)
        return taken(message)[0]

    kinds = st.sampled_from(["reply", "task"])
    ways = st.one_of(
        st.tuples(kinds, st.just("head"), CHANGES),
        st.tuples(kinds, st.just("body"), CHANGES),
        st.tuples(kinds, st.just("noise"), st.binary(max_size=200)),
        heads,
    )
    for flaw in FLAWS:
        tally.count(flawed([flaw]), flaw)
    fuzz(tally, st.lists(st.sampled_from(FLAWS), max_size=3), flawed, seconds / 2, seed)
    fuzz(tally, ways, attack, seconds / 2, seed)
    tally.note = f"replies and tasks: changed bytes, changed fields, noise; {len(FLAWS)} flaws of tensors and counts"


def taken(message: codec.Message) -> tuple[str, list[Payload]]:
    """Whether a reply is taken; nothing that is may be unsound, and no time anything but a time."""
    consumed: list[Payload] = []
    exchange = Exchange([TASK], lambda task, payload: consumed.append(payload))

    def take() -> None:
        if not exchange.take(0, codec.decode_reply(message)):
            raise Refused(exchange.refused[0])

    outcome = told(take, Refused)
    if not all(math.isfinite(spent) and spent >= 0 for spent in exchange.seconds.values()):
        return f"taken, though it took {exchange.seconds}", consumed
    wrong = [why for each in consumed for why in unsound(each.tensors, each.counts)]
    return f"taken, though {wrong[0]}" if wrong else outcome, consumed


def unsound(tensors: Mapping[str, torch.Tensor], counts: Mapping[str, Any]) -> list[str]:
    """What is wrong with an answer to TASK, told without the guard; what only observes may be missing."""
    wrong = [f"{name} is missing" for name in EXPECTED.tensors if name not in tensors and name != "seen"]
    wrong += [why for name, tensor in tensors.items() if (why := _unsound(name, tensor))]
    wrong += ["other counts"] if set(counts) != set(EXPECTED.counts) else []
    wrong += [f"{name} is {each!r}" for name, each in counts.items() if type(each) is not int or not 0 < each < MOST]
    return wrong + (["other classes"] if counts.get("classes") != 3 else [])


def _unsound(name: str, tensor: torch.Tensor) -> str:
    if name not in EXPECTED.tensors:
        return f"{name} was not asked for"
    if (tuple(tensor.shape), tensor.dtype) != EXPECTED.tensors[name]:
        return f"{name} is {tensor.dtype} of {tuple(tensor.shape)}"
    numbers = tensor.flatten().tolist()
    if name in ("params", "seen") and not all(map(math.isfinite, numbers)):
        return f"{name} is not finite"
    return f"{name} is {numbers}" if name == "class_counts" and not all(0 <= each < MOST for each in numbers) else ""


Flaw = tuple[str, str, Any]
NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e-45, -1e-40, 3.4e38, -3.4e38, -0.0)
WHOLE = (-1, 0, MOST - 1, MOST, (1 << 63) - 1, -(1 << 63))
SHAPES = ((), (0,), (1,), (2,), (3,), (4,), (3, 1), (1, 3), (2, 0), (1, 1, 1))
KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
ODD_COUNTS = (*WHOLE, 1, 4, 1 << 64, True, False, None, 3.0, 0.5, float("nan"), float("inf"), "3", [3], {"3": 3})
FLAWS: list[Flaw] = [
    *(("number", name, each) for name in ("params", "losses", "seen") for each in NUMBERS),
    *(("number", name, each) for name in ("counters", "class_counts") for each in WHOLE),
    *(("shape", name, each) for name in EXPECTED.tensors for each in SHAPES),
    *(("dtype", name, each) for name in EXPECTED.tensors for each in KINDS),
    *(("tensor", name, each) for name in (*EXPECTED.tensors, "more") for each in (False, True)),
    *(("count", name, each) for name in (*EXPECTED.counts, "more") for each in ODD_COUNTS),
    *(("no count", name, None) for name in EXPECTED.counts),
    *(("seconds", name, each) for name in ("train", "more") for each in (*ODD_COUNTS, -1e300, 1e300)),
]


def flawed(flaws: list[Flaw]) -> str:
    """An answer with these flaws: refused if one of them makes it unsound, and only then."""
    tensors, counts, seconds = dict(GOOD.tensors), dict(GOOD.counts), {"train": 1.0}
    for what, name, how in flaws:
        if what == "tensor":
            tensors.pop(name, None)
            if how:
                tensors[name] = torch.ones(EXPECTED.tensors.get(name, ((3,),))[0])
        elif what == "count":
            counts[name] = how
        elif what == "no count":
            counts.pop(name, None)
        elif what == "seconds":
            seconds[name] = how
        elif name in tensors and what == "shape":
            tensors[name] = torch.ones(how, dtype=tensors[name].dtype)
        elif name in tensors and what == "dtype":
            tensors[name] = tensors[name].to(how)
        elif name in tensors and tensors[name].numel():
            tensors[name] = tensors[name].clone()
            with contextlib.suppress(
                RuntimeError, ValueError, OverflowError
            ):  # another dtype by now, which has no such
                tensors[name].view(-1)[-1] = how
    wrong = unsound({name: each for name, each in tensors.items() if name != "seen"}, counts)
    outcome, consumed = taken(codec.encode_reply(Reply(Payload(tensors, counts), None, seconds)))
    if not wrong and outcome.startswith("refused"):
        return f"not taken, though nothing is wrong: {outcome}"
    if wrong and outcome == "fine":
        return f"taken, though {wrong[0]}"
    left = [each for each in consumed if "seen" not in each.tensors]
    return (
        "left out, though nothing is wrong"
        if left and "seen" in tensors and not _unsound("seen", tensors["seen"])
        else outcome
    )


def configs(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Experiments and TOML files with any values."""
    fields = st.dictionaries(
        st.sampled_from([*Experiment.model_fields, "nonsense"]),
        JSON | st.integers(-2, 50) | st.floats(-1, 2),
        max_size=4,
    )

    def attack(example: dict[str, Any] | bytes) -> str:
        if isinstance(example, dict):
            return told(lambda: Experiment(**example))
        (place / "c.toml").write_bytes(example)
        return told(lambda: read_toml(place / "c.toml", "--config"))

    plain = b'lr = 0.1\nrounds = 3\n[fedproc]\ntau = 0.5\nx = [1, {a = "b"}]\n'
    texts = st.binary(max_size=60) | CHANGES.map(lambda changes: changed(plain, changes))
    fuzz(tally, fields | texts, attack, seconds, seed)
    tally.note = "values of every field, and TOML files"


def command_lines(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Whole command lines in children: an exit code of 0, 1 or 2, and at most one sentence."""
    pictures = place / "pictures"
    for name in ("a", "b"):
        (pictures / name).mkdir(parents=True, exist_ok=True)
        for number in range(8):
            Image.new("L", (16, 16), 20 * number + 5 * len(name)).save(pictures / name / f"{number}.png")
    parser = build_parser()
    flags = sorted({word for one in parser._parsers() for word in one._option_string_actions if word.startswith("--")})
    shown = ("--open", "--page", "--help", "--version", "--workers", "--debug")  # the last is there to show tracebacks
    flags = [flag for flag in flags if flag not in shown]
    values = ODD_TEXT | st.sampled_from(["1", "2", "true", "false", "auto", "fedavg", "scaffold", "0.5", str(pictures)])
    values = values.filter(lambda text: "\x00" not in text)
    small = (
        f"--data {pictures} --clients 2 --rounds 1 --epochs 1 --device cpu --min-size 1 --out {place / 'run'}".split()
    )
    commands = st.sampled_from([["run"], ["run"], ["data", "show"], ["data", "split"], ["compare", "--seeds", "0"]])
    others = st.sampled_from([["report"], ["predict"], ["export"], ["list"], ["paper"], ["nonsense"], []])
    pairs = st.lists(st.tuples(st.sampled_from(flags), values), min_size=1, max_size=3)

    def attack(example: tuple[list[str], list[tuple[str, str]], bool]) -> str:
        command, given, tail = example
        words = [*command, *(word for pair in given for word in pair), *(small if tail else [])]
        code, said = forked(lambda: in_this_process(words, place))
        if code != 0:
            return f"exit {code}"
        number, text = said
        if number not in (0, 1, 2) or BUG in text or "Traceback" in text or "\x1b" in text or text.count("\n") > 1:
            return f"code {number}: {text[-600:]}"
        return "fine" if number == 0 else f"refused: {text}"

    lines = st.tuples(commands, pairs, st.just(True)) | st.tuples(others, pairs, st.just(False))
    fuzz(tally, lines, attack, seconds, seed)
    tally.note = f"{len(flags)} flags with odd values, run as commands on 16 images"


def in_this_process(words: list[str], place: Path) -> tuple[int, str]:
    os.chdir(place)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, said.getvalue()


def run_files(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Any value at any place of a run folder's JSON, with right checksums: as somebody who knows the format would."""
    work(place / "whole", IMAGES, **RUNS["fedproc"])
    stopped(place / "left", "fedproc")
    write_json(place / "whole" / "environment.json", environment(torch.device("cpu"), "serial", 1, 1, "fp32"))
    names = ("config.json", "environment.json", "partition.json", "result.json", "metrics.jsonl", "confusion.jsonl")
    before = {name: (place / "whole" / name).read_bytes() for name in names}
    looks = 0

    def attack(example: tuple[str, list[int], Any, bool]) -> str:
        name, way, value, whole_line = example
        path = place / "whole" / name
        if name.endswith("l"):
            records = [json.loads(line) for line in before[name].decode().splitlines()]
            records[0] = value if whole_line and isinstance(value, dict) else put(records[0], way, value)
            for record in records:
                record.pop("chain", None)
            try:
                rewrite(path, records)
            except ValueError:  # not a number that JSON has
                return "fine"
        else:
            content = put(json.loads(before[name]), way, value)
            if name in ("config.json", "result.json"):
                content["checksum"] = content_checksum(content)
            path.write_text(json.dumps(content))
        nonlocal looks
        looks += 1
        outcome = told(lambda: look(place / "whole"))
        if outcome == "fine" and looks % 10 == 0:  # drawing takes a second
            outcome = told(lambda: write_report([place / "whole"], place / "page"))
        path.write_bytes(before[name])
        return outcome

    cases = st.tuples(st.sampled_from(names), st.lists(st.integers(0, 40), max_size=4), JSON, st.booleans())
    fuzz(tally, cases, attack, seconds / 3, seed)
    names_on_pages(tally, place, seconds / 3, seed)
    index = place / "left" / "checkpoint"
    newest = max(index.iterdir()) / "checkpoint.json"
    whole_index = newest.read_bytes()

    def attack_checkpoint(example: tuple[list[int], Any]) -> str:
        from fedproc.runs import checkpoint

        content = put(json.loads(whole_index), *example)
        content.pop("checksum", None)
        content["checksum"] = checkpoint._checksum(content)
        newest.write_text(json.dumps(content))
        outcome = told(lambda: checkpoint._load(newest.parent), RunError)
        newest.write_bytes(whole_index)
        return outcome

    fuzz(tally, st.tuples(st.lists(st.integers(0, 40), max_size=5), JSON), attack_checkpoint, seconds / 3, seed)
    tally.note = (
        "any JSON value at any place of each file, checksums made to fit; a page is drawn of some, "
        "and of names with control characters"
    )


CONTROLS = (
    "\x1b", "\x00", "\x01", "\x08", "\t", "\n", "\x0b", "\x0c", "\r", "\x1f", "\x7f", "\x85", "\x9b", "\u2028",
    "\u202e", "\ufffe", "\uffff", "\ud800",
)  # fmt: skip
SHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
Place = tuple[str, tuple[str | int, ...]]


def names_on_pages(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Names with control characters in the files that a page shows names of, and the page: first in all places at once
    that are not refused, then in some.
    """
    end, chance = time.monotonic() + seconds, random.Random(seed)
    folder = place / "whole"
    files = ("partition.json", "config.json", "result.json", "environment.json")
    before = {name: json.loads((folder / name).read_text()) for name in files}
    clients = [f"site-{number}" for number in range(len(before["partition.json"]["counts"]))]
    whole = {**before, "partition.json": {**before["partition.json"], "client_names": clients}}
    places: list[tuple[Place, str]] = []
    everywhere = [(name, way) for name in files for way in texts_in(whole[name])]
    for number, one in enumerate(everywhere):
        case = [(one, CONTROLS[(number + seed) % len(CONTROLS)])]
        outcome = told(lambda case=case: (write_names(folder, whole, case), look(folder)))
        if outcome == "fine":
            places += case
        tally.count(outcome, case)
    cases = [places]
    while cases:
        case = cases.pop()
        write_names(folder, whole, case)
        tally.count(drawn_page(folder, place / "page"), case if case is not places else f"{len(places)} names at once")
        if time.monotonic() < end and len(tally.problems) <= 5:
            some = chance.sample(places, min(len(places), chance.choice((1, 1, 2, 5))))
            cases.append([(one, chance.choice(CONTROLS)) for one, _ in some])
    write_names(folder, before, [])


def texts_in(content: Any) -> list[tuple[str | int, ...]]:
    """The ways to all texts of nested content but checksums."""
    if isinstance(content, str):
        return [()]
    if not isinstance(content, dict | list):
        return []
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    return [(key, *way) for key, inner in pairs if "checksum" not in str(key) for way in texts_in(inner)]


def write_names(folder: Path, files: Mapping[str, Any], case: list[tuple[Place, str]]) -> None:
    """The files, with a character put into the text at each of the places, and the checksums that fit."""
    for name, content in files.items():
        made = json.loads(json.dumps(content))
        for (file, way), character in case:
            if file == name:
                inner = made
                for key in way[:-1]:
                    inner = inner[key]
                inner[way[-1]] = f"{inner[way[-1]][:2]}{character}{inner[way[-1]][2:]}"
        if "checksum" in made:
            del made["checksum"]
            made["checksum"] = content_checksum(made)
        (folder / name).write_text(json.dumps(made))


def drawn_page(folder: Path, out: Path) -> str:
    """A page of the run: drawn without control characters, its figures whole, or refused in a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that no font has
        outcome = told(lambda: (look(folder), write_report([folder], out)))
    if outcome != "fine":
        return outcome
    for path in (out / "index.html", *sorted(out.rglob("*.svg"))):
        if found := SHOWN.search(text := path.read_text()):
            return f"{path.name} holds {found[0]!r}: {text[max(0, found.start() - 60) : found.end() + 20]!r}"
    return told(lambda: [ElementTree.parse(path) for path in out.rglob("*.svg")])


def put(content: Any, way: list[int], value: Any) -> Any:
    """The value at a place of nested content; numbers choose among what there is."""
    if not way or not isinstance(content, dict | list) or not content:
        return value if not isinstance(content, dict) else {**content, "extra": value}
    keys = list(content) if isinstance(content, dict) else range(len(content))
    key = list(keys)[way[0] % len(keys)]
    inner = put(content[key], way[1:], value) if way[1:] else value
    if isinstance(content, dict):
        return {**content, key: inner}
    return [inner if place == key else each for place, each in enumerate(content)]


def look(folder: Path) -> None:
    for run in gather([folder]).runs:
        _ = run.partition, run.confusion, run.environment, run.client_names, run.status, run.variant, run.alone


def _encoded(kind: str, **how: Any) -> bytes:
    made = io.BytesIO()
    colours = np.random.default_rng(0).integers(0, 256, (20, 20, 3)).astype(np.uint8)
    Image.fromarray(colours).save(made, kind, **how)
    return made.getvalue()


def images(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Image files of every format with changed bytes."""
    files = [_encoded(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]
    files += [_encoded("TIFF", compression="tiff_lzw"), _encoded("JPEG", progressive=True)]

    def attack(example: tuple[int, list[tuple[int, int]]]) -> str:
        which, changes = example
        content = changed(files[which % len(files)], changes)

        def decode() -> None:
            pixels = Picture("x.png", lambda: content).decode(16, 3, "pad")
            assert pixels.shape == (3, 16, 16) and pixels.dtype == np.uint8

        return told(decode)

    fuzz(tally, st.tuples(st.integers(0, 8), CHANGES), attack, seconds, seed)
    tally.note = "PNG, JPEG, GIF, BMP, TIFF, WebP and PPM with up to six changed bytes, or cut"


def archives(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """CIFAR's archives and pickles, and idx files, with changed bytes."""
    parts = tuple(Part(part.name, 4, None) for part in CIFAR10.train[:1])
    cifar = replace(CIFAR10, train=parts, test=(Part("test_batch.bin", 4, None),))
    rows = np.random.default_rng(0).integers(0, 10, (4, 3073)).astype(np.uint8).tobytes()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for part in (*cifar.train, *cifar.test):
            about = tarfile.TarInfo(f"{cifar.folder}/{part.name}")
            about.size = len(rows)
            tar.addfile(about, io.BytesIO(rows))
    batch = pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [1, 2, 3, 4]}, protocol=2)
    idx = bytes([0, 0, 8, 3]) + np.array([2, 8, 8], ">u4").tobytes() + bytes(128)

    def attack(example: tuple[str, list[tuple[int, int]]]) -> str:
        kind, changes = example
        if kind == "tar":
            path = place / cifar.download.name
            path.write_bytes(changed(packed.getvalue(), changes))
            return told(lambda: cifar.read(path))
        if kind == "pickle":
            return told(lambda: cifar_python.binary(changed(batch, changes), "x", ("labels",)))
        path = place / ("x.gz" if kind == "gz" else "x")
        path.write_bytes(changed(gzip.compress(idx, mtime=0) if kind == "gz" else idx, changes))
        return told(lambda: read_idx(path, 3))

    fuzz(tally, st.tuples(st.sampled_from(["tar", "pickle", "idx", "gz"]), CHANGES), attack, seconds, seed)
    tally.note = "CIFAR's .tar.gz and pickles, idx files plain and packed"


def models(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Model files with changed bytes, or another description with the right checksum."""
    from safetensors import safe_open

    from fedproc.runs.model_file import packed

    work(place / "run", IMAGES, **RUNS["fedproc"])
    source, target = place / "run" / "model.safetensors", place / "m.safetensors"
    content = source.read_bytes()
    with safe_open(source, "pt") as file:
        about = json.loads(file.metadata()["fedproc"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["checksum"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 16, 16)).astype(np.uint8)
    before = load_model(source).predict(pixels)

    def attack(example: tuple[str, Any]) -> str:
        kind, how = example
        if kind == "bytes":
            target.write_bytes(changed(content, how))
        elif kind == "head":
            size = int.from_bytes(content[:8], "little")
            target.write_bytes(
                changed(content[: 8 + size], [(at % (8 + size), value | 1) for at, value in how]) + content[8 + size :]
            )
        else:
            name, value = how
            if json.dumps(about.get(name)) == json.dumps(value):
                return "fine"
            target.write_bytes(packed(tensors, {**about, name: value}))
        same = True

        def use() -> None:
            nonlocal same
            same = load_model(target).predict(pixels) == before

        outcome = told(use)
        return outcome if same or kind == "description" else "other predictions, and not a word"

    names = st.sampled_from(list(about))
    cases = st.tuples(st.just("bytes"), CHANGES) | st.tuples(st.just("head"), CHANGES)
    fuzz(tally, cases | st.tuples(st.just("description"), st.tuples(names, JSON)), attack, seconds, seed)
    tally.note = "changed bytes; any value in the description, with the right checksum"


LEFT = re.compile(
    r"<\s*script|javascript:|foreignobject|<[^>]*\son\w+\s*=|url\((?!#)|https?://(?!www\.w3\.org)", re.IGNORECASE
)


def figures(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Figures that want to run or load something."""
    tags = st.sampled_from(
        ["g", "path", "use", "image", "a", "script", "SCRIPT", "foreignObject", "foreignobject", "style", "animate",
         "set", "iframe", "text", "title", "defs", "svg"]
    )  # fmt: skip
    names = st.sampled_from(
        ["href", "xlink:href", "onload", "ONLOAD", "onclick", "style", "fill", "src", "d", "clip-path", "id", "class"]
    )
    texts = st.sampled_from(
        [
            "javascript:alert(1)", "JaVaScRiPt:alert(1)", "http://evil.example/", "url(http://evil.example)", "#a",
            "data:text/html,<script>alert(1)</script>", "url(#a)", "fill: red; background: url(//evil.example)", "M0 0",
        ]
    )  # fmt: skip
    spaces = st.sampled_from(["", " xmlns='http://www.w3.org/1999/xhtml'"])

    def element(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(drawn, tags, spaces, st.dictionaries(names, texts, max_size=3), inner)

    def drawn(tag: str, space: str, pairs: dict[str, str], inside: str) -> str:
        given = "".join(f' {name}="{escape(text)}"' for name, text in pairs.items())
        return f"<{tag}{space}{given}>{inside}</{tag}>"

    trees = st.recursive(st.sampled_from(["", "alert(1)"]), element, max_leaves=6)

    def attack(example: str) -> str:
        links = "xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'"
        made = inline(f"<svg {links} viewBox='0 0 9 9'>{example}</svg>", "a", "t")
        return "fine" if not LEFT.search(made) else f"left in: {made}"

    fuzz(tally, trees, attack, seconds, seed)
    tally.note = "nested SVG elements with links, handlers and styles"
