from __future__ import annotations

import contextlib

import pytest
from conftest import toy_session

from fedproc import interruption
from fedproc.lanes import choose
from fedproc.simulation.drive import Nobody, drive


def test_a_swallowed_interrupt_still_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_asked", False)
    session = toy_session(rounds=3)
    executor = choose("serial", 1, 1, [session.setting], 5)
    with contextlib.suppress(KeyboardInterrupt):  # as some library might
        interruption.ask()
    with pytest.raises(KeyboardInterrupt):
        drive([session], executor, Nobody())
    executor.close()
    assert not session.records
