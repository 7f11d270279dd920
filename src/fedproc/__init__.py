"""fedproc: federated learning on non-IID image data, built around FedProc.

    from fedproc import Experiment, run, compare
    run(Experiment(method="fedproc", rounds=10, fedproc={"tau": 0.2}), out="runs/demo")

The names below are fetched when first used, so that the command line can answer Ctrl-C from its first moment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedproc.errors import Diverged, InputError, RunError
    from fedproc.experiment import Experiment
    from fedproc.notebook.api import compare, load_model, open_comparison, open_run, run
    from fedproc.notebook.results import Classifier, Comparison, Run
    from fedproc.simulation.watching import Watched, Watcher

__all__ = [
    "Classifier",
    "Comparison",
    "Diverged",
    "Experiment",
    "InputError",
    "Run",
    "RunError",
    "Watched",
    "Watcher",
    "compare",
    "load_model",
    "open_comparison",
    "open_run",
    "run",
]
__version__ = "0.1.0"

_HOMES = {
    "errors": ("Diverged", "InputError", "RunError"),
    "experiment": ("Experiment",),
    "notebook.api": ("compare", "load_model", "open_comparison", "open_run", "run"),
    "notebook.results": ("Classifier", "Comparison", "Run"),
    "simulation.watching": ("Watched", "Watcher"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"fedproc.{module}"), name)
    raise AttributeError(f"module 'fedproc' has no attribute {name!r}")
