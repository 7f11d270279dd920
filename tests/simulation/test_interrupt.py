from __future__ import annotations

import contextlib

import pytest
from conftest import toy_session

from fedproc.lanes import choose
from fedproc.simulation.drive import drive
from fedproc.simulation.interrupt import Interrupt


def test_a_swallowed_interrupt_still_stops_the_run() -> None:
    session, interrupt = toy_session(rounds=3), Interrupt()
    executor = choose("serial", 1, 1, [session.setting], 5)
    with contextlib.suppress(KeyboardInterrupt):  # as some library might
        interrupt.request()
    with pytest.raises(KeyboardInterrupt):
        drive([session], executor, interrupt=interrupt)
    assert not session.records
    another = toy_session(rounds=3)
    drive([another], executor, interrupt=Interrupt())  # a request is one command's
    executor.close()
    assert len(another.records) == 3
