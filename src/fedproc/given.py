"""Values as people give them: their names and flags, and the sentence for each that is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedproc.errors import InputError, meant, suggestion, with_flags

Given = dict[str, Any]


def flag(path: str) -> str:
    """The flag of a field: fedproc.pass_mode -> --fedproc.pass-mode."""
    return "--" + path.replace("_", "-")


def gathered(given: Given) -> Given:
    """Options with their flags' names (`fedproc.tau`) put into the tables of their methods."""
    found = {name: value for name, value in given.items() if "." not in name}
    for name, value in ((name, value) for name, value in given.items() if "." in name):
        method, _, option = name.partition(".")
        table = found.get(method, {})
        if not isinstance(table, dict) or option in table:
            raise InputError(f"{flag(name)} {value}: given twice, also in the table {method}")
        found[method] = {**table, option: value}
    return found


def named(field: str, value: Any, allowed: Mapping[str, Any]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{flag(field)} {value}: expected {one_of(list(allowed))}{meant(value, allowed)}")
    return value


def number(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0  # reported under its own name when the field is checked
    return found if math.isfinite(found) else 0.0


def no_truth(fields: Mapping[str, FieldInfo], given: Given, prefix: str = "") -> None:
    """Refuse true and false where a number is expected: pydantic takes them for 1 and 0."""
    for name, value in given.items():
        kinds = (get_args(fields[name].annotation) or (fields[name].annotation,)) if name in fields else ()
        if isinstance(value, bool) and bool not in kinds and {int, float} & set(kinds):
            expected = "a number" if float in kinds else "a whole number"
            raise ValueError(f"{flag(prefix + name)} {str(value).lower()}: expected {expected}")


def sentence(error: ValidationError, names: Iterable[str], prefix: str = "") -> str:
    """The first complaint as one sentence: the flag, the value, what is allowed."""
    complaints = error.errors()
    first = complaints[0]
    if not first["loc"]:
        cause = first.get("ctx", {}).get("error")
        text = with_flags(cause) if isinstance(cause, Exception) else first["msg"]
        return f"--{prefix}: {text}" if prefix and not text.startswith("--") else text
    path = ".".join(str(part) for part in ([prefix] if prefix else []) + list(first["loc"][:1]))
    if first["type"] == "extra_forbidden":
        hint = suggestion(str(first["loc"][0]), names, "`fedproc run --help` lists them all")
        return f"{flag(path)}: no such option; {hint}"
    same = [c for c in complaints if c["loc"][:1] == first["loc"][:1]]  # a union complains once per member
    allowed = [_allowed(c["type"], c.get("ctx", {}), c["msg"]) for c in same]
    words = " or ".join(allowed).replace(" or expected", " or")
    given, known = first["input"], re.findall("'([^']+)'", words)
    return f"{flag(path)} {given}: {words}{meant(given, known)}"


def _allowed(kind: str, context: dict[str, Any], message: str) -> str:
    if "expected" in context:
        return f"expected {context['expected']}"
    words = {
        "greater_than": "a number above {gt:.10g}",
        "greater_than_equal": "at least {ge:.10g}",
        "less_than": "a number below {lt:.10g}",
        "less_than_equal": "at most {le:.10g}",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "int_type": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "string_type": "a word",
    }
    return f"expected {words[kind].format(**context)}" if kind in words else message[:1].lower() + message[1:]


def one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
