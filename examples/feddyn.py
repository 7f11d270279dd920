"""FedDyn (Acar et al. 2021): each client's loss is bent so that all of them share one minimum.

A client adds strength/2 |w - w^t|^2 - <h_i, w> to its loss and then moves h_i by -strength (w_i - w^t).
The server keeps h, the mean of all clients' h_i, and takes the mean of the weights minus h/strength.
"""

import torch
from pydantic import Field

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Options


class FedDynOptions(Options):
    strength: float = Field(0.1, gt=0, description="of the bending; the paper's alpha")


class FedDyn(FedAvg):
    name = "feddyn"
    summary = "dynamic regularisation (Acar et al. 2021)"
    options_type = FedDynOptions

    # the server's half

    def first_state(self, params):
        return {**super().first_state(params), "h": torch.zeros(params, dtype=self.client.dtype)}

    def shares(self, samples):
        return [1 / len(samples)] * len(samples)

    def collect(self, state, sums, answer):
        moved = sums.get("moved", torch.zeros_like(state["h"])) + answer.tensors["moved"]
        return {**super().collect(state, sums, answer), "moved": moved}

    def receive(self, state, sums):
        step = self.options.strength * sums["moved"] / len(self.server.client_sizes)
        return {**super().receive(state, sums), "h": state["h"] - step}

    def finish(self, params, state):
        return super().finish(params, state) - state["h"] / self.options.strength

    # the client's half

    def correct(self, gradient, local):
        distance = local.weights.params - local.start.params
        return super().correct(gradient, local) + self.options.strength * distance - local.state["h"]

    def returns(self, params, dtype):
        return {**super().returns(params, dtype), "moved": ((params,), dtype)}

    def reply(self, local):
        return {**super().reply(local), "moved": local.weights.params.detach() - local.start.params}

    def first_client_state(self, client, sent, fresh):
        return {**super().first_client_state(client, sent, fresh), "h": torch.zeros_like(sent.params)}

    def next_client_state(self, local):
        moved = local.weights.params.detach() - local.start.params
        return {**super().next_client_state(local), "h": local.state["h"] - self.options.strength * moved}
