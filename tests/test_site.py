"""A client as an object: it answers tasks, and its state is a transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ToyLibrary, Train, toy_experiment, toy_images

from fedproc.errors import Diverged
from fedproc.lanes import choose
from fedproc.protocol import codec
from fedproc.protocol.plan import State, first_state
from fedproc.protocol.rounds import played
from fedproc.protocol.task import SERVER, Reply, Task
from fedproc.protocol.weights import Weights
from fedproc.simulation.session import Session
from fedproc.site import OwnState, Site

TOYS = Path(__file__).resolve().parent / "toy_methods.py"


def federation(refuse: set[tuple[int, int]] = frozenset(), **given: Any) -> tuple[Session, list[State], list[OwnState]]:  # type: ignore[assignment]
    """Sites of their own, each with its own state, that see nothing but the bytes of tasks; the server refuses the
    answers of (round, client) in `refuse`.
    """
    session = Session(toy_experiment(dtype="float64", **given), ToyLibrary(toy_images()))
    executor = choose("serial", 1, 1, [session.setting], 1)
    states = [OwnState() for _ in session.clients]
    sites = {}
    for number, own in enumerate(states):
        whole = session.site(number)
        sites[number] = Site(number, whole.name, session.setting, whole.data, own, whole.held_out, whole._fresh)
    sites[SERVER] = session.site(SERVER)

    def reply_to(task: Task) -> Reply:
        arrived = codec.decode_task(codec.encode_task(task))
        answer = codec.decode_reply(codec.encode_reply(sites[task.client].do(arrived, executor)))
        lost = task.kind == "train" and (task.round, task.client) in refuse
        return Reply(None, "lost on the way") if lost else answer

    weights = session.setting.layout.read(session.setting.network)
    start = first_state(session.plan, Weights(*weights.tensors().values()))
    found = [progress.state for progress in played(session.plan, start, reply_to)]
    executor.close()
    return session, found, states


def test_sites_that_share_nothing_train_what_the_simulator_trains(train: Train) -> None:
    for method in ("fedproc", "scaffold", "moon", "solo"):
        given = {"method": method, "rounds": 3, "solo": {"epochs": 4}}
        _, found, states = federation(**given)
        simulated = train(toy_images(), dtype="float64", **given)
        assert torch.equal(found[-1].weights.params, simulated.state.weights.params), method
        for client, own in enumerate(states):
            own.settle(found[-1].accepted[client])
            one, other = own.latest(client) or {}, simulated.states.get(client) or {}
            assert set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_counts_when_the_answer_was_accepted_and_not_before() -> None:
    given = {"method": "remembers", "plugin": [TOYS], "rounds": 4}
    _, found, states = federation({(1, 0), (2, 3)}, **given)
    times = []
    for client, own in enumerate(states):
        own.settle(found[-1].accepted[client])
        state = own.latest(client)
        assert state is not None
        times.append(float(state["times"]))
    assert times == [3.0, 4.0, 4.0, 3.0, 4.0]  # clients 0 and 3 lost a round, and its state with it


def test_own_state_is_settled_by_the_round_that_was_accepted() -> None:
    own = OwnState()
    own.commit(0, 4, {"a": torch.tensor(1.0)})
    assert own.latest(0) is None
    own.settle(4)
    assert own.latest(0) == {"a": torch.tensor(1.0)}
    own.commit(0, 5, {"a": torch.tensor(2.0)})
    own.settle(4)  # round 5 was not accepted
    assert own.latest(0) == {"a": torch.tensor(1.0)}
    own.settle(5)  # and is forgotten
    assert own.latest(0) == {"a": torch.tensor(1.0)}


def test_a_site_answers_a_failure_with_its_reason() -> None:
    session = Session(toy_experiment(method="scalar-loss", plugin=[TOYS]), ToyLibrary(toy_images()))
    tasks: list[Task] = []
    weights = Weights(*session.setting.layout.read(session.setting.network).tensors().values())
    executor = choose("serial", 1, 1, [session.setting], 1)

    def reply_to(task: Task) -> Reply:
        tasks.append(task)
        return session.site(task.client).do(task, executor)

    with pytest.raises(Diverged, match="method scalar-loss, hook `loss`"):
        list(played(session.plan, first_state(session.plan, weights), reply_to))
    executor.close()
