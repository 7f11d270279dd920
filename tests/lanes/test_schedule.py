from __future__ import annotations

from fedproc.lanes.schedule import changes, schedule, share_out


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


def covered(rigs: list[list[tuple[int, int]]]) -> list[int]:
    return sorted(group for rig in rigs for group, _ in rig)


def test_few_lanes_where_lanes_cost_and_many_where_steps_do() -> None:
    steps = [[30, 5, 5, 5, 5, 5, 5]]  # 30 steps on two lanes or on seven, 60 on one
    assert share_out(steps, 0.1, 7) == share_out(steps, 1e12, 7) == [[(0, 2)]]
    assert share_out([[30, 20]], 0.1, 7) == [[(0, 1)]] and share_out([[30, 20]], 20.0, 7) == [[(0, 2)]]
    assert share_out([[80, 40, 40]], 1e12, 3) == [[(0, 2)]]  # the third lane would not end sooner


def test_groups_share_a_rig_but_not_with_a_much_longer_one() -> None:
    alike = [[10, 9, 8]] * 4
    assert len(share_out(alike, 20.0, 100)) == 1
    rigs = share_out([*alike, [300]], 20.0, 100)
    assert covered(rigs) == [0, 1, 2, 3, 4]
    assert [(4, 1)] in rigs and len(rigs) == 2


def test_a_rig_has_no_more_lanes_than_there_are() -> None:
    for most in (1, 2, 3, 7):
        rigs = share_out([[5, 4], [6, 1, 1], [2]], 1e12, most)
        assert covered(rigs) == [0, 1, 2]
        assert all(sum(lanes for _, lanes in rig) <= most for rig in rigs)
