"""Refuses what was given and would change nothing: a flag without effect is a misunderstanding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedproc.data import SOURCES
from fedproc.data.outline import outline
from fedproc.data.partition import BY_BETA, BY_MIN_SIZE
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.given import flag
from fedproc.methods import METHODS
from fedproc.methods.fedproc import Prototypical
from fedproc.methods.method import Method
from fedproc.methods.prototype_classifier import PrototypeClassifier
from fedproc.methods.robust import ROBUST
from fedproc.networks import RESIDUAL
from fedproc.privacy.options import PrivacyOptions

Given = Mapping[str, Any]
WITH_PROTOTYPE_LOSS = (Prototypical, PrototypeClassifier)
Reason = Callable[[Experiment], str | None]


def _for_partition(*kinds: str) -> Reason:
    named = f"--partition {kinds[0]}" if len(kinds) == 1 else f"one of --partition {', '.join(kinds)}"
    return lambda e: None if e.partition in kinds else f"is for {named}; this is --partition {e.partition}"


def _clients(e: Experiment) -> str | None:
    says = {
        "natural": "the data's sites are the clients (--partition dirichlet invents others)",
        "file": "the partition file says how many there are",
    }
    return says.get(e.partition)


def _residual(e: Experiment) -> str | None:
    return None if e.network in RESIDUAL else f"is for {' and '.join(RESIDUAL)}; --network {e.network} has none"


def _merged(e: Experiment) -> str | None:
    return None if e.method_type.federated else f"{e.method} merges nothing"


def _server_step(e: Experiment) -> str | None:
    replaces = (e.server_step or e.method_type.server_step) == "replace"
    return _merged(e) or ("is for a --server-step other than replace" if replaces else None)


def _prototypes(e: Experiment) -> str | None:
    ours = METHODS.get(e.method)  # what somebody else's method reads is not known
    return f"{e.method} has no prototype loss" if ours and not issubclass(ours, WITH_PROTOTYPE_LOSS) else None


def _has_test_images(e: Experiment) -> str | None:
    found = None if e.data in SOURCES else outline(e.data, e.test_fraction)
    has = e.data in SOURCES or (found is not None and not found.drawn)
    return f"{e.data} has test images of its own" if has else None


def _own_images(e: Experiment) -> str | None:
    if e.data in SOURCES and e.data != "fashion-mini":
        return None
    return "fashion-mini is inside the package" if e.data in SOURCES else "--data is a path already"


REASONS: dict[str, Reason] = {
    "partition_file": _for_partition("file"),
    "clients": _clients,
    "beta": _for_partition(*BY_BETA),
    "min_size": _for_partition(*BY_MIN_SIZE),
    "classes_per_client": _for_partition("shards"),
    "data_dir": _own_images,
    "test_fraction": _has_test_images,
    "width": _residual,
    "norm": _residual,
    "sample": _merged,
    "average_weights": _merged,
    "send_averaged": _merged,
    "server_beta": _server_step,
    "server_lr": _server_step,
    "calibrate_prototypes": _prototypes,
    "lr_floor": lambda e: "--lr-schedule constant does not fall" if e.lr_schedule == "constant" else None,
    "ccvr_samples": lambda e: None if e.ccvr in ("sampled", "both") else f"is for --ccvr sampled or both, not {e.ccvr}",
}


def _adaptive(p: PrivacyOptions, e: Experiment) -> str | None:
    return None if p.clipping == "adaptive" else "is for --privacy.clipping adaptive"


def _class_means(p: PrivacyOptions, e: Experiment) -> str | None:
    ours = METHODS.get(e.method)
    return f"{e.method} sends no prototypes" if ours and ours.class_means is Method.class_means else None


def _returned(p: PrivacyOptions, e: Experiment) -> str | None:
    ours = METHODS.get(e.method)
    return f"{e.method} returns nothing besides" if ours and ours.returns is Method.returns else None


PRIVACY_REASONS: dict[str, Callable[[PrivacyOptions, Experiment], str | None]] = {
    "quantile": _adaptive,
    "clip_rate": _adaptive,
    "count_noise": _adaptive,
    "prototype_bound": _class_means,
    "prototype_scale": _class_means,
    "prototype_memory": _class_means,
    "returned_scale": _returned,
}


def _expect_privacy(options: Given, made: Sequence[Experiment]) -> None:
    for name, value in ((name.replace("-", "_"), value) for name, value in options.items() if value is not None):
        if name in PRIVACY_REASONS:
            reasons = [PRIVACY_REASONS[name](e.privacy, e) for e in made if e.privacy is not None]
            if reasons and all(reasons):
                where = flag(f"privacy.{name}")
                raise InputError(f"{where} {_shown(value)}: has no effect: {reasons[0]}; leave it out")


def expect_effect(given: Given, experiments: Iterable[Experiment]) -> None:
    """Refuse a value that changes none of the experiments it was given for."""
    made = list(experiments)
    for name, value in ((name.replace("-", "_"), value) for name, value in given.items() if value is not None):
        if isinstance(value, Mapping) and name == "privacy":
            _expect_privacy(value, made)
        elif isinstance(value, Mapping):
            _expect_method(name, value, made)
        elif name in REASONS:
            reasons = [REASONS[name](experiment) for experiment in made]
            if all(reasons):
                raise InputError(f"{flag(name)} {_shown(value)}: has no effect: {reasons[0]}; leave it out")


def _expect_method(name: str, options: Given, made: Sequence[Experiment]) -> None:
    """Options of a method or a merge that runs nowhere."""
    run = list(dict.fromkeys(experiment.method for experiment in made))
    if name.replace("_", "-") in ROBUST:
        run = list(dict.fromkeys(e.merge or e.method_type.merge for e in made if e.method_type.federated)) or run
    if options and name not in {method.replace("-", "_") for method in run}:
        option, value = next(iter(options.items()))
        where = flag(f"{name}.{option}")
        raise InputError(f"{where} {_shown(value)}: has no effect: what runs is {', '.join(run)}; leave it out")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
