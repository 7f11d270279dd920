"""The command line as a person meets it: real processes, exit codes, one sentence for bad input."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedproc.cli import main
from fedproc.cli.commands import build_parser
from fedproc.experiment import Experiment
from fedproc.given import flag
from fedproc.methods import FAMILIES, METHODS
from fedproc.privacy.options import PrivacyOptions

SMALL = "--clients 3 --rounds 2 --epochs 1 --device cpu"


def fedproc(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    code = main(words.split())
    for number, handler in before.items():
        signal.signal(number, handler)
    out, err = capsys.readouterr()
    return code, out, err


def test_run_prints_lines_and_a_table(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"run --data {pictures} {SMALL} --out {tmp_path / 'run'}"
    code, out, err = fedproc(words, capsys)
    assert (code, err) == (0, "")
    assert "fedproc  round 2/2" in out and "round 1/2" not in out  # a line every 10 s at most
    assert "final accuracy" in out and "3 classes; 3 clients" in " ".join(out.split())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert f"{100 * result['final_accuracy']:.2f} %" in out
    code, again, _ = fedproc(words, capsys)
    assert code == 0 and "round 2/2" not in again and "final accuracy" in again


def test_a_run_was_started_when_its_first_command_was(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / "environment.json"
    words = f"run --method fedavg --preset paper --data {pictures} {SMALL} --out {tmp_path / 'run'}"
    assert fedproc(words, capsys)[0] == 0
    path.write_text(json.dumps({**json.loads(path.read_text()), "started": "2020-01-01T00:00:00+00:00"}))
    assert fedproc(f"{words} --rounds 3", capsys)[0] == 0
    assert json.loads(path.read_text())["started"].startswith("2020")
    assert fedproc(f"{words} --fresh", capsys)[0] == 0
    assert not json.loads(path.read_text())["started"].startswith("2020")


def test_toml_flags_and_presets_in_that_order(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(
        'lr = 0.02\nbatch-size = 8\npreset = "author_code"\n[fedproc]\ntau = 0.5\nhorizon = 7\n'
    )
    flags = f"--config {tmp_path / 'c.toml'} --lr 0.03 --fedproc.tau 0.2 --out {tmp_path / 'r'}"
    assert fedproc(f"run --data {pictures} {SMALL} {flags}", capsys)[0] == 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["lr"], config["batch_size"], config["normalize_z"]) == (0.03, 8, True)
    assert (config["fedproc"]["tau"], config["fedproc"]["horizon"], config["fedproc"]["weighting"]) == (0.2, 7, "count")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run --rounds", "--rounds: expected a value after it"),
        ("run --rounds --epochs 3", "--rounds: expected a value after it"),
        ("run --ronds 3", "--ronds: not understood; did you mean --rounds?"),
        ("run --round 3", "--round: not understood; did you mean --rounds?"),
        ("run stray", "stray: not understood"),
        ("comapre", "COMMAND: not known: 'comapre' (choose from "),
        ("run --log mlfow", "--log mlfow: expected tensorboard, mlflow, wandb; did you mean mlflow?"),
        ("compare --methods fedprocs", "--methods fedprocs: expected "),
        (
            "compare --workers atuo",
            "--workers atuo: expected auto, or a whole number of at least 1; did you mean auto?",
        ),
        ("run --rounds 3 stray", "stray: not understood"),
        ("run --rounds 0", "--rounds 0: expected at least 1"),
        ("run --rounds 2.5", "--rounds 2.5: expected a whole number"),
        ("run --lr -1", "--lr -1: expected a number above 0"),
        ("run --fedproc.tau zero", "--fedproc.tau zero: expected a number"),
        ("run --fedproc.taau 1", "--fedproc.taau: not understood; did you mean --fedproc.tau?"),
        ("run --method magic", "--method magic: expected fedavg, fedproc, "),
        ("run --data magic", "--data magic: expected fashion-mini, fashion-mnist, mnist, cifar10"),
        ("run --clients 1001", "clients 1001 with min-size 10: needs 10010 samples, the data has 10000"),
        ("run --data cifar10 --data-dir nowhere", "--data-dir nowhere: no such folder"),
        ("run --config nowhere.toml", "--config nowhere.toml: cannot be read: No such file or directory"),
        ("run --network nothing:Net", "--network nothing:Net: cannot make the encoder"),
        ("compare --seeds a", "--seeds a: expected whole numbers"),
        ("compare --seeds 1 1", "--seeds 1 1: expected each seed once"),
        ("compare --seeds", "--seeds: expected at least one argument"),
        ("compare --methods fedavg magic", "--methods magic: expected fedavg, fedproc, "),
        ("compare --variants nowhere.toml", "--variants nowhere.toml: cannot be read: No such file or directory"),
        ("compare --seeds -1", "--seeds -1: expected at least 0"),
        ("run --seed 4294967296", "--seed 4294967296: expected a number below 4294967296"),
        ("paper accuracy --seeds a", "--seeds a: expected whole numbers"),
        ("paper accuracy --beta 3", "--beta: not understood; other commands have it; --help lists what this one has"),
        ("list everything", "things: not known: 'everything'"),
        ("data show --beta 0", "--beta 0: expected a number above 0"),
        ("magic", "COMMAND: not known: 'magic'"),
        ("data", "the following arguments are required: COMMAND"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = fedproc(words, capsys)
    assert code == 2
    assert err.startswith(f"fedproc: {sentence}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "begins"), [("", "usage: fedproc [-h]"), ("--version", "fedproc ")])
def test_nothing_gives_help_and_the_version_is_told(
    words: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        fedproc(words, capsys)
    printed = capsys.readouterr().out
    assert left.value.code == 0 and printed.startswith(begins)
    assert words == "" or f"torch {torch.__version__}" in printed


def test_a_bad_toml_value_names_its_field(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("rounds = 'many'\n")
    code, _, err = fedproc(f"run --config {tmp_path / 'c.toml'} --out {tmp_path / 'r'}", capsys)
    assert (code, err) == (2, "fedproc: --rounds many: expected a whole number\n")
    (tmp_path / "c.toml").write_text("ruonds = 3\n")
    code, _, err = fedproc(f"run --config {tmp_path / 'c.toml'} --out {tmp_path / 'r'}", capsys)
    assert code == 2 and err.endswith("c.toml: ruonds: no such option; did you mean rounds?\n")
    (tmp_path / "c.toml").write_text("rounds = \n")
    code, _, err = fedproc(f"run --config {tmp_path / 'c.toml'} --out {tmp_path / 'r'}", capsys)
    assert code == 2 and "c.toml: cannot be read" in err


def test_help_explains_every_field_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    (run,) = (parser for parser in build_parser()._parsers() if parser.prog == "fedproc run")
    texts = {action.dest: action.help or "" for action in run._actions}
    fields = {name: field for name, field in Experiment.model_fields.items() if name not in ("options", "privacy")}
    fields |= {f"privacy.{name}": field for name, field in PrivacyOptions.model_fields.items()}
    for method, kind in METHODS.items():
        fields |= {f"{method}.{name}": field for name, field in kind.options_type.model_fields.items()}
    for name, field in fields.items():
        assert field.description and field.description in texts[name], name
        assert f" {flag(name)} " in printed, name
        follows = "follows" in field.description
        if field.default not in (None, ()) and not follows:
            shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert texts[name].endswith(f"default: {shown}"), name


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("comapre", "compare"),
        ("list metods", "methods"),
        ("export run --format onx", "onnx"),
        ("run --data fashion-mnit", "fashion-mnist"),
        ("run --partition dirichlett", "dirichlet"),
        ("compare --methods fedprocs", "fedproc"),
        ("paper ronds", "rounds"),
    ],
)
def test_values_that_are_misspelt_are_guessed(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedproc(words, capsys)
    assert code == 2 and err.endswith(f"; did you mean {hint}?\n")


def test_truth_is_no_number_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("lr = true\n")
    code, _, err = fedproc(f"run --config {tmp_path / 'c.toml'}", capsys)
    assert code == 2 and err == "fedproc: --lr true: expected a number\n"
    (tmp_path / "c.toml").write_text('"fedproc.tau" = false\n')
    code, _, err = fedproc(f"run --config {tmp_path / 'c.toml'}", capsys)
    assert code == 2 and err == "fedproc: --fedproc.tau false: expected a number\n"


def test_a_full_disk_ends_with_1_naming_the_path_and_keeps_the_last_checkpoint(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [sys.executable, "-m", "fedproc", "run", "--data", str(pictures), *SMALL.split(), "--checkpoint-every", "1"]
    words += ["--out", str(out), "--method", "fedavg", "--preset", "paper"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    words[words.index("--rounds") + 1] = "4"

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # config and metrics fit, a checkpoint does not

    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=little_room)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("fedproc: ") and "Traceback" not in done.stderr
    assert str(out / "checkpoint" / "round-000003") in done.stderr and "File too large" in done.stderr
    assert [p.name for p in (out / "checkpoint").iterdir()] == ["round-000002"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert json.loads((out / "result.json").read_text())["rounds"] == 4


def test_a_folder_that_cannot_be_made_ends_with_1_naming_it(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedproc(f"run --data {pictures} {SMALL} --out /proc/fedproc/run", capsys)
    assert code == 1 and "/proc/fedproc/run: cannot be written" in err


def test_divergence_ends_with_1_and_says_what_to_try(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run --data {pictures} {SMALL} --method fedavg --lr 1e30 --out {tmp_path / 'run'}"
    code, _, err = fedproc(words, capsys)
    assert code == 1 and "diverged in round" in err and "--lr" in err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    for thing, name in (
        ("methods", "fedproc"),
        ("data", "cifar100"),
        ("networks", "resnet18"),
        ("presets", "author_code"),
    ):
        code, out, _ = fedproc(f"list {thing}", capsys)
        assert code == 0 and name in out


def test_methods_are_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = fedproc("list methods", capsys)
    lines = [line.rstrip() for line in out.splitlines()]
    assert [line for line in lines if line in FAMILIES] == list(FAMILIES)
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(listed) == sorted(METHODS)
    assert (
        lines.index("prototypes") < [line.split()[:1] for line in lines].index(["fedetf"]) < lines.index("client drift")
    )


def test_a_combined_method_and_what_comes_after_the_last_round(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = (
        f"run --data {pictures} {SMALL} --out {out} --method scaffold+fedproc --scaffold+fedproc.alpha 0.5 --ccvr lda"
    )
    code, printed, _ = fedproc(words, capsys)
    result = json.loads((out / "result.json").read_text())
    assert code == 0 and f"final lda accuracy       │ {100 * result['final_lda_accuracy']:.2f}" in printed
    config = json.loads((out / "config.json").read_text())
    assert config["scaffold+fedproc"]["alpha"] == 0.5 and config["ccvr"] == "lda"
    code, _, err = fedproc(words.replace("lda", "both"), capsys)
    assert code == 2 and "--ccvr both" in err
    code, _, err = fedproc(f"run --data {pictures} {SMALL} --out {tmp_path / 'solo'} --method solo --ccvr lda", capsys)
    assert code == 2 and "--ccvr lda: solo has models of each client's own" in err


def test_the_page_of_methods_has_them_all_by_family() -> None:
    folder = Path(__file__).parent.parent.parent / "docs" / "methods"
    lines = (folder / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    families = {first.strip("[").split("]")[0]: (first, names) for first, names in rows}
    assert list(families) == list(FAMILIES)
    for family, (first, names) in families.items():
        page = (folder / first.split("(")[1].strip(")")).read_text() if "(" in first else names
        for name, method in METHODS.items():
            assert (f"`{name}`" in names) is (method.family == family)
            assert method.family != family or f"`{name}`" in page


def test_data_show_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedproc(f"data show --clients 5 --out {tmp_path / 'new' / 'p.png'}", capsys)
    assert code == 0 and "heterogeneity 0." in out and "5 clients" in out
    assert Image.open(tmp_path / "new" / "p.png").size[0] > 500
    code, out, err = fedproc(f"data show --clients 5 --out {tmp_path / 'new' / 'p.png' / 'q.png'}", capsys)
    assert (code, out) == (2, "") and "a file is in the way" in err


def test_sites_keep_their_names(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for site in ("north", "south"):
        shutil.copytree(pictures, tmp_path / "own" / site)
    words = f"--data {tmp_path / 'own'} --partition natural"
    code, out, _ = fedproc(f"data show {words} --out {tmp_path / 'p.png'}", capsys)
    assert code == 0 and "north" in out and "south" in out
    assert fedproc(f"data split {words} --out {tmp_path / 'sites'}", capsys)[0] == 0
    names = json.loads((tmp_path / "sites" / "sites.json").read_text())["names"]
    assert names == {"site-1": "north", "site-2": "south"}
    for method in ("fedavg", "central"):
        small = SMALL.removeprefix("--clients 3 ")
        code, _, _ = fedproc(f"run {words} --method {method} {small} --out {tmp_path / 'runs' / method}", capsys)
        assert code == 0
    found = json.loads((tmp_path / "runs" / "fedavg" / "partition.json").read_text())
    assert found["client_names"] == ["north", "south"] and len(found["counts"]) == 2
    assert "client_names" not in json.loads((tmp_path / "runs" / "central" / "partition.json").read_text())
    assert fedproc(f"report {tmp_path / 'runs'} --out {tmp_path / 'page'}", capsys)[0] == 0
    shown = f"north, {found['class_names'][0]}: {found['counts'][0][0]}"
    assert shown in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_data_split_writes_sites(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = fedproc(f"data split --data {pictures} --clients 3 --beta 0.5 --out {tmp_path / 'sites'}", capsys)
    assert code == 0
    assert (
        len(list((tmp_path / "sites").glob("site-*/*/*.png"))) == 144
        and len(list((tmp_path / "sites").glob("test/*/*"))) == 36
    )
