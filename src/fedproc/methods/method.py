"""The contract of a method: what a method can say, and what it gets to see.

A method is two halves in one class. The server's half says who takes part, what the server keeps, what it sends besides
the weights, and how it takes answers in. The client's half says what is minimised, how the gradient is corrected, what
a client returns and keeps. `Method` is plain federated averaging in every hook; a method overrides what it changes, and
each hook builds on the one above it (`{**super().send(state), ...}`), so that methods can be combined:
`class ScaffoldFedProc(Scaffold, FedProc)` trains.

A method object has no memory of its own: what changes goes into the server's or a client's state. The client's half
runs in an object of its own, which knows `self.client` and not `self.server`, since clients of several experiments may
train side by side: numbers of the round reach a client by `settings`, tensors by `send`.

Losses act on trailing axes and parameters are flat (..., P), so a method never says how many clients run side by side.
Shapes: ... clients side by side, B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedproc import kernels
from fedproc.errors import MethodError, suggestion
from fedproc.protocol.guard import Shapes
from fedproc.protocol.payload import Tensors
from fedproc.protocol.server_half import Answer, Pass
from fedproc.protocol.task import MeansMode, Phase, Trains
from fedproc.protocol.weights import Weights

__all__ = [
    "Answer",
    "Batch",
    "ClientProblem",
    "Indices",
    "Local",
    "MeansMode",
    "Method",
    "Options",
    "Pass",
    "Phase",
    "ServerProblem",
    "Shapes",
    "TensorInfo",
    "Tensors",
    "Term",
    "Terms",
    "Trains",
    "Weights",
]

Indices = npt.NDArray[np.int64]


class Options(BaseModel):
    """A method's hyper-parameters: typed, documented fields; each becomes --<method>.<option>."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the network: its name (classifier.weight), its shape, and the type of the layer it belongs to."""

    name: str
    shape: tuple[int, ...]
    layer: str


@dataclass(frozen=True)
class ClientProblem:
    """What the client's half knows of the experiment: K classes, Q features, the dtype, the momentum of SGD, gamma of
    the calibration of logits and of similarities, the optimizer's name, and the network's parameters in the order in
    which they lie in the flat vector. Clients of one method whose ClientProblem and options are equal are trained by
    one object.
    """

    classes: int
    features: int
    dtype: torch.dtype = torch.float32
    momentum: float = 0.0
    calibrate: float = 0.0
    calibrate_prototypes: float = 0.0
    optimizer: str = "sgd"
    tensors: tuple[TensorInfo, ...] = ()


@dataclass(frozen=True)
class ServerProblem:
    """What only the server's half knows: T rounds of E epochs, the clients' sizes (once they have told them), the model
    seed, the numbers of the server step.
    """

    rounds: int
    epochs: int = 1
    model_seed: int = 0
    client_sizes: tuple[int, ...] = ()
    server_beta: float = 0.9
    server_lr: float = 1.0


@dataclass(frozen=True)
class Batch:
    """What a loss sees of one step: z (..., B, Q), logits (..., B, K), labels (..., B), mask (..., B) or None.

    `frozen(weights)` is z and logits of the same images under other weights, in evaluation mode, without gradient.
    """

    z: Tensor
    logits: Tensor
    labels: Tensor
    mask: Tensor | None
    frozen: Callable[[Weights], tuple[Tensor, Tensor]]

    def mean(self, values: Tensor, counted: Tensor | None = None) -> Tensor:
        """The mean (...,) of values (..., B) over real samples, and of those over the counted; 0 of none."""
        if kernels.usable(values):
            from fedproc.kernels import losses

            return losses.mean(values, self.mask, counted)
        if self.mask is None and counted is None:
            return values.mean(dim=-1)
        included = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
        if self.mask is not None:
            included = included & self.mask
        return torch.where(included, values, torch.zeros_like(values)).sum(dim=-1) / included.sum(dim=-1).clamp(min=1)

    def weighted(self, values: Tensor, weight: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean times a weight (...,), 0 where the weight is 0 whatever the mean is; and the mean itself, through
        which no gradient flows.
        """
        if kernels.usable(values):
            from fedproc.kernels import losses

            return losses.weighted_mean(values, self.mask, counted, weight)
        mean = self.mean(values, counted)
        if weight.dim() == 0 and weight.device.type == "cpu" and bool(weight):
            return weight * mean, mean.detach()
        return torch.where(weight == 0, torch.zeros_like(mean), weight * mean), mean.detach()


@dataclass(frozen=True)
class Local:
    """A client while it trains: where the phase started, its weights now (..., P), the optimizer's state, what it
    was sent, the round's numbers (...,), its state from earlier rounds, the steps of the phase (...,), how many samples
    of each class it has (..., K) and the logs of their shares (..., K), and which phase of the round this is.
    """

    start: Weights
    weights: Weights
    optimizer: Tensors
    sent: Tensors
    settings: Tensors
    state: Tensors
    steps: Tensor
    class_counts: Tensor
    log_shares: Tensor
    phase: Phase = field(default_factory=lambda: Phase(1))

    @property
    def velocity(self) -> Tensor:
        """The optimizer's momentum (..., P); Adam's running mean of gradients."""
        return self.optimizer["velocity"]


@dataclass(frozen=True)
class Term:
    """One term of a loss: `values` for each sample (..., B), or one for each client (...,), or a function that gives
    them, which may then run at the same time as those of other terms; of samples, the `counted` ones (..., B) enter the
    mean. The term counts `weight` times, a number or a tensor (...,); on record it is without its weight.
    """

    values: Tensor | Callable[[], Tensor | tuple[Tensor, Tensor | None]]
    weight: float | Tensor | None = None
    counted: Tensor | None = None


Terms = Mapping[str, Term | Tensor]


class Method:
    """Federated averaging of what each client minimises, in every hook; `fedavg.py` gives it a loss."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    family: ClassVar[str] = ""  # under which `fedproc list methods` has it
    options_type: ClassVar[type[Options]] = Options
    merge: ClassVar[str] = "mean"
    server_step: ClassVar[str] = "replace"
    federated: ClassVar[bool] = True  # models cross between clients and server; False: a bound without federation
    additive: ClassVar[bool] = True  # see `collect`
    private_options: ClassVar[Mapping[str, Any]] = {}  # what options are where nothing is said and a run is private
    unit_z: ClassVar[bool] = False  # z is scaled to length 1 before it enters the classifier, whatever --normalize-z is

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        _check_names(cls)
        _check_class_hooks(cls)
        if "options_type" not in vars(cls):
            cls.options_type = _merged_options(cls)

    def __init__(self, options: Options, client: ClientProblem, server: ServerProblem | None = None) -> None:
        self.options = options
        self.client = client
        self._server = server
        self._ready = True

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_ready", False):
            raise MethodError(
                self.name, None, f"sets self.{name}: a method has no memory; return it as server state or client state"
            )
        super().__setattr__(name, value)

    @property
    def server(self) -> ServerProblem:
        """What the server alone knows."""
        if self._server is None:
            raise MethodError(
                self.name, None, "the client's half asks for self.server, which only the server's half knows; "
                "send numbers by `settings` and tensors by `send`",
            )  # fmt: skip
        return self._server

    def client_half(self) -> Method:
        """The same method as clients see it."""
        return type(self)(self.options, self.client)

    def knowing(self, client_sizes: Sequence[int]) -> Method:
        """The same method, knowing the clients' sizes."""
        return type(self)(self.options, self.client, replace(self.server, client_sizes=tuple(client_sizes)))

    # who takes part, and what happens in a round

    @classmethod
    def holdings(cls, shares: Sequence[Indices]) -> list[Indices]:
        """Which samples each client trains on, out of the partition's."""
        return list(shares)

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return self.server.rounds

    @property
    def own_rounds(self) -> int:
        """How many rounds follow those, which train clients' own models alone. The learning rate is the first again
        then, whatever its schedule.
        """
        return 0

    @classmethod
    def needs_sgd(cls, options: Options) -> str | None:
        """Why clients must train by SGD with these options, if they must: how far they moved is read as a gradient."""
        return None

    @classmethod
    def needs_mean(cls, options: Options) -> str | None:
        """Why no robust merge can take the place of the plain one, if none can. Under one, everybody's weights, class
        means and what `averages` names are the same value when `collect` sees them.
        """
        return None

    @classmethod
    def unprotected(cls, options: Options) -> str | None:
        """Why a run cannot be private with these options, if it cannot: clients' sizes are not told then, nothing is
        asked for apart from training, and what clients return is seen as one noisy sum.
        """
        return None

    def depends_on_rounds(self) -> str | None:
        """What makes a run of T rounds differ from the first T of a longer one, if anything does."""
        return None

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        """The clients that take part in round t (from 0), of which those were `sampled`."""
        return sampled

    def opening(self) -> Sequence[Pass]:
        """What clients are asked for before the first round."""
        return ()

    def passes(self, t: int) -> Sequence[Pass]:
        """What clients are asked for in round t before they train, under the model that they are about to be sent."""
        return ()

    def phases(self, t: int) -> tuple[Phase, ...]:
        """What a client does one after the other in round t. A round of second models alone returns nothing: the global
        one stays, and neither `reply` nor `collect` is called.
        """
        return (Phase(self.server.epochs),)

    def class_means(self, t: int) -> MeansMode | None:
        """How clients take class means after training, under the weights they return; None: not at all."""
        return None

    def closing(self) -> Sequence[Pass]:
        """What clients are asked for after the last round, under the final model."""
        return ()

    # the server's half

    def first_state(self, params: int) -> Tensors:
        """The server's state before anyone has answered; `params` is P."""
        return {}

    def settings(self, t: int) -> Mapping[str, float]:
        """Numbers of round t that the client's half needs; lr is always there."""
        return {}

    def send(self, state: Tensors) -> Tensors:
        """What goes to a client besides the weights."""
        return {}

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        """The share of each client that was asked in the merge of parameters, of which they have so many samples; they
        sum to 1. Of those that answer, shares are scaled to that sum again.
        """
        return [count / sum(samples) for count in samples]

    def step_numbers(self) -> Mapping[str, float]:
        """What the server step is told besides the vectors."""
        return {"beta": self.server.server_beta, "lr": self.server.server_lr}

    def align(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """The round's accepted answers made comparable before anything is summed up: the same, with other values in
        their tensors. A method that does this holds all clients' weights at once.
        """
        return answers

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        """Add an accepted training answer to the round's sums, which begin empty; in the clients' order. In a private
        run one answer stands for `answer.clients` clients, whose mean it is: a class whose `collect` is right then says
        `additive = True`.
        """
        return sums

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        """The server's state after training, by what the answers summed up to."""
        return state

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        """The same for the answers to a pass of `opening`, `passes` or `closing`."""
        return sums

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        """The server's state after such a pass."""
        return state

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        """The next round's parameters, from what merge and server step made of them and the server's new state."""
        return params

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        """The method's own prototypes (K, Q) and which classes have one (K,); None: it has none."""
        return None

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]:
        """Other models to evaluate beside the final one, after the passes of `closing`."""
        return {}

    # both halves

    def term_names(self) -> tuple[str, ...]:
        """The names of the terms of `loss`, in order; each is on record as train_<name>."""
        return ()

    def personal(self, tensor: TensorInfo) -> bool:
        """Whether this tensor of the network is each client's own: it is neither sent to the server nor merged, and
        a client goes on with its own. Its state then holds its whole model (params, buffers, counters), which begins as
        the first one it is sent.
        """
        return False

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        """Names, shapes and dtypes of what `reply` gives; P is `params`."""
        return {}

    def averages(self) -> Sequence[str]:
        """Those of `returns` of which the server takes sums or means over clients, so that a robust merge may give
        everybody the same. A method that returns others takes no robust merge.
        """
        return ()

    # the client's half

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        """A client's state before its first round: `sent` is the model it was sent, fresh(n) makes the n-th other set
        of initial weights.
        """
        return {}

    def start(self, sent: Weights, state: Tensors, phase: str) -> Weights:
        """What a phase of the round starts from."""
        return sent

    def own_model(self, state: Tensors) -> Weights | None:
        """The model that a client has of its own beside its part of the global one, trained by a second phase; by its
        `own_accuracy` the method is judged. None: it has none.
        """
        return None

    def start_optimizer(self, state: Tensors, phase: str) -> Tensors | None:
        """What the optimizer begins a phase with, as `local.optimizer` has it: of SGD, its velocity; None: zeros."""
        return None

    def loss(self, batch: Batch, local: Local) -> Terms:
        """What is minimised: the sum of these, each times its weight. Gradients reach the network through batch.z and
        batch.logits alone: the gradient of a term of the parameters themselves is added in `correct`.
        """
        return {}

    def logits(self, batch: Batch, local: Local) -> Tensor:
        """The logits (..., B, K) that the cross-entropy is taken of, in training alone."""
        return batch.logits

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        """The gradient (..., P) that the optimizer sees, before weight decay and momentum."""
        return gradient

    def displace(self, gradient: Tensor, local: Local) -> Tensor | None:
        """Where the gradient that counts is taken: at the weights plus this (..., P), of the same batch; None: at the
        weights themselves. A method gives a displacement in every step or in none.
        """
        return None

    def reply(self, local: Local) -> Tensors:
        """What a client returns besides its weights, after the phase that returns them."""
        return {}

    def next_client_state(self, local: Local) -> Tensors:
        """What a client's state changes to after a phase, should its answer be accepted; named and shaped like the
        first. What is not named stays.
        """
        return {}


HOOKS = frozenset(name for name in vars(Method) if not name.startswith("_"))
CLASS_HOOKS = tuple(name for name, found in vars(Method).items() if isinstance(found, classmethod) and name in HOOKS)
RENAMED = {
    "begin": "first_state",
    "keep": "next_client_state",
    "keep_first": "first_client_state",
    "returned": "returns",
    "answer": "reply",
    "trains": "phases",
    "epochs": "phases",
    "own_models": "personal",
    "one_place": "holdings",
    "keeps_momentum": "start_optimizer",
    "start_velocity": "start_optimizer",
    "prototype_pass": "class_means",
    "starts_with_prototypes": "opening",
    "problem": "client and server",
}
UNUSUAL = 0.75  # how much alike a name and a hook's are that one takes for the other's misspelling


def _check_names(cls: type[Method]) -> None:
    """Refuse a hook that is misspelt, or has the name it had in an earlier version: it would never be called."""
    foreign = [base for base in cls.__mro__[1:] if base is not object and not issubclass(base, Method)]
    above = {name for base in cls.__mro__[1:] if base not in foreign for name in vars(base)}
    for name in (name for base in (cls, *foreign) for name in vars(base)):
        if name.startswith("_") or name in above:
            continue
        if name in RENAMED:
            raise TypeError(f"{cls.__name__}.{name}: is called {RENAMED[name]} now (fedproc/methods/method.py)")
        hint = suggestion(name, HOOKS, "", UNUSUAL)
        if hint:
            raise TypeError(f"{cls.__name__}.{name}: no such hook; {hint} A helper of your own begins with _")


def _check_class_hooks(cls: type[Method]) -> None:
    """Refuse a hook of the class itself that is written for an object: it is asked before there is one."""
    for name in CLASS_HOOKS:
        found = inspect.getattr_static(cls, name)
        if not isinstance(found, (classmethod, staticmethod)):
            given = ", ".join(inspect.signature(getattr(Method, name)).parameters)
            raise TypeError(
                f"{cls.__name__}.{name}: is asked of the class, before there is an object; write @classmethod above "
                f"`def {name}(cls, {given})`"
            )


def _merged_options(cls: type[Method]) -> type[Options]:
    """The options of all methods that are combined."""
    found: list[type[Options]] = []
    for base in cls.__bases__:
        made = getattr(base, "options_type", None)
        if made is not None and not any(issubclass(other, made) for other in found):
            found = [other for other in found if not issubclass(made, other)] + [made]
    if len(found) <= 1:
        return found[0] if found else Options
    fields: dict[str, type[Options]] = {}
    for options in found:
        for name, info in options.model_fields.items():
            if name in fields and repr(fields[name].model_fields[name]) != repr(info):
                raise TypeError(
                    f"{cls.__name__}: both {fields[name].__module__} and {options.__module__} have an option {name}; "
                    "give the class an options_type of its own"
                )
            fields[name] = options
    return type(f"{cls.__name__}Options", tuple(found), {"__module__": cls.__module__})
