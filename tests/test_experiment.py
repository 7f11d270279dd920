from __future__ import annotations

import pytest

from fedproc import Experiment, InputError
from fedproc.data.augment import AUGMENTATIONS
from fedproc.methods import METHODS

ALL, AUGMENTED = (f"{', '.join(list(names)[:-1])} or {list(names)[-1]}" for names in (METHODS, AUGMENTATIONS))
NETS = "simple-cnn, resnet18, resnet50 or module:Class"


def test_defaults_follow_the_data_set() -> None:
    cifar10 = Experiment(data="cifar10")
    assert (cifar10.lr, cifar10.network, cifar10.augment, cifar10.normalize_z) == (
        0.01,
        "simple-cnn",
        "crop-flip",
        False,
    )
    cifar100 = Experiment(data="cifar100")
    assert (cifar100.lr, cifar100.network, cifar100.augment) == (0.1, "resnet50", "crop-flip-rotate")
    assert cifar100.normalize_z  # follows the learning rate
    assert not Experiment(data="cifar100", lr=0.01).normalize_z
    assert Experiment(data="./pictures").lr == 0.01


def test_precedence_is_given_preset_data_set() -> None:
    code = Experiment(preset="author_code", data="cifar10")
    assert code.normalize_z
    assert (code.options.horizon, code.options.weighting) == (100, "count")  # type: ignore[attr-defined]
    given = Experiment(preset="author_code", data="cifar10", normalize_z=False, fedproc={"weighting": "uniform"})
    assert not given.normalize_z
    assert (given.options.horizon, given.options.weighting) == (100, "uniform")  # type: ignore[attr-defined]


def test_an_unknown_method_is_told_all_there_are() -> None:
    with pytest.raises(InputError, match=rf"method magic: expected fedavg, fedproc, .* or {list(METHODS)[-1]}$"):
        Experiment(method="magic")


def test_preset_concerns_every_method() -> None:
    assert Experiment(method="fedavg", preset="author_code").normalize_z


def test_seeds() -> None:
    assert (Experiment(seed=3).data_seed, Experiment(seed=3).model_seed) == (3, 3)
    mixed = Experiment(seed=3, data_seed=5)
    assert (mixed.data_seed, mixed.model_seed) == (5, 3)


@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
def test_config_gives_the_experiment_back(method: str) -> None:
    experiment = Experiment(method=method, data="cifar100", fedproc={"tau": 0.2}, lanes=3)
    assert Experiment(**experiment.config()) == experiment


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rounds": 0}, "--rounds 0: expected at least 1"),
        ({"rounds": "x"}, "--rounds x: expected a whole number"),
        ({"lr": "nan"}, "--lr nan: expected a finite number"),
        ({"momentum": 1}, "--momentum 1: expected a number below 1"),
        ({"optimizer": "lion"}, "--optimizer lion: expected 'sgd', 'adam' or 'adamw'"),
        (
            {"optimizer": "adam", "momentum": 0.9},
            "--momentum 0.9: has no effect with --optimizer adam, which has --adam-beta1 in its place; leave it out",
        ),
        ({"adam_beta2": 0.9}, "--adam-beta2 0.9: needs --optimizer adam or adamw"),
        (
            {"augment": "flip,twirl"},
            f"--augment twirl: expected {AUGMENTED}, or several of them joined by commas",
        ),
        ({"augment": "none,flip"}, "--augment none,flip: none is with nothing beside it; leave it out"),
        ({"sample": 1.5}, "--sample 1.5: expected at most 1"),
        ({"lanes": "many"}, "--lanes many: expected a whole number or 'auto'"),
        ({"lanes": 0}, "--lanes 0: expected auto or a number of at least 1"),
        (
            {"merge": "medain"},
            "--merge medain: expected mean, normalised, median, trimmed-mean, krum, multi-krum, norm-clip or "
            "geometric-median; did you mean median?",
        ),
        ({"method": "fedprocs"}, f"--method fedprocs: expected {ALL}; did you mean fedproc?"),
        (
            {"preset": "author-code"},
            "--preset author-code: expected paper, tuned or author_code; did you mean author_code?",
        ),
        (
            {"augment": ["flip", "crop-flop"]},
            f"--augment crop-flop: expected {AUGMENTED}, or several of them joined by commas; did you mean crop-flip?",
        ),
        ({"network": "resnet19"}, f"--network resnet19: expected {NETS}; did you mean resnet18?"),
        (
            {"lr_schedule": "cosin"},
            "--lr-schedule cosin: expected 'constant', 'linear' or 'cosine'; did you mean cosine?",
        ),
        ({"device": "cdua"}, "--device cdua: expected auto, cpu, cuda or cuda:N; did you mean cuda?"),
        ({"partiton": "iid"}, "--partiton: no such option; did you mean partition?"),
        ({"lr": True}, "--lr true: expected a number"),
        ({"rounds": False}, "--rounds false: expected a whole number"),
        ({"lanes": True}, "--lanes true: expected a whole number"),
        ({"target_accuracy": True}, "--target-accuracy true: expected a number"),
        ({"fedproc": {"tau": True}}, "--fedproc.tau true: expected a number"),
        ({"method": "solo", "merge": "mean"}, "--merge mean: solo merges nothing; leave it out"),
        ({"lr": 0.1, "lr_floor": 0.2}, "--lr-floor 0.2: expected at most --lr 0.1"),
        ({"send_averaged": True}, "--send-averaged true: needs --average-weights, for example 0.8"),
        ({"fedproc": {"tau": "inf"}}, "--fedproc.tau inf: expected a finite number"),
        ({"preset": "mine"}, "--preset mine: expected paper, tuned or author_code"),
        (
            {"partition": "odd"},
            "--partition odd: expected dirichlet, dirichlet-plain, shards, quantity, iid, natural or file",
        ),
        ({"network": "vgg"}, "--network vgg: expected simple-cnn, resnet18, resnet50 or module:Class"),
        ({"device": "tpu"}, "--device tpu: expected auto, cpu, cuda or cuda:N"),
        ({"image_size": 64}, "--image-size 64: only for your own images; fashion-mini has its own size"),
        ({"nonsense": 1}, "--nonsense: no such option; `fedproc run --help` lists them all"),
        ({"fedproc": {"tau": 0}}, "--fedproc.tau 0: expected a number above 0"),
        ({"fedproc": {"warmth": 1}}, "--fedproc.warmth: no such option; `fedproc run --help` lists them all"),
        ({"method": "fedavg", "fedproc": {"tau": 0}}, "--fedproc.tau 0: expected a number above 0"),
        ({"fedproc": 3}, "fedproc 3: expected a table of options"),
    ],
)
def test_bad_input_is_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(**given)
    assert caught.value.with_flags == sentence


def test_augmentations_are_joined_by_commas_or_a_list() -> None:
    assert Experiment(augment=["rotate", "flip"]).augment == Experiment(augment="flip,rotate").augment == "flip,rotate"


def test_errors_name_fields_in_python_and_flags_on_the_command_line() -> None:
    with pytest.raises(InputError) as caught:
        Experiment(lr=0.1, lr_floor=0.2)
    assert str(caught.value) == "lr_floor 0.2: expected at most lr 0.1"
    assert caught.value.with_flags == "--lr-floor 0.2: expected at most --lr 0.1"
    with pytest.raises(InputError) as caught:
        Experiment(fedproc={"pass_mode": "odd"})
    assert str(caught.value) == "fedproc.pass_mode odd: expected 'clean' or 'training'"
    assert caught.value.with_flags == "--fedproc.pass-mode odd: expected 'clean' or 'training'"
    with pytest.raises(InputError) as caught:
        Experiment(nonsense=1)
    assert str(caught.value) == "nonsense: no such option; `fedproc run --help` lists them all"


def test_learning_rate_and_weight_decay_follow_the_optimizer() -> None:
    adam, adamw = Experiment(optimizer="adam", data="cifar100"), Experiment(optimizer="adamw")
    assert (adam.lr, adam.weight_decay, adam.momentum, adam.normalize_z) == (0.001, 1e-5, 0.0, False)
    assert (adamw.lr, adamw.weight_decay) == (0.001, 0.01)
    assert Experiment(optimizer="adam", lr=0.01).lr == 0.01
    for made in (adam, adamw):
        assert Experiment(**made.config()) == made


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"method": "scaffold"}, "method scaffold needs sgd: its control variates are the mean gradients"),
        ({"method": "feddc"}, "method feddc needs sgd: its control variates"),
        ({"method": "scaffold+fedproc"}, r"method scaffold\+fedproc needs sgd: its control variates"),
        ({"method": "fednova"}, "method fednova needs sgd: it divides each client's move by how far as many steps"),
        ({"method": "fedavg", "merge": "normalised"}, "merge normalised needs sgd: it divides each client's move"),
        (
            {"method": "mime-lite"},
            "method mime-lite needs sgd: its local step is that of SGD with the server's momentum",
        ),
        ({"method": "fedsam", "fedsam": {"local": 0.1}}, "method fedsam needs sgd: with local below 1"),
    ],
)
def test_what_reads_moves_as_gradients_needs_sgd(optimizer: str, given: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=f"^optimizer {optimizer}: {what}"):
        Experiment(optimizer=optimizer, **given)


def test_every_other_method_trains_by_adam() -> None:
    refused = set()
    for name in METHODS:
        try:
            Experiment(optimizer="adam", method=name)
        except InputError:
            refused.add(name)
    assert refused == {"scaffold", "feddc", "scaffold+fedproc", "fednova", "mime-lite"}
    assert Experiment(optimizer="adam", method="fednova", merge="mean").merge == "mean"


def test_augmentations_are_one_experiment_in_any_order() -> None:
    assert Experiment(augment="colour, flip") == Experiment(augment="flip,colour")
