from __future__ import annotations

from fedproc.lanes.schedule import changes, schedule


def test_longest_first_to_the_lane_free_the_soonest() -> None:
    # 7 and 5 start; 5's lane is free first and takes 4, then 7's takes 3; loads 10 and 9
    assert schedule([3, 7, 5, 4], 2) == [[1, 0], [2, 3]]
    assert schedule([3, 7], 5) == [[1], [0]]


def test_changes_by_hand() -> None:
    queues, steps = [[1, 0], [2, 3]], [3, 7, 5, 4]
    assert changes(queues, steps) == [
        (5, [(1, 2, 3)]),
        (7, [(0, 1, 0)]),
        (9, [(1, 3, None)]),
        (10, [(0, 0, None)]),
    ]
