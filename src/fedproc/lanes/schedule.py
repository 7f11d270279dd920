"""Which client runs on which lane, and when: computed on the host from the clients' steps."""

from __future__ import annotations

from collections.abc import Sequence


def schedule(steps: Sequence[int], lanes: int) -> list[list[int]]:
    """The jobs of each lane, in order: the longest first, each to the lane that is free the soonest.

    A lane that is done takes the next job, so that short clients do not wait for long ones.
    """
    queues: list[list[int]] = [[] for _ in range(min(lanes, len(steps)))]
    loads = [0] * len(queues)
    for job in sorted(range(len(steps)), key=lambda j: (-steps[j], j)):
        lane = min(range(len(queues)), key=lambda i: (loads[i], i))
        queues[lane].append(job)
        loads[lane] += steps[job]
    return queues


def changes(
    queues: Sequence[Sequence[int]], steps: Sequence[int]
) -> list[tuple[int, list[tuple[int, int, int | None]]]]:
    """(step, [(lane, job that ends there, job that follows)]) in the order of the steps."""
    found: dict[int, list[tuple[int, int, int | None]]] = {}
    for lane, queue in enumerate(queues):
        end = 0
        for place, job in enumerate(queue):
            end += steps[job]
            following = queue[place + 1] if place + 1 < len(queue) else None
            found.setdefault(end, []).append((lane, job, following))
    return sorted(found.items())
