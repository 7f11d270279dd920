"""Elastic averaging (Zhang et al. 2015): clients keep weights of their own, tied to the server's by springs.

A client goes on from its own weights x_i, and its gradient has rho (x_i - c) more, where c is what the server sends.
The server moves its c by `rate` towards the mean of the clients' weights.
"""

from pydantic import Field

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Options


class EasgdOptions(Options):
    rho: float = Field(0.1, ge=0, description="strength of the springs")
    rate: float = Field(0.9, gt=0, le=1, description="how far the server moves to the mean of the clients")


class Easgd(FedAvg):
    name = "easgd"
    summary = "elastic averaging (Zhang et al. 2015)"
    options_type = EasgdOptions

    # the server's half

    def shares(self, samples):
        return [1 / len(samples)] * len(samples)

    def collect(self, state, sums, answer):
        return {**super().collect(state, sums, answer), "before": answer.sent["params"]}

    def receive(self, state, sums):
        return {**super().receive(state, sums), **sums}

    def finish(self, params, state):
        mean = super().finish(params, state)
        return mean + (1 - self.options.rate) * (state["before"] - mean)

    # the client's half

    def first_client_state(self, client, sent, fresh):
        return {**super().first_client_state(client, sent, fresh), "own": sent.params}

    def start(self, sent, state, phase):
        return type(sent)(state["own"], sent.buffers, sent.counters)

    def correct(self, gradient, local):
        return super().correct(gradient, local) + self.options.rho * (local.weights.params - local.sent["params"])

    def next_client_state(self, local):
        return {**super().next_client_state(local), "own": local.weights.params}
