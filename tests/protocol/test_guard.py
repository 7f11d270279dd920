from __future__ import annotations

import pytest
import torch

from fedproc.protocol.guard import Expected, Refused, admit
from fedproc.protocol.payload import Payload

EXPECTED = Expected({"params": ((2,), torch.float32), "class_counts": ((3,), torch.int64)}, {"samples": None})


def payload(**changes: object) -> Payload:
    tensors = {"params": torch.zeros(2), "class_counts": torch.tensor([1, 0, 2])}
    counts = {"samples": 3}
    for name, value in changes.items():
        if name in counts or isinstance(value, (int, float, bool)):
            counts[name] = value  # type: ignore[assignment]
        else:
            tensors[name] = value  # type: ignore[assignment]
    return Payload(tensors, counts)


def test_a_good_answer_passes() -> None:
    admit(payload(), EXPECTED)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"params": torch.zeros(3)}, "shape"),
        ({"params": torch.zeros(2, dtype=torch.float64)}, "float64"),
        ({"params": torch.tensor([0.0, float("nan")])}, "finite"),
        ({"params": torch.tensor([0.0, float("inf")])}, "finite"),
        ({"class_counts": torch.tensor([1, -1, 0])}, "below 0"),
        ({"class_counts": torch.tensor([1, 2**60, 0])}, "too large"),
        ({"extra": torch.zeros(1)}, "not asked for"),
        ({"samples": 0}, "above 0"),
        ({"samples": 2**60}, "above 0"),
        ({"samples": True}, "above 0"),
        ({"samples": 1.5}, "above 0"),
        ({"strange": 4}, "names differ"),
    ],
)
def test_a_bad_answer_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        admit(payload(**changes), EXPECTED)


def test_a_missing_tensor_is_refused() -> None:
    with pytest.raises(Refused, match="missing"):
        admit(Payload({"params": torch.zeros(2)}, {"samples": 1}), EXPECTED)


def test_bytes() -> None:
    # two float32, three int64, one count
    assert payload().bytes == 2 * 4 + 3 * 8 + 8


def test_a_count_that_is_known_must_be_that() -> None:
    wanted = Expected(EXPECTED.tensors, {"samples": 3})
    admit(payload(), wanted)
    with pytest.raises(Refused, match="samples is 4, expected 3"):
        admit(payload(samples=4), wanted)


@pytest.mark.parametrize("wrong", [torch.tensor([torch.nan, 0.0]), torch.zeros(3), torch.zeros(2).double()])
def test_what_only_observes_never_decides(wrong: torch.Tensor) -> None:
    shapes = {**EXPECTED.tensors, "seen": ((2,), torch.float32)}
    wanted = Expected(shapes, EXPECTED.counts, observe=frozenset({"seen"}))
    assert "seen" in admit(payload(seen=torch.zeros(2)), wanted).tensors
    assert "seen" not in admit(payload(seen=wrong), wanted).tensors
    assert "seen" not in admit(payload(), wanted).tensors
    with pytest.raises(Refused, match="params is not finite"):
        admit(payload(seen=wrong, params=torch.tensor([torch.nan, 0.0])), wanted)


def test_infinite_losses_are_reported_not_refused() -> None:
    wanted = Expected({"losses": ((1,), torch.float64)}, {}, may_be_infinite=frozenset({"losses"}))
    infinite = Payload({"losses": torch.tensor([torch.inf], dtype=torch.float64)})
    assert admit(infinite, wanted).tensors["losses"].item() == torch.inf
