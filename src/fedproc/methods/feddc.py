"""FedDC (Gao et al. 2022): FedDyn's bent losses and SCAFFOLD's control variates together."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import feddyn, method, scaffold
from fedproc.methods.feddyn import FedDyn
from fedproc.methods.scaffold import Scaffold


class Options(feddyn.Options, scaffold.Options):
    uniform: bool = Field(True, description="1/m for each change of the control variate, as the authors have it")


class FedDC(FedDyn, Scaffold):
    """Adds (alpha_i/2) |w - w^t + d_i|^2 + <w, c - c_i>: d_i is the client's drift, the sum of its moves, and c_i its
    control variate. The server sends the plain mean of the weights plus the mean drift of all clients.
    """

    name: ClassVar[str] = "feddc"
    summary: ClassVar[str] = "drift of each client kept apart, with control variates (Gao et al. 2022)"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options
