"""FedDyn (Acar et al. 2021): each client's loss is bent so that all of them share one minimum.

A client adds strength/2 |w - w^t|^2 - <h_i, w> to its loss and then moves h_i by -strength (w_i - w^t).
The server keeps h, the mean of all clients' h_i, and takes the mean of the weights minus h/strength.
"""

import torch
from pydantic import Field

from fedproc.methods.fedavg import FedAvg, Options


class FedDynOptions(Options):
    strength: float = Field(0.1, gt=0, description="of the bending; the paper's alpha")


class FedDyn(FedAvg):
    name = "feddyn"
    summary = "dynamic regularisation (Acar et al. 2021)"
    options_type = FedDynOptions

    # the server's half

    def begin(self, params):
        return {"h": torch.zeros(params, dtype=self.problem.dtype)}

    def shares(self, samples):
        return [1 / len(samples)] * len(samples)

    def receive(self, kept, answers):
        moved = sum(answer.tensors["moved"] for answer in answers)
        return {**kept, "h": kept["h"] - self.options.strength * moved / len(self.problem.client_sizes)}

    def finish(self, params, kept):
        return params - kept["h"] / self.options.strength

    # the client's half

    def correct(self, gradient, local):
        distance = local.weights.params - local.start.params
        return gradient + self.options.strength * distance - local.kept["h"]

    def returned(self, params, dtype):
        return {"moved": ((params,), dtype)}

    def answer(self, local):
        return {"moved": local.weights.params.detach() - local.start.params}

    def keep_first(self, client, start, fresh):
        return {"h": torch.zeros_like(start.params)}

    def keep(self, local):
        return {"h": local.kept["h"] - self.options.strength * self.answer(local)["moved"]}
