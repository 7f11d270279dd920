"""What is searched: options of the experiment and of methods, each with its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproc.comparison.overrides import read_toml
from fedproc.errors import InputError, suggestion
from fedproc.experiment import FREE, IMPLIED, Experiment
from fedproc.methods.method import Method

Value = str | int | float | bool
Values = dict[str, Value]  # by option: lr, fedproc.tau

# What all trials of a search have in common: the question, the machine, and what rungs and trials are made of.
SETTING = frozenset(
    {
        *(FREE - {"encoder_weights"}),
        *IMPLIED,
        *("method", "options", "clients", "partition", "beta", "classes_per_client", "min_size", "val_fraction"),
        *("rounds", "sample", "data_seed", "model_seed", "eval_every", "target_accuracy", "keep_clients", "keep"),
        *("ccvr", "ccvr_samples", "smallest_class", "patience", "fit", "skip_unreadable", "privacy"),
        *("merge_options", "attack", "attackers", "attack_strength"),
    }
)
DIGITS = 3  # that are kept of a number drawn from a range


@dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[Value, ...]

    def at(self, share: float) -> Value:
        """The value at a share in [0, 1) of the list."""
        return self.values[int(share * len(self.values))]

    def holds(self, value: object) -> bool:
        return value in self.values

    @property
    def strata(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Range:
    """All numbers between two, evenly or evenly in their logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> Value:
        if self.log:
            number = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + share * (self.high - self.low)
        return self.rounded(number)

    def rounded(self, number: float) -> Value:
        """As it is tried, and written down: a few digits, still inside."""
        inside = min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high)
        return round(inside) if self.whole else inside

    def holds(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    @property
    def strata(self) -> int:
        return 8


Domain = Choices | Range


@dataclass(frozen=True)
class Space:
    """Options that every row has, and those of methods, by the method's name."""

    shared: Mapping[str, Domain]
    by_method: Mapping[str, Mapping[str, Domain]]
    path: Path

    def of(self, method: str, fixed: Mapping[str, Any]) -> dict[str, Domain]:
        """What is searched of a row of this method, without what the row itself fixes."""
        own = {f"{method}.{name}": domain for name, domain in self.by_method.get(method, {}).items()}
        return {name: domain for name, domain in {**self.shared, **own}.items() if name not in fixed}

    def written(self) -> dict[str, Any]:
        """As it is on record."""
        everything = {**self.shared}
        for method, options in self.by_method.items():
            everything |= {f"{method}.{name}": domain for name, domain in options.items()}
        return {name: _written(domain) for name, domain in everything.items()}


def _written(domain: Domain) -> Any:
    if isinstance(domain, Choices):
        return list(domain.values)
    return {"from": domain.low, "to": domain.high, "log": domain.log, "whole": domain.whole}


def read_space(path: Path, methods: Mapping[str, type[Method]]) -> Space:
    """A TOML file: options at its top are every row's, those in a method's table are that method's."""
    shared: dict[str, Domain] = {}
    by_method: dict[str, dict[str, Domain]] = {}
    known = {name.replace("-", "_"): name for name in methods}
    for name, found in read_toml(path, "SPACE").items():
        plain = name.replace("-", "_")
        if plain in known:
            if not isinstance(found, dict):
                raise InputError(f"{path}: {name} = {found}: expected a table [{name}] of the method's options")
            options = methods[known[plain]].options_type.model_fields
            for option, values in found.items():
                if (field := option.replace("-", "_")) not in options:
                    hint = suggestion(field, list(options), f"`fedproc run --help` lists the options of {name}")
                    raise InputError(f"{path}: {name}.{option}: no such option; {hint}")
                by_method.setdefault(known[plain], {})[field] = _domain(path, f"{name}.{option}", values)
        elif plain in SETTING:
            raise InputError(
                f"{path}: {name}: is the same for all trials and cannot be searched; give it on the command line"
            )
        elif plain in Experiment.model_fields:
            shared[plain] = _domain(path, name, found)
        else:
            searched = [field for field in Experiment.model_fields if field not in SETTING]
            hint = suggestion(name, [*searched, *methods], "`fedproc run --help` lists options and methods")
            raise InputError(f"{path}: {name}: no such option or method; {hint}")
    if not shared and not by_method:
        raise InputError(f"{path}: nothing to search in it; expected options with lists of values, lr = [0.01, 0.02]")
    return Space(shared, by_method, path)


def _domain(path: Path, name: str, found: Any) -> Domain:
    where = f"{path}: {name} = {found}"
    if isinstance(found, list):
        if not found or not all(isinstance(value, (str, int, float, bool)) for value in found):
            raise InputError(f"{where}: expected a list of words, numbers or true and false")
        if len({repr(value) for value in found}) != len(found):
            raise InputError(f"{where}: expected each value once")
        return Choices(tuple(found))
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a list of values, or a range {{ from = 0.001, to = 0.1, log = true }}")
    if unknown := set(found) - {"from", "to", "log", "whole"}:
        raise InputError(f"{where}: {sorted(unknown)[0]}: expected from, to, log and whole alone")
    ends: tuple[Any, Any] = found.get("from"), found.get("to")
    log, whole = found.get("log", False), found.get("whole", False)
    numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    low, high = ends
    if not numbers or low >= high:
        raise InputError(f"{where}: expected numbers from and to, the first below the second")
    if not isinstance(log, bool) or not isinstance(whole, bool):
        raise InputError(f"{where}: expected true or false for log and whole")
    if log and low <= 0:
        raise InputError(f"{where}: log = true needs from above 0")
    if whole and (low != int(low) or high != int(high)):
        raise InputError(f"{where}: whole = true needs whole numbers from and to")
    return Range(float(low), float(high), log, whole)
