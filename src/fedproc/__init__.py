"""fedproc: federated learning on non-IID image data, built around FedProc.

    from fedproc import Experiment, run, compare
    run(Experiment(method="fedproc", rounds=10), out="runs/demo")

The names below are fetched when first used, so that the command line can answer Ctrl-C from its first moment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedproc.comparison.compare import Comparison, compare
    from fedproc.errors import Diverged, InputError, RunError
    from fedproc.experiment import Experiment
    from fedproc.simulation.drive import Run, run

__all__ = ["Comparison", "Diverged", "Experiment", "InputError", "Run", "RunError", "compare", "run"]
__version__ = "0.1.0"

_HOMES = {
    "comparison.compare": ("Comparison", "compare"),
    "errors": ("Diverged", "InputError", "RunError"),
    "experiment": ("Experiment",),
    "simulation.drive": ("Run", "run"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fedproc.{module}"), name)
    raise AttributeError(f"module 'fedproc' has no attribute {name!r}")
