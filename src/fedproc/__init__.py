"""fedproc: federated learning on non-IID image data, built around FedProc.

from fedproc import Experiment, run, compare
run(Experiment(method="fedproc", rounds=10), out="runs/demo")
"""

from fedproc.compare import Comparison, compare
from fedproc.errors import Diverged, InputError, RunError
from fedproc.experiment import Experiment
from fedproc.simulate import Run, run

__all__ = ["Comparison", "Diverged", "Experiment", "InputError", "Run", "RunError", "compare", "run"]
__version__ = "0.1.0"
