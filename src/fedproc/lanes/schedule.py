"""Which client runs on which lane, and when: computed on the host from the clients' steps.

A group is the clients that train by one method. Groups may share one captured step, each on lanes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

MANY = 8  # clients per lane from which their order matters more than their length


def schedule(steps: Sequence[int], lanes: int) -> list[list[int]]:
    """The jobs of each lane, in order: the longest first, each to the lane that is free the soonest.

    A lane that is done takes the next job, so that short clients do not wait for long ones. Of very many clients the
    longest do not matter: they go in their own order, so that sums over clients need not wait for those left behind.
    """
    queues: list[list[int]] = [[] for _ in range(min(lanes, len(steps)))]
    loads = [0] * len(queues)
    few = len(steps) < MANY * lanes
    for job in sorted(range(len(steps)), key=lambda j: (-steps[j] if few else 0, j)):
        lane = min(range(len(queues)), key=lambda i: (loads[i], i))
        queues[lane].append(job)
        loads[lane] += steps[job]
    return queues


def length(steps: Sequence[int], lanes: int) -> int:
    """Steps until the last lane is done."""
    return max(sum(steps[job] for job in queue) for queue in schedule(steps, lanes))


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


Shared = list[list[tuple[int, int]]]


def share_out(groups: Sequence[Sequence[int]], latency: float, most: int) -> Shared:
    """Which groups share lanes, and how many each has: lists of (group, lanes), at most `most` lanes in a list.

    A step of L lanes is taken to last `latency` + L. Many lanes waste steps on those that are done early, few waste
    the latency, and a group whose clients are much longer than the others' is better off by itself.
    """
    tables = [[length(steps, lanes) for lanes in range(1, min(most, len(steps)) + 1)] for steps in groups]
    shared = [([group], *_best(tables, [group], latency, most)) for group in range(len(groups))]
    while len(shared) > 1:
        gains = []
        for one, two in combinations(range(len(shared)), 2):
            together = [*shared[one][0], *shared[two][0]]
            if len(together) <= most:
                cost, lanes = _best(tables, together, latency, most)
                gains.append((shared[one][1] + shared[two][1] - cost, one, two, (together, cost, lanes)))
        gain, one, two, merged = max(gains, key=lambda found: found[0], default=(0.0, 0, 0, shared[0]))
        if gain <= 0:
            break
        shared = [each for place, each in enumerate(shared) if place not in (one, two)] + [merged]
    return [list(zip(members, lanes, strict=True)) for members, _, lanes in shared]


def _best(
    tables: Sequence[Sequence[int]], members: Sequence[int], latency: float, most: int
) -> tuple[float, list[int]]:
    """The least cost of groups that share a step, and their lanes; tables[g][i] is group g's length on i + 1 lanes."""
    found: tuple[float, list[int]] | None = None
    for end in sorted({steps for group in members for steps in tables[group]}, reverse=True):
        lanes = [next((i + 1 for i, steps in enumerate(tables[group]) if steps <= end), 0) for group in members]
        if 0 in lanes or sum(lanes) > most:
            continue
        cost = (latency + sum(lanes)) * end
        if found is None or cost < found[0]:
            found = cost, lanes
    if found is None:  # one lane each is all there is
        found = (latency + len(members)) * max(tables[group][0] for group in members), [1] * len(members)
    return found
