"""What a client sends is bounded, the sum has its noise, and the mean answer is what the clients' mean would be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedproc.privacy.client import PrivateClient
from fedproc.privacy.options import PrivacyOptions
from fedproc.privacy.promise import Promise
from fedproc.privacy.randomness import Randomness, Secure, Seeded
from fedproc.privacy.server import PrivateServer, PrivateSum
from fedproc.privacy.vector import clipped, packed
from fedproc.protocol.guard import Expected, Refused, admit
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Task
from fedproc.protocol.weights import Weights

PARAMS, CLASSES, FEATURES = 6, 3, 4
START = Weights(torch.arange(PARAMS) / 7, torch.zeros(0), torch.zeros(0, dtype=torch.int64))
RETURNED = {"control_change": ((2, 3), torch.float32)}


def options(**given: object) -> PrivacyOptions:
    return PrivacyOptions(**{"noise": 0.0, **given})  # type: ignore[arg-type]


def trained(seed: int, scale: float = 1.0) -> Payload:
    """What a client has computed: everything that an unprotected one would send."""
    drawn = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=drawn)

    tensors = {
        "params": START.params + normal(PARAMS), "buffers": torch.zeros(0), "counters": torch.zeros(0).long(),
        "losses": normal(2).double(), "control_change": normal(2, 3),
        "class_means": normal(CLASSES, FEATURES), "class_counts": torch.tensor([5, 0, 1 + seed % 7]),
    }  # fmt: skip
    return Payload(tensors, {"samples": 17 + seed, "steps": 4})


def server(
    o: PrivacyOptions, clients: int = 4, rate: float = 1.0, randomness: Randomness | None = None
) -> PrivateServer:
    return PrivateServer(Promise(o, rate, clients, 10), randomness or Seeded(0), False)


def begun(made: PrivateServer, t: int = 0, state: dict[str, Tensor] | None = None) -> PrivateSum:
    state = state or dict(made.first_state(CLASSES, FEATURES))
    return made.begin(state, t, START, RETURNED, True)


def sent(
    o: PrivacyOptions, made: PrivateServer, payload: Payload, client: int = 0, t: int = 0, **told: float
) -> Payload:
    told = {**made.told(made.first_state(CLASSES, FEATURES)), **told}
    task = Task(Kind.TRAIN, client, t, Payload(START.tensors()), Expected({}), privacy=told)
    return PrivateClient(o, Seeded(0)).at_client(task, payload)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 1e6, 1e30, float("nan"), float("inf")]),
    clip=st.floats(1e-3, 1e3),
    prototype_scale=st.floats(1e-3, 10),
    bound=st.floats(1e-2, 10),
)
def test_whatever_a_client_found_its_influence_is_bounded(
    seed: int, scale: float, clip: float, prototype_scale: float, bound: float
) -> None:
    o = options(clip=clip, prototype_scale=prototype_scale, prototype_bound=bound, returned_scale=0.5)
    made = server(o)
    payload = sent(o, made, trained(seed, scale))
    sums, empty = begun(made), begun(made)
    admit(payload, sums.expected)
    sums.check(Task(Kind.TRAIN, 0, 0, Payload({}), Expected({})), payload)
    sums.add(payload)
    difference = sums._total.result() - empty._total.result()
    assert float(torch.linalg.vector_norm(difference)) <= clip * (1 + 1e-12)


def test_every_value_that_is_sent_is_in_the_one_vector() -> None:
    """Counts, losses and statistics do not leave: two clients that differ in these alone send the same bytes."""
    o = options(clip=100.0, clipping="adaptive")
    made, payload = server(o), trained(1)
    hidden = {"losses": torch.tensor([9.0, 9.0]).double(), "class_counts": torch.tensor([700, 0, 1])}
    other = Payload({**payload.tensors, **hidden}, {"samples": 12345, "steps": 99})
    one, two = sent(o, made, payload), sent(o, made, other)
    assert set(one.tensors) == {"update", "unclipped"} and one.counts == {}
    assert all(torch.equal(one.tensors[name], two.tensors[name]) for name in one.tensors)


def test_the_vector_is_laid_out_as_the_docs_say() -> None:
    o = options(prototype_scale=0.5, prototype_bound=2.0, returned_scale=3.0)
    found = {
        "params": START.params + 1, "control_change": torch.ones(2), "losses": torch.zeros(1),
        "class_means": torch.tensor([[0.0, 4.0], [1.0, 0.0], [9.0, 9.0]]), "class_counts": torch.tensor([2, 1, 0]),
    }  # fmt: skip
    # moves, returned times 3; (0, 4) is shortened to 2 and is 0.5 long, (1, 0) half of that; who has which class
    expected = [1.0] * PARAMS + [3.0, 3.0] + [0, 0.5, 0.25, 0, 0, 0] + [0.5, 0.5, 0]
    assert packed(o, START.params, found).tolist() == pytest.approx(expected)


def test_without_noise_and_with_a_huge_bound_it_is_the_equal_mean() -> None:
    o = options(clip=1e6, prototype_memory=0.0, prototype_bound=1e3)
    made = server(o, clients=3)
    sums, found = begun(made), [trained(seed) for seed in range(3)]
    for each in found:
        sums.add(sent(o, made, each))
    answer, _ = sums.result()
    mean = torch.stack([each.tensors["params"] for each in found]).mean(dim=0)
    assert torch.allclose(answer.tensors["params"], mean, atol=1e-6)
    control = torch.stack([each.tensors["control_change"] for each in found]).mean(dim=0)
    assert torch.allclose(answer.tensors["control_change"], control, atol=1e-6)
    means = torch.stack([each.tensors["class_means"] for each in found]).mean(dim=0)
    assert torch.allclose(answer.tensors["class_means"][0], means[0], atol=1e-5)
    assert answer.tensors["class_counts"].tolist() == [3, 0, 3]


def test_the_sum_is_divided_by_the_expected_cohort_however_many_came() -> None:
    o = options(clip=1e6)
    made = server(o, clients=8, rate=0.5)
    sums, payload = begun(made), trained(0)
    sums.add(sent(o, made, payload))
    move = payload.tensors["params"] - START.params
    assert torch.allclose(sums.result()[0].tensors["params"], START.params + move / 4, atol=1e-6)


@pytest.mark.parametrize("randomness", [Seeded(3), Secure()])
@pytest.mark.parametrize(
    ("where", "answered"), [("server", 4), ("server", 0), ("client", 4), ("client", 1), ("client", 0)]
)
def test_the_noise_on_the_sum_has_its_deviation(where: str, answered: int, randomness: Randomness) -> None:
    """Also where clients add it and some drop out: the server adds what is missing."""
    o = options(noise=1.5, clip=2.0, where=where)
    made = server(o, clients=4, randomness=randomness)
    client, zeros = PrivateClient(o, randomness), Payload({**START.tensors(), "losses": torch.zeros(1)})
    drawn = []
    for t in range(200):
        sums = made.begin(made.first_state(1, 1), t, START, {}, False)
        told = made.told(made.first_state(1, 1))
        for number in range(answered):
            task = Task(Kind.TRAIN, number, t, Payload(START.tensors()), Expected({}), privacy=told)
            sums.add(client.at_client(task, zeros))
        drawn.append((sums.result()[0].tensors["params"] - START.params).double() * 4)
    found = torch.cat(drawn)
    assert float(found.std()) == pytest.approx(1.5 * 2.0, rel=0.08)
    assert abs(float(found.mean())) < 4 * 3.0 / math.sqrt(len(found))


@pytest.mark.parametrize("answered", [0, 1, 4])
def test_the_noise_of_clients_does_not_show_how_many_there_were(answered: int) -> None:
    """Also where more came than were expected."""
    made = server(options(noise=1.5, where="client", clipping="adaptive"), clients=4, rate=0.25)
    told, sums = made.told(made.first_state(CLASSES, FEATURES)), begun(made)
    for _ in range(answered):
        sums.add(Payload({"update": torch.zeros(sums._vector.size), "unclipped": torch.zeros(1)}))
    deviation = made.promise.update_noise
    assert answered * told["noise"] ** 2 + (deviation * sums._missing()) ** 2 == pytest.approx(deviation**2)


def test_what_is_said_of_noise_from_the_seed() -> None:
    assert "from whoever knows it nothing is kept" in server(options(noise=1.0, random="seeded")).words()[-1]
    assert not any("seed" in line for line in server(options(noise=1.0)).words())


def test_seeded_noise_repeats_and_rounds_differ() -> None:
    o = options(noise=1.0)
    first, again, later = (begun(server(o), t).result()[0].tensors["params"] for t in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)
    secure = [begun(server(o, randomness=Secure())).result()[0].tensors["params"] for _ in range(2)]
    assert not torch.equal(*secure)


@pytest.mark.parametrize("first", [0.01, 100.0])
def test_the_adaptive_bound_settles_at_the_quantile_from_both_sides(first: float) -> None:
    lengths = torch.linspace(0.5, 1.5, 41)  # whose median is 1
    o = options(clipping="adaptive", clip=first, noise=1.0)
    made = server(o, clients=41)
    state = dict(made.first_state(1, 1))
    for t in range(80):
        sums = made.begin(state, t, START, {}, False)
        for length in lengths.tolist():
            whole = clipped(torch.tensor([length, 0.0]), float(state["clip"]))[1]
            sums.add(Payload({"update": torch.zeros(PARAMS), "unclipped": torch.tensor([0.5 if whole else -0.5])}))
        state = dict(sums.result()[1])
    assert float(state["clip"]) == pytest.approx(1.0, rel=0.2)


def test_cohorts_are_poisson() -> None:
    made = server(options(), clients=1000, rate=0.1)
    sizes = [len(made.cohort(range(1000), t)) for t in range(200)]
    mean = sum(sizes) / 200
    variance = sum((size - mean) ** 2 for size in sizes) / 199
    assert mean == pytest.approx(100, abs=2.5) and variance == pytest.approx(90, rel=0.35)
    assert made.cohort(range(500), 0) == [c for c in made.cohort(range(1000), 0) if c < 500]  # whoever else is there
    assert server(options(), clients=7, rate=1.0).cohort(range(7), 3) == list(range(7))


def test_what_was_not_clipped_is_refused() -> None:
    o = options(clip=1.0, clipping="adaptive")
    made = server(o)
    sums, task = begun(made), Task(Kind.TRAIN, 0, 0, Payload({}), Expected({}))
    size = sums.expected.tensors["update"][0][0]
    with pytest.raises(Refused, match=r"length 1\.1, above the clip bound 1"):
        sums.check(task, Payload({"update": 1.1 * torch.eye(size)[0], "unclipped": torch.tensor([0.5])}))
    with pytest.raises(Refused, match=r"neither 0\.5 nor -0\.5"):
        sums.check(task, Payload({"update": torch.eye(size)[0], "unclipped": torch.tensor([3.0])}))


def test_a_client_believes_no_server_that_bends_the_rules() -> None:
    o = options(noise=1.0, where="client", clip=1.0)
    made = server(o)
    for told, reason in (
        ({"clip": 5.0}, "the run has --privacy.clip 1"),
        ({"noise": 0.0}, "add no noise"),
        ({"clip": -1.0}, "clip to -1"),
    ):
        with pytest.raises(Refused, match=reason):
            sent(o, made, trained(0), **told)
    adaptive = options(noise=1.0, where="client", clipping="adaptive")
    with pytest.raises(Refused, match="no noise to whether it was clipped"):
        sent(adaptive, server(adaptive), trained(0), count_noise=0.0)
    for kind in (Kind.CLASS_MEANS, Kind.CLASS_COUNTS, Kind.EVALUATE):
        with pytest.raises(Refused, match=f"asked for {kind}"):
            PrivateClient(o, Seeded(0)).at_client(Task(kind, 0, 0, Payload({}), Expected({})), trained(0))


def test_a_prototype_needs_a_count_that_is_more_than_noise() -> None:
    """One client alone is below the noise's deviation; ten rounds of four are not, as sums remember."""
    o = options(noise=1.0, clip=1.0, prototype_scale=0.3, prototype_memory=0.95)
    made = server(o, clients=4)
    state = dict(made.first_state(CLASSES, FEATURES))
    known = []
    for t in range(60):
        sums = begun(made, t, state)
        for client in range(4):
            sums.add(sent(o, made, trained(client, 0.01), client, t))
        answer, after = sums.result()
        state = dict(after)
        known.append(answer.tensors["class_counts"] > 0)
    assert not known[0].all() and bool(known[-1][0]) and bool(known[-1][2])
