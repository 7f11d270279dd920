"""SCAFFOLD's control variates under FedProc's loss: two methods combined, with the options of both."""

from fedproc.methods.fedproc import FedProc
from fedproc.methods.scaffold import Scaffold


class Both(Scaffold, FedProc):
    name = "both"
    summary = "FedProc's loss with SCAFFOLD's control variates"
