"""Methods as a person would write them, given to the tests as --plugin: some use every part of the contract, the others
break it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Pass, Phase, Term, Weights

# what keeps the contract


class Remembers(FedAvg):
    """A client that counts its rounds in its state, and pulls its gradient by it."""

    name = "remembers"

    def first_client_state(self, client, sent, fresh):
        return {**super().first_client_state(client, sent, fresh), "times": torch.zeros(1)}

    def correct(self, gradient, local):
        return super().correct(gradient, local) + 1e-3 * local.state["times"]

    def next_client_state(self, local):
        return {**super().next_client_state(local), "times": local.state["times"] + 1}


class ByRounds(FedAvg):
    """The gradient shrinks with the number of all rounds, which reaches clients by `settings`."""

    name = "by-rounds"

    def settings(self, t):
        return {**super().settings(t), "scale": 1 / self.server.rounds}

    def correct(self, gradient, local):
        return super().correct(gradient, local) * local.settings["scale"].unsqueeze(-1)


class SendsLater(FedAvg):
    """From the second round on it sends one tensor more."""

    name = "sends-later"

    def first_state(self, params):
        return {**super().first_state(params), "rounds": torch.zeros(1, dtype=self.client.dtype)}

    def receive(self, state, sums):
        return {**super().receive(state, sums), "rounds": state["rounds"] + 1}

    def send(self, state):
        more = {"pull": state["rounds"]} if state["rounds"] > 0 else {}
        return {**super().send(state), **more}

    def correct(self, gradient, local):
        above = super().correct(gradient, local)
        return above + 1e-3 * local.sent["pull"] if "pull" in local.sent else above


class OwnClassifier(FedAvg):
    """Each client has a classifier of its own (FedPer)."""

    name = "own-classifier"

    def personal(self, tensor):
        return tensor.name.startswith("classifier.")


class OwnNorms(FedAvg):
    """Each client has batch-norm layers of its own (FedBN)."""

    name = "own-norms"

    def personal(self, tensor):
        return "BatchNorm" in tensor.layer


class Alone(FedAvg):
    """Everything is each client's own, from the common start, momentum zeroed each round."""

    name = "alone"
    federated = False

    def personal(self, tensor):
        return True


class CountsClasses(FedAvg):
    """Samples of classes that a client has many of count less (n_k at the client)."""

    name = "counts-classes"

    def loss(self, batch, local):
        terms = dict(super().loss(batch, local))
        values = terms["cross_entropy"].values
        weights = 1 / (1 + local.class_counts.gather(-1, batch.labels))
        return {**terms, "cross_entropy": Term(lambda: weights * values())}


class Distils(FedAvg):
    """Stays near the logits of the model it was sent (frozen weights)."""

    name = "distils"

    def term_names(self):
        return (*super().term_names(), "distance")

    def loss(self, batch, local):
        _, logits = batch.frozen(local.start)
        distance = (batch.logits - logits).square().mean(dim=-1)
        return {**super().loss(batch, local), "distance": Term(distance, 0.1)}


class Sharp(FedAvg):
    """The gradient is taken a little uphill (FedSAM)."""

    name = "sharp"

    def displace(self, gradient, local):
        return 0.05 * gradient / gradient.norm(dim=-1, keepdim=True).clamp(min=1e-12)


class SecondModel(FedAvg):
    """Beside its part of the global model each client trains one of its own, held near the global one (Ditto)."""

    name = "second-model"

    def phases(self, t):
        (whole,) = super().phases(t)
        return (whole, replace(whole, name="own", returns=False, second=True))

    def first_client_state(self, client, sent, fresh):
        own = {f"own_{name}": tensor for name, tensor in sent.tensors().items()}
        return {**super().first_client_state(client, sent, fresh), **own}

    def start(self, sent, state, phase):
        if phase != "own":
            return super().start(sent, state, phase)
        return type(sent).of({name: state[f"own_{name}"] for name in sent.tensors()})

    def own_model(self, state):
        return Weights.of({name: state[f"own_{name}"] for name in ("params", "buffers", "counters")})

    def correct(self, gradient, local):
        above = super().correct(gradient, local)
        if local.phase.name != "own":
            return above
        return above + 0.5 * (local.weights.params - local.sent["params"])

    def next_client_state(self, local):
        own = {f"own_{name}": t for name, t in local.weights.tensors().items()} if local.phase.name == "own" else {}
        return {**super().next_client_state(local), **own}


class TwoPhases(FedAvg):
    """First its own classifier on frozen features, then the features under a frozen classifier (FedRep)."""

    name = "two-phases"

    def phases(self, t):
        (whole,) = super().phases(t)
        return (
            Phase(1, "head", trains="classifier", returns=False),
            Phase(whole.epochs, "body", trains="features"),
        )

    def personal(self, tensor):
        return tensor.name.startswith("classifier.")


class Closing(FedAvg):
    """After the last round: class covariances of everyone, and a second model made from them (CCVR's shape)."""

    name = "closing"

    def closing(self):
        return (*super().closing(), Pass("moments", "everyone", covariances=True))

    def collect_pass(self, state, which, sums, answer):
        total = answer.tensors["class_covariances"].diagonal(dim1=-2, dim2=-1).sum()
        return {**super().collect_pass(state, which, sums, answer), "spread": sums.get("spread", 0) + total}

    def receive_pass(self, state, which, sums):
        return {**super().receive_pass(state, which, sums), "spread": sums["spread"]}

    def final_models(self, weights, state):
        assert state["spread"] > 0
        return {"halved": replace(weights, params=weights.params / 2)}


class Upside(FedAvg):
    """Looks at all answers before they are summed up, and turns every move around (FedMA looks at their units)."""

    name = "upside"

    def align(self, answers):
        def turned(answer):
            return {**answer.tensors, "params": 2 * answer.sent["params"] - answer.tensors["params"]}

        return [replace(answer, tensors=turned(answer)) for answer in super().align(answers)]


class EveryOther(FedAvg):
    """In every other round nobody is asked."""

    name = "every-other"

    def participants(self, t, sampled):
        return sampled if t % 2 == 0 else []


# what breaks it


class ScalarLoss(FedAvg):
    """One number for all clients: right for one, wrong for two."""

    name = "scalar-loss"

    def loss(self, batch, local):
        return {"cross_entropy": F.cross_entropy(batch.logits.flatten(0, -2), batch.labels.flatten())}


class MixesClients(FedAvg):
    """A mean over the first axis, which is that of the samples for one client and that of the clients for several."""

    name = "mixes-clients"

    def loss(self, batch, local):
        return {"cross_entropy": batch.logits.square().sum(dim=-1).mean(dim=0)}


class ReadsServer(FedAvg):
    name = "reads-server"

    def correct(self, gradient, local):
        return gradient / self.server.rounds


class Forgets(FedAvg):
    """Returns what is new and forgets the rest."""

    name = "forgets"

    def first_state(self, params):
        return {"a": torch.zeros(1), "b": torch.zeros(1)}

    def receive(self, state, sums):
        return {"a": state["a"] + 1}


class HasMemory(FedAvg):
    name = "has-memory"

    def correct(self, gradient, local):
        self.steps = local.steps
        return gradient


class RaisesLater(FedAvg):
    """Goes wrong in the second round."""

    name = "raises-later"

    def settings(self, t):
        return {**super().settings(t), "t": t}

    def collect(self, state, sums, answer):
        if answer.tensors["params"].isfinite().all() and "seen" in state:
            raise KeyError("what was never there")
        return sums

    def receive(self, state, sums):
        return {**state, "seen": torch.ones(1)}


class RaisesAtClient(FedAvg):
    """Goes wrong at the client once it is trained, which no rehearsal shows."""

    name = "raises-at-client"

    def reply(self, local):
        if local.velocity.abs().max() > 0.015:
            raise RuntimeError("not enough of it")
        return super().reply(local)


class WrongReply(FedAvg):
    name = "wrong-reply"

    def returns(self, params, dtype):
        return {"extra": ((params,), dtype)}

    def reply(self, local):
        return {"extra": local.weights.params[..., :-1].detach()}


class OtherState(FedAvg):
    """A state that changes its shape."""

    name = "other-state"

    def first_client_state(self, client, sent, fresh):
        return {"a": torch.zeros(1)}

    def next_client_state(self, local):
        return {"a": torch.cat([local.state["a"], local.state["a"]], dim=-1)}


class ForgetsOne(FedAvg):
    """Of all answers, one is lost."""

    name = "forgets-one"

    def align(self, answers):
        return answers[1:]


class ReturnsSecond(FedAvg):
    """A model of the client's own comes back as if it were the global one's."""

    name = "returns-second"

    def phases(self, t):
        return tuple(replace(phase, second=True) for phase in super().phases(t))
