"""Flags without effect are refused, and what is not given follows the data."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from conftest import typed
from PIL import Image

from fedproc.comparison.compare import compare
from fedproc.data.outline import batch_size_for, epochs_for
from fedproc.effect import expect_effect
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.simulation.watching import few_steps


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of three sites with 60, 90 and 40 images."""
    folder = tmp_path_factory.mktemp("hospitals")
    image = Image.fromarray(np.zeros((16, 16), dtype=np.uint8))
    rows = []
    for site, count in (("Aachen", 60), ("Bern", 90), ("Como", 40)):
        for number in range(count):
            name = f"{site}-{number}.png"
            image.save(folder / name)
            rows.append([name, ("normal", "edema")[number % 2], site])
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "site"], *rows])
    return folder / "images.csv"


REFUSED = {
    "--partition-file x.json": "is for --partition file",
    "--beta 0.1 --partition iid": "dirichlet",
    "--min-size 3 --partition shards": "dirichlet",
    "--classes-per-client 3": "is for --partition shards",
    "--method fedavg --moon.mu 3": "what runs is fedavg",
    "--width 32": "simple-cnn has none",
    "--norm group": "simple-cnn has none",
    "--method solo --average-weights 0.8": "solo merges nothing",
    "--method central --sample 0.5": "central merges nothing",
    "--method fedavg --server-lr 0.5": "other than replace",
    "--method fedavg --calibrate-prototypes 1": "fedavg has no prototype loss",
    "--lr-floor 0.001": "constant does not fall",
    "--ccvr lda --ccvr-samples 10": "is for --ccvr sampled",
    "--test-fraction 0.3": "has test images of its own",
    "--data-dir somewhere": "inside the package",
    "--fine-tune 3": "it is for real sites",
    "--no-alone": "it is for real sites, and --partition dirichlet invents the clients",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_flag_without_effect_is_refused(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = typed(f"run {words} --out {tmp_path / 'run'}", capsys)
    assert code == 2 and "has no effect" in err and REFUSED[words] in err and "leave it out" in err
    assert not (tmp_path / "run").exists()


USED = (
    {"partition": "iid", "min_size": 5},
    {"partition": "quantity", "beta": 0.1},
    {"method": "moon", "moon": {"mu": 3}},
    {"network": "resnet18", "width": 16},
    {"method": "fedavgm", "server_lr": 0.5},
    {"method": "fedetf", "calibrate_prototypes": 1.0},
    {"lr_schedule": "cosine", "lr_floor": 0.001},
)


@pytest.mark.parametrize("given", USED, ids=str)
def test_a_value_with_effect_is_taken(given: dict[str, object]) -> None:
    expect_effect(given, [Experiment(**given)])


def test_one_row_that_uses_it_is_enough(tmp_path: Path) -> None:
    given = {"moon": {"mu": 1.0}, "average_weights": 0.5}
    expect_effect(given, [Experiment(method=method, **given) for method in ("fedavg", "moon")])
    with pytest.raises(InputError, match=r"moon\.mu 1.0: has no effect: what runs is fedavg, fedproc"):
        compare(["fedavg", "fedproc"], [0], tmp_path / "c", moon={"mu": 1.0})
    variants = {"wide": {"method": "fedavg", "width": 32}}
    with pytest.raises(InputError, match="variant wide: width 32: has no effect"):
        compare([], [0], tmp_path / "c", variants=variants)
    assert not (tmp_path / "c").exists()


def test_clients_are_the_sites_that_the_data_name(hospitals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Experiment(data=str(hospitals))
    assert (found.partition, found.clients, found.predictions) == ("natural", 3, "held-out")
    assert Experiment(data=str(hospitals), partition="dirichlet").clients == 10
    code, _, err = typed(f"run --data {hospitals} --clients 5 --out runs/none", capsys)
    assert code == 2 and "the data's sites are the clients" in err


def test_few_images_make_small_batches(hospitals: Path) -> None:
    """The median site trains on 48 of 60 images: six batches of 8, sixty steps per round."""
    found = Experiment(data=str(hospitals))
    assert (found.batch_size, found.epochs, found.rounds) == (8, 10, 100)
    assert Experiment(data=str(hospitals), batch_size=48).epochs == 20
    assert Experiment(data=str(hospitals), epochs=1).epochs == 1
    assert Experiment(data=str(hospitals), val_fraction=0.5).batch_size == 8
    assert (Experiment().batch_size, Experiment().epochs) == (64, 10)
    assert Experiment(**found.config()) == found


def test_batches_and_epochs_by_size() -> None:
    found = [batch_size_for([size]) for size in (10, 95, 96, 191, 192, 383, 384, 10_000)]
    assert found == [8, 8, 16, 16, 32, 32, 64, 64]
    assert batch_size_for([10, 200, 10_000]) == 32
    assert epochs_for([10], 8, 10) == 20 and epochs_for([3], 8, 10) == 20 and epochs_for([48], 8, 1) == 4
    assert epochs_for([48], 8, 10) == 10


def test_own_images_take_the_tuned_preset(hospitals: Path) -> None:
    own = {"data": str(hospitals)}
    found = Experiment(**own)
    assert (found.preset, found.calibrate, found.lr_schedule) == ("tuned", 1.0, "cosine")
    assert (found.options.tau, found.options.combine) == (0.2, "add")  # type: ignore[attr-defined]
    assert Experiment(method="fedavg", **own).calibrate == 1.0
    solo = Experiment(method="solo", **own)
    assert solo.calibrate == 0.0 and solo.lr_schedule == "cosine"  # alone there is no drift to correct
    assert solo.options.epochs == solo.rounds * solo.epochs  # type: ignore[attr-defined]
    assert Experiment(preset="paper", **own).calibrate == 0.0
    assert Experiment(calibrate=0.5, **own).calibrate == 0.5
    assert Experiment().preset == "paper" and Experiment(preset="tuned").calibrate == 1.0


@pytest.mark.parametrize(
    ("field", "value"), [("rounds", "inf"), ("batch_size", "inf"), ("epochs", "nan"), ("rounds", -3)]
)
def test_wrong_numbers_are_told_under_their_own_names(hospitals: Path, field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{field} {value}: expected"):
        Experiment(data=str(hospitals), **{field: value})


def test_a_client_that_takes_few_steps_is_told() -> None:
    (line,) = few_steps([48, 400, 30], ["a", "b", "c"], 64, 3)
    assert "2 of 3 clients take fewer than 5 steps per round" in line and "client a 3, of 48 images" in line
    assert "smaller --batch-size than 64" in line
    assert few_steps([48, 400], ["a", "b"], 8, 1) == []
