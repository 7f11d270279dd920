"""What an experiment takes of a person's own images where nothing else is given."""

from __future__ import annotations

from pathlib import Path

from fedproc.data import FEDERATION
from fedproc.data.outline import batch_size_for, epochs_for, outline
from fedproc.data.partition import clients_in_file
from fedproc.given import Given, number


def clients(given: Given) -> float:
    """How many clients there are, which a partition file says."""
    if given.get("partition") == "file" and given.get("partition_file") is not None:
        return clients_in_file(Path(given["partition_file"]))
    return number(given.get("clients", 10))


def following(given: Given, usual_epochs: int) -> Given:
    """What follows a person's own images: their sites are the clients, and few images make small batches."""
    if given["data"] == FEDERATION or {"partition", "clients", "batch_size", "epochs"} <= set(given):
        return {}
    seen = outline(str(given["data"]), number(given.get("test_fraction", 0.2)))
    if seen is None:
        return {}
    found: Given = {}
    sizes = [seen.images / max(1.0, clients(given))]
    if seen.sites and given.get("partition", "natural") == "natural":
        found = {"partition": "natural", "clients": len(seen.sites), "predictions": "held-out"}
        sizes = [float(size) for size in seen.sites.values()]
    sizes = [size * (1 - number(given.get("val_fraction", 0))) for size in sizes]
    found["batch_size"] = batch_size_for(sizes)
    batch_size = max(1, int(number(given.get("batch_size", found["batch_size"]))))
    return {**found, "epochs": epochs_for(sizes, batch_size, usual_epochs)}
