"""What each file of a run folder must hold, and the one way to read them: whatever is wrong is named with file, field
and value. Folders of the first format (before chained lines) are read as well.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedproc.errors import InputError
from fedproc.files import read_text

Record = dict[str, Any]
FORMAT = 3  # 1: lines without checksums; 2: config.json without one


Count = Annotated[int, Field(ge=0, lt=1 << 53)]  # what a float holds exactly
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x{9f}\x{fffe}\x{ffff}]*$")]  # those of data have no others


class Schema(BaseModel):
    """Fields that others rely on; further ones may stand beside them."""

    model_config = ConfigDict(strict=True, extra="allow")


class ConfigFile(Schema):
    method: str
    fingerprint: str
    data: str
    seed: int
    data_seed: int
    clients: Count
    partition: str
    beta: float
    sample: float
    rounds: Count
    epochs: Count
    lr: float
    network: str
    merge: str | None = None
    attack: str | None = None
    attackers: Annotated[float, Field(gt=0, lt=1)] | None = None
    attack_strength: float | None = None


class SourcesBefore(Schema):
    commit: str | None = None
    source_sha256: str | None = None


class EnvironmentFile(Schema):
    device: str
    executor: str
    lanes: int
    threads: int
    started: str | None = None
    kernels: str | None = None
    runs_at_once: int | None = None
    workers: int | None = None
    command: list[str] = []
    commit: str | None = None
    source_sha256: str | None = None
    earlier: list[SourcesBefore] = []


class PartitionFile(Schema):
    class_names: list[Name]
    counts: list[list[int]]
    client_names: list[Name] = []


class Closing(Schema):
    refused: dict[str, str] = {}


class MetricsLine(Schema):
    round: Count
    samples: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    seconds: dict[str, float] = {}
    test_accuracy: float | None = None
    val_accuracy: float | None = None
    prototype_accuracy: float | None = None
    val_prototype_accuracy: float | None = None
    train_loss: float | None = None
    refused: dict[str, str] = {}
    closing: Closing | None = None
    class_accuracy: list[float | None] | None = None
    val_class_accuracy: list[float | None] | None = None


class ConfusionLine(Schema):
    round: Count
    confusion: list[list[Count]]


class SiteCounts(Schema):
    correct: list[Count]
    total: list[Count]


class SitesLine(Schema):
    round: Count
    sites: dict[str, SiteCounts]


class ResultFile(Schema):
    status: Literal["finished", "diverged", "failed"]


class FinishedResult(Schema):
    rounds: int
    seconds: float
    final_accuracy: float
    best_accuracy: float
    last10_accuracy: float
    final_prototype_accuracy: float


class ValidatedResult(Schema):
    rounds: int
    seconds: float
    val_final_accuracy: float
    val_best_accuracy: float
    val_last10_accuracy: float
    val_final_prototype_accuracy: float


class EndedResult(Schema):
    round: int
    reason: str


class ClientFiles(Schema):
    files: dict[str, tuple[str, str]]
    last: dict[str, tuple[int, int]]


class CheckpointValues(Schema):
    round: int
    sizes: list[int]
    accepted: list[int]
    bytes_up: int
    bytes_down: int
    clients: ClientFiles
    lines: dict[str, list[str]]  # of metrics.jsonl and confusion.jsonl: the checksums that the last line may have
    untold: dict[str, Record] = {}  # the round's lines, where they were written after the checkpoint


class TensorPlace(Schema):
    dtype: str
    shape: list[int]
    offset: int


class CheckpointFile(Schema):
    schema_: int = Field(alias="schema")
    values: CheckpointValues
    tensors: dict[str, TensorPlace]
    shards: dict[str, str]
    checksum: str


Model = TypeVar("Model", bound=Schema)


def read(path: Path, schema: type[Model]) -> Model | None:
    """A JSON file as its schema; None where there is no such file."""
    found = read_json(path)
    return None if found is None else checked(path, found, schema)


def checked(where: Path | str, found: Record, schema: type[Model]) -> Model:
    """An object of a file as its schema; `where` names it."""
    try:
        return schema.model_validate_json(json.dumps(found))
    except ValidationError as error:
        raise InputError(f"{where}: {_sentence(error)}") from None


def read_json(path: Path) -> Record | None:
    try:
        found = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object")
    return found


def read_config(path: Path) -> Record | None:
    """A run's config.json without its checksum, which is compared; those of earlier formats have none."""
    found = read_json(path)
    return None if found is None else checked_config(path, found)


def checked_config(path: Path, found: Record) -> Record:
    checked(path, found, ConfigFile)
    expect_checksum(path, found, found.get("format", 1) not in (1, 2))
    return {name: value for name, value in found.items() if name != "checksum"}


def expect_checksum(path: Path, found: Record, needed: bool) -> None:
    """Refuse a file that was changed; one that is `needed` to have a checksum may not have lost it either."""
    if "checksum" not in found and not needed:
        return
    if found.get("checksum") != content_checksum(found):
        raise InputError(f"{path}: its checksum is wrong: it was changed")


def content_checksum(content: Record) -> str:
    """Of what a file says."""
    said = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a word",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "tuple_type": "a list",
    "finite_number": "a finite number",
    "less_than": "a smaller number",
    "less_than_equal": "a smaller number",
    "greater_than": "a larger number",
    "greater_than_equal": "a larger number",
    "too_short": "one at least",
    "string_too_long": "a shorter word",
    "string_pattern_mismatch": "a name without control characters",
    "json_invalid": "JSON in UTF-8",
}


def _sentence(error: ValidationError) -> str:
    """The first complaint: the field, its value, what was expected."""
    complaints = error.errors()
    first = complaints[0]
    names = [str(part) for part in first["loc"] if part not in ("int", "float", "constrained-int", "constrained-float")]
    name = ".".join(names) or "the file"
    if first["type"] == "missing":
        return f"{name} is missing"
    same = {WORDS.get(c["type"], _expected(c)) for c in complaints if c["loc"][:1] == first["loc"][:1]}
    if {"a whole number", "a number"} <= same:
        same -= {"a whole number"}
    plain = isinstance(first["input"], str) and first["input"].isprintable()
    shown = first["input"] if plain else json.dumps(first["input"])
    return f"{name} {shown[:60]}: expected {' or '.join(sorted(same))}"


def _expected(complaint: Any) -> str:
    return str(complaint.get("ctx", {}).get("expected", complaint["msg"])).replace("'", "")
