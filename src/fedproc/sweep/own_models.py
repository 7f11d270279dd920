"""Which rows of a search end with a model of each client's own, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping

from fedproc.assembly import assemble
from fedproc.experiment import Experiment
from fedproc.methods.method import Method
from fedproc.simulation.preparation import Library, subject_of


def without_own_models(rows: Mapping[str, Experiment]) -> list[str]:
    """The labels of those that have none. Images are read where a network says which of its parts are personal."""
    library = Library()
    return [label for label, experiment in rows.items() if not has_own_models(experiment, library)]


def has_own_models(experiment: Experiment, library: Library) -> bool:
    """Whether clients' own models are evaluated when it ends."""
    kind = experiment.method_type
    if kind.personal is Method.personal and kind.own_model is Method.own_model:
        return False
    assembly = assemble(experiment, subject_of(experiment, library.images(experiment)), library.network)
    server = assembly.server
    last = server.rounds + server.own_rounds - 1
    return assembly.shared is not None or (server.has_own and any(phase.second for phase in server.phases(last)))
