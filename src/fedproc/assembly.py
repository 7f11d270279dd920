"""An experiment made into what its two halves need, from what is known of the images: network, method, lanes' setting
and the round loop's plan. The simulator makes all of it in one process; in a federation the server makes the plan and
each site its own setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fedproc import streams
from fedproc.data.augment import Normalisation, augmentation
from fedproc.data.preprocessing import preprocessing
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Bank, Setting
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.checked_server import CheckedServer, made_method
from fedproc.methods.class_weights import CROSS_ENTROPY
from fedproc.methods.merges import MERGES
from fedproc.methods.method import ClientProblem, Method, ServerProblem, TensorInfo
from fedproc.methods.robust import Robust
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.methods.small_classes import SmallClasses
from fedproc.networks import (
    EMBEDDING,
    Layout,
    Network,
    NetworkSpec,
    build,
    imported,
    layout_of,
    load_encoder,
    load_network,
)
from fedproc.optimizers import Optimizer
from fedproc.privacy.allowed import objection_to_network, objection_to_passes
from fedproc.privacy.client import PrivateClient
from fedproc.privacy.options import PrivacyOptions
from fedproc.privacy.promise import Promise
from fedproc.privacy.randomness import Randomness, Secure, Seeded
from fedproc.privacy.server import PrivateServer
from fedproc.protocol.plan import EvaluatesAt, Plan
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.weights import Shared, Weights


@dataclass(frozen=True)
class Subject:
    """What the images of an experiment are of, and how they look: the same for everyone who takes part."""

    class_names: tuple[str, ...]
    channels: int
    side: int
    normalisation: Normalisation

    @property
    def classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class Assembly:
    """An experiment's network and method."""

    experiment: Experiment
    subject: Subject
    spec: NetworkSpec
    network: Network
    layout: Layout
    method: Method
    server: CheckedServer
    shared: Shared | None
    encoder_source: str | None = None  # of a person's own encoder, as it was before training

    def setting(self, bank: Bank, device: torch.device) -> Setting:
        """What lanes need, with the images they train on."""
        e = self.experiment
        return Setting(
            method=CheckedClient(self.method.client_half(), self.shared),
            spec=self.spec,
            network=self.network,
            layout=self.layout,
            train=bank,
            augmentation=augmentation(e.augment),
            normalisation=self.subject.normalisation,
            batch_size=e.batch_size,
            optimizer=Optimizer(e.optimizer, e.momentum, e.weight_decay, e.adam_beta1, e.adam_beta2, e.adam_epsilon),
            model_seed=e.model_seed,
            device=device,
        )

    def plan(
        self,
        clients: Sequence[str],
        run: str = "",
        evaluates_at: EvaluatesAt = "server",
        real_sites: bool = False,
        federation: bool = False,
    ) -> Plan:
        """What the round loop needs; clients are names. With `federation` they are on other machines."""
        e, kind = self.experiment, self.experiment.method_type
        return Plan(
            method=self.server,
            rounds=self.server.rounds + self.server.own_rounds,
            own_rounds=self.server.own_rounds,
            clients=clients,
            sample=e.sample,
            lr=e.lr,
            eval_every=e.eval_every,
            model_seed=e.model_seed,
            batch_size=e.batch_size,
            held_out="val" if e.val_fraction > 0 else "test",
            merge=MERGES.get(e.merge or kind.merge, MERGES["mean"]),  # the mean of what a rule made equal
            rule=self._rule(len(clients)),
            server_step=SERVER_STEPS[e.server_step or kind.server_step],
            lr_schedule=e.lr_schedule,
            lr_floor=e.lr_floor,
            average_weights=e.average_weights,
            send_averaged=e.send_averaged,
            classifier=self.layout.span("classifier."),
            shared=self.shared,
            postprocessors=postprocessors(e, federation),
            run=run,
            evaluates_at=evaluates_at,
            real_sites=real_sites,
            keep=e.keep,
            patience=e.patience,
            privacy=private_server(e, len(clients), self.server.rounds, federation),
        )

    def _rule(self, clients: int) -> Robust | None:
        """The robust merge, if there is one, of which so many clients and the method allow."""
        e, rule = self.experiment, self.experiment.rule
        if rule is None:
            return None
        rule.expect(max(1, round(e.sample * clients)))
        returned = self.server.returns(self.layout.sizes[0], self.spec.dtype)
        if alone := sorted(set(returned) - set(self.server.averages())):
            raise InputError(
                f"--merge {rule.name}: method {e.method} returns {', '.join(alone)}, of which its `averages` does not "
                "say that sums are taken; name it there, or take --merge mean"
            )
        return rule

    def first_weights(self, device: torch.device) -> Weights:
        """What training starts from."""
        weights = self.layout.read(self.network)
        return Weights(*(tensor.to(device) for tensor in weights.tensors().values()))

    def description(self) -> dict[str, object]:
        """What a model file says of the network and of the images it wants."""
        spec, normalisation = self.spec, self.subject.normalisation
        contract = preprocessing(spec.side, spec.channels, self.experiment.fit, normalisation)
        own = {} if self.encoder_source is None else {"encoder_source": self.encoder_source}
        return {
            "schema": 1,
            **own,
            "class_names": list(self.subject.class_names),
            "mean": list(normalisation.mean),
            "std": list(normalisation.std),
            "preprocessing": contract,
            "network": spec.name,
            "width": spec.width,
            "norm": spec.norm,
            "channels": spec.channels,
            "image_size": spec.side,
            "normalize_z": spec.normalize_z,
            "dtype": str(spec.dtype).removeprefix("torch."),
        }


def assemble(experiment: Experiment, subject: Subject, make: Callable[[NetworkSpec, int], Network] = build) -> Assembly:
    """Make the network, by its spec and a seed, and the method; nothing of the images themselves is needed."""
    e = experiment
    spec = network_spec(e, subject)
    network = make(spec, e.model_seed)
    load_start(network, e)
    layout = layout_of(network, spec)
    layers = dict(layout.layers)
    at_client = ClientProblem(
        classes=subject.classes,
        features=EMBEDDING,
        dtype=spec.dtype,
        momentum=e.momentum,
        calibrate=e.calibrate,
        calibrate_prototypes=e.calibrate if e.calibrate_prototypes is None else e.calibrate_prototypes,
        optimizer=e.optimizer,
        tensors=tuple(TensorInfo(name, shape, layers[name]) for name, shape in layout.params),
    )
    at_server = ServerProblem(
        rounds=e.rounds,
        epochs=e.epochs,
        model_seed=e.model_seed,
        server_beta=e.server_beta,
        server_lr=e.server_lr,
    )
    method = made_method(e.method_type, e.options, at_client, at_server)
    server = CheckedServer(method)
    shared = layout.shared(lambda name, shape, layer: server.personal(TensorInfo(name, shape, layer)))
    if shared is not None and server.has_own:
        raise InputError(f"--method {e.method}: clients have own parts of the global model, or own models beside it")
    if e.class_weights != "none" and CROSS_ENTROPY not in server.term_names():
        raise InputError(f"--class-weights {e.class_weights}: {e.method} has no {CROSS_ENTROPY} among its terms")
    if shared is not None and e.average_weights:
        raise InputError(f"--average-weights {e.average_weights}: {e.method} has models of each client's own")
    if shared is not None and e.ccvr != "none":
        raise InputError(f"--ccvr {e.ccvr}: {e.method} has models of each client's own; leave it out")
    if (shared is not None or server.has_own) and (e.keep == "best" or e.patience is not None):
        given = "--keep best" if e.keep == "best" else f"--patience {e.patience}"
        raise InputError(f"{given}: {e.method} has models of each client's own; leave it out")
    if e.privacy is not None:
        _expect_protected(e, server, network, shared)
    own = (spec.own or imported(spec.name)).source if spec.foreign else None
    return Assembly(e, subject, spec, network, layout, method, server, shared, own)


def _expect_protected(e: Experiment, server: CheckedServer, network: Network, shared: Shared | None) -> None:
    """Refuse what shows only now that a private run would tell."""
    if shared is not None or server.has_own:
        raise InputError(f"--method {e.method}: not for a private run: who evaluates clients' own models tells of them")
    if (reason := objection_to_passes(server, e.rounds)) is not None:
        raise InputError(f"--method {e.method}: not for a private run: {reason}")
    if (reason := objection_to_network(network)) is not None:
        raise InputError(f"--network {e.network}: not for a private run: {reason}; a ResNet takes --norm group")


def resolve_device(name: str) -> torch.device:
    """The torch device of --device; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        number = int(name.partition(":")[2] or 0)
        if number >= count:
            raise InputError(f"--device {name}: torch sees {count} GPUs here; use --device cpu or auto")
    return torch.device(name)


def postprocessors(experiment: Experiment, federation: bool = False) -> tuple[Postprocessor, ...]:
    """What acts on answers before they are sent; privacy comes last, so that nothing is added to what it bounds."""
    found: tuple[Postprocessor, ...] = ()
    if experiment.smallest_class > 1:
        found += (SmallClasses(experiment.smallest_class),)
    if (privacy := experiment.privacy) is not None:
        found += (PrivateClient(privacy, _randomness(experiment, privacy, federation)),)
    return found


def private_server(
    experiment: Experiment, clients: int, rounds: int, federation: bool = False
) -> PrivateServer | None:  # fmt: skip
    """The server's half of privacy; its noise is found here, and a budget that does not last is refused."""
    privacy = experiment.privacy
    if privacy is None:
        return None
    promise = Promise(privacy, experiment.sample, clients, rounds).checked()
    return PrivateServer(promise, _randomness(experiment, privacy, federation), privacy.secure(federation))


def _randomness(experiment: Experiment, privacy: PrivacyOptions, federation: bool) -> Randomness:
    return Secure() if privacy.secure(federation) else Seeded(experiment.model_seed)


def network_spec(experiment: Experiment, subject: Subject) -> NetworkSpec:
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    unit_z = e.normalize_z or e.method_type.unit_z
    looks = (subject.channels, subject.side, subject.classes)
    return NetworkSpec(e.network, e.width, *looks, unit_z, dtype, e.norm, e.own.encoder)


def load_start(network: Network, experiment: Experiment) -> None:
    """Put in what training is to start from, where that is not the seed's."""
    if experiment.start_from is not None:
        load_network(network, experiment.start_from)
    if experiment.encoder_weights is not None:
        load_encoder(network, experiment.encoder_weights)


def fresh_weights(experiment: Experiment, setting: Setting, number: int) -> Weights:
    """The n-th other set of initial weights."""
    network = build(setting.spec, streams.fold(experiment.model_seed, number) % 2**32)
    load_start(network, experiment)
    weights = setting.layout.read(network)
    return Weights(*(tensor.to(setting.device) for tensor in weights.tensors().values()))
