"""Values of an experiment from several places: files, flags, variants."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedproc.errors import InputError, with_flags
from fedproc.files import read_text
from fedproc.given import gathered

Given = dict[str, Any]


def merged(base: Given, over: Given) -> Given:
    """`over` merged into `base`, tables of options field by field."""
    result = gathered({name.replace("-", "_"): value for name, value in base.items()})
    for name, value in gathered({name.replace("-", "_"): value for name, value in over.items()}).items():
        below = result.get(name)
        result[name] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def read_toml(path: Path, flag: str) -> Given:
    """A TOML file; every error names it."""
    try:
        found = tomllib.loads(read_text(path))
    except InputError as error:
        raise InputError(f"{flag} {with_flags(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{flag} {path}: cannot be read: {reason}") from error
    return {name.replace("-", "_") if not isinstance(value, dict) else name: value for name, value in found.items()}


def read_variants(path: Path, methods: Collection[str]) -> dict[str, Given]:
    """A TOML file of named overrides."""
    found = read_toml(path, "--variants")
    for label, values in found.items():
        if not isinstance(values, dict):
            raise InputError(f"--variants {path}: {label} = {values}: expected a table [{label}] of overrides")
        for name, value in values.items():
            if isinstance(value, dict) and name.replace("_", "-") not in (*methods, "privacy"):
                raise InputError(
                    f"--variants {path}: [{label}.{name}]: an unquoted dot begins a table inside the table {label}; "
                    f'write ["{label}.{name}"] for a variant of that name'
                )
    return found
