"""Everything that a person's own code returns is checked where it is called: a method that breaks its contract is named
with its hook, whatever executor runs it, instead of training wrongly. Here is what both halves have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedproc.errors import MethodError
from fedproc.methods.method import Method
from fedproc.protocol.guard import Shapes
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import NAMES, Weights
from fedproc.whereabouts import in_words

RESERVED = frozenset({*NAMES, "losses", "class_means", "class_counts", "class_covariances"})
FAR = 1e15  # values up to which a result that is not finite is the method's doing, and no divergence


Versions = list[tuple[Tensor, int]]


def versions(held: object) -> Versions:
    """The tensors, and how often each was changed in place."""
    return [(tensor, tensor._version) for tensor in _tensors_in(held)]


class Checked:
    """Calls hooks, naming method and hook in whatever goes wrong."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def _call(self, hook: str, *given: Any, held: Sequence[object] = ()) -> Any:
        """What the hook gives; tensors in `held` must be as they were."""
        before = versions(held)
        with self._naming(hook):
            found = getattr(self.method, hook)
            found = found(*given) if callable(found) else found
        self.unchanged(hook, before)
        return found

    def unchanged(self, hook: str, before: Versions) -> None:
        if any(tensor._version != version for tensor, version in before):
            self._fail(hook, "changes a tensor that it was given in place; return a new one")

    def _naming(self, hook: str) -> _Naming:
        return _Naming(self, hook)

    def _fail(self, hook: str, reason: str) -> None:
        raise MethodError(self.method.name, hook, reason, self)

    def expect(self, fine: bool, hook: str, got: object, expected: str) -> None:
        if not fine:
            self._fail(hook, f"gave {got if isinstance(got, str) else shown(got)}, expected {expected}")

    def _tensors(self, hook: str, *given: Any, held: Sequence[object] = ()) -> Tensors:
        found = self._call(hook, *given, held=held)
        self.expect(isinstance(found, Mapping), hook, found, "tensors by name")
        for name, tensor in found.items():
            self.expect(isinstance(name, str), hook, name, "names that are words")
            self.expect(isinstance(tensor, Tensor), hook, f"{name} = {shown(tensor)}", "a tensor")
        return dict(found)

    def _finite(self, hook: str, found: Tensors, given: Sequence[object]) -> Tensors:
        """A result that is not finite, of numbers that are and are not large, is the method's doing."""
        for name, tensor in found.items():
            if not _is_finite(tensor) and all(_is_moderate(each) for each in _tensors_in(given)):
                self._fail(hook, f"gave {name} that is not finite, of finite numbers")
        return found

    def term_names(self) -> tuple[str, ...]:
        found = self._call("term_names")
        fine = isinstance(found, tuple) and bool(found) and all(isinstance(name, str) for name in found)
        fine = fine and len(set(found)) == len(found) and "loss" not in found
        self.expect(fine, "term_names", found, "a tuple of names, each once, none of them loss")
        return found  # type: ignore[no-any-return]

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        found = self._call("returns", params, dtype)
        self.expect(isinstance(found, Mapping), "returns", found, "shapes and dtypes by name")
        taken = sorted(RESERVED & set(found))
        self.expect(not taken, "returns", taken, "names of its own")
        for name, entry in found.items():
            fine = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], torch.dtype)
            fine = fine and isinstance(entry[0], (tuple, list)) and all(isinstance(n, int) for n in entry[0])
            self.expect(fine, "returns", f"{name}: {shown(entry)}", "(shape, dtype)")
        return {name: (tuple(shape), kind) for name, (shape, kind) in found.items()}


class _Naming:
    """Names method and hook in whatever a person's own code raises."""

    def __init__(self, checked: Checked, hook: str) -> None:
        self._checked, self._hook = checked, hook

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, (torch.OutOfMemoryError, KeyboardInterrupt, GeneratorExit)):
            return
        if isinstance(error, MethodError) and error.source is self._checked:
            return
        reason = error.reason if isinstance(error, MethodError) else in_words(error)
        raise MethodError(self._checked.method.name, self._hook, reason, self._checked) from error


def _tensors_in(given: object) -> Iterator[Tensor]:
    """All tensors of nested mappings, lists and dataclasses."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _tensors_in(value)
    elif isinstance(given, (list, tuple)):
        for value in given:
            yield from _tensors_in(value)
    elif is_dataclass(given) and not isinstance(given, type):
        for each in fields(given):
            yield from _tensors_in(getattr(given, each.name))


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _is_moderate(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or not tensor.numel() or bool((tensor.abs() < FAR).all())


def alike(found: object, like: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == like.shape and found.dtype == like.dtype


def same_weights(found: object, like: Weights) -> bool:
    return isinstance(found, Weights) and all(
        alike(tensor, other) for tensor, other in zip(found.tensors().values(), like.tensors().values(), strict=True)
    )


def kind(value: object) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else shown(value)


def shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {kind(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
