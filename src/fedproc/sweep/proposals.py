"""Which points are tried next. Each proposal is a function of the seed, the space and what was tried before, so a
search that was killed goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedproc.errors import InputError
from fedproc.sweep.space import Choices, Domain, Range, Value, Values

Search = Literal["grid", "random", "tpe"]
SEARCHES: tuple[Search, ...] = ("grid", "random", "tpe")
STARTUP = 4  # trials that TPE takes as they come before it weighs what they showed
TRIES = 1000  # in a row that may be nothing new before a space counts as exhausted

Tried = Sequence[tuple[Values, float]]  # points with their scores


@dataclass(frozen=True)
class Shared:
    """The options that all rows of a search have, and their values in a row's first trial."""

    domains: Mapping[str, Domain]
    first: Values


def candidates(
    search: Search, domains: Mapping[str, Domain], shared: Shared, seed: int, tried: Tried
) -> Iterator[Values]:
    """Points in the order in which they are worth trying; some may have been tried before. The caller takes those that
    are new, and may take many before it has their scores.
    """
    if search == "grid":
        return _grid(domains)
    found = _random(domains, shared, seed) if search == "random" else _tpe(domains, seed, tried)
    return itertools.islice(found, TRIES)


def grid_size(domains: Mapping[str, Domain]) -> int:
    """How many points a grid has; a range has none."""
    for name, domain in domains.items():
        if isinstance(domain, Range):
            raise InputError(f"--search grid: {name} is a range, which has no grid; list its values or take random")
    return int(np.prod([domain.strata for domain in domains.values()], dtype=np.int64))


def _grid(domains: Mapping[str, Domain]) -> Iterator[Values]:
    lists = [domain.values for domain in domains.values() if isinstance(domain, Choices)]
    for point in itertools.product(*lists):
        yield dict(zip(domains, point, strict=True))


def _random(domains: Mapping[str, Domain], shared: Shared, seed: int) -> Iterator[Values]:
    """Balanced draws: of as many points as an option has values, each has another one. All rows are tried at the same
    points of the options that they share, whatever else is searched of them.
    """
    for number, common in enumerate(_common(shared, seed)):
        yield {
            name: common[name] if name in common else _drawn(name, domain, seed, number)
            for name, domain in domains.items()
        }


def _common(shared: Shared, seed: int) -> Iterator[Values]:
    """Points of the shared options; none comes again before all were there, the first trial's among them."""
    domains = shared.domains
    endless = any(isinstance(domain, Range) for domain in domains.values())
    size = None if endless else grid_size(domains)
    inside = all(domain.holds(shared.first[name]) for name, domain in domains.items())
    seen = {tuple(shared.first[name] for name in domains)} if inside else set()
    for number in itertools.count():
        point = {name: _drawn(name, domain, seed, number) for name, domain in domains.items()}
        if len(seen) == size:
            seen.clear()
        if (values := tuple(point.values())) not in seen:
            seen.add(values)
            yield point


def _drawn(name: str, domain: Domain, seed: int, number: int) -> Value:
    block, place = divmod(number, domain.strata)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), block])
    order = rng.permutation(domain.strata)
    within = rng.random(domain.strata) if isinstance(domain, Range) else np.full(domain.strata, 0.5)
    return domain.at(float((order[place] + within[place]) / domain.strata))


def _tpe(domains: Mapping[str, Domain], seed: int, tried: Tried) -> Iterator[Values]:
    """Optuna's tree-structured Parzen estimator, asked before the answers to its earlier questions of this batch are
    known, which it counts as bad ones.
    """
    optuna = _optuna()
    kinds = {name: _distribution(optuna, domain) for name, domain in domains.items()}
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=STARTUP,
        constant_liar=True,
        seed=int(np.random.default_rng([seed, len(tried)]).integers(2**31)),
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, score in tried:
        known = {name: value for name, value in values.items() if name in kinds and domains[name].holds(value)}
        which = {name: kinds[name] for name in known}
        study.add_trial(optuna.trial.create_trial(params=known, distributions=which, value=score))
    while True:
        asked = study.ask(kinds)
        yield {
            name: domain.rounded(asked.params[name]) if isinstance(domain, Range) else asked.params[name]
            for name, domain in domains.items()
        }


def _distribution(optuna: Any, domain: Domain) -> Any:
    if isinstance(domain, Choices):
        return optuna.distributions.CategoricalDistribution(domain.values)
    if domain.whole:
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search tpe: needs Optuna; pip install 'fedproc[sweep]', or take random") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
