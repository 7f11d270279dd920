"""What parts of the work take, without stopping a GPU between them."""

from __future__ import annotations

import time

import torch


class Clock:
    """Starts running; each mark ends a span."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[float | torch.cuda.Event] = []
        self.mark()

    def restart(self) -> None:
        """Begin the first span anew."""
        self._marks = []
        self.mark()

    def mark(self) -> None:
        if not self._on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def spans(self) -> list[float]:
        """Seconds between the marks, as the device passed them; waits for the last."""
        last = self._marks[-1]
        if not isinstance(last, float):
            last.synchronize()
        return [_between(one, two) for one, two in zip(self._marks, self._marks[1:], strict=False)]


def _between(one: float | torch.cuda.Event, two: float | torch.cuda.Event) -> float:
    if isinstance(one, float) or isinstance(two, float):
        assert isinstance(one, float) and isinstance(two, float)
        return two - one
    return float(one.elapsed_time(two)) / 1000
