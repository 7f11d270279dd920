"""The job as public federated scripts do it: python run_plain.py FOLDER ANSWER per-sample|vectorised.

PIL transforms in a DataLoader, a deep copy of the global model a client, one client after another, torch.optim.SGD,
averaged state dicts, all of torch's threads. The prototype loss is summed up sample by sample, or computed at once.
DataLoader workers: in the first round clients take turns with none and two, and the faster stays.
"""

from __future__ import annotations

import copy
import sys
import time
from random import randint, random
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from job import Array, Job, Network, answer, tested
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

PAD = 4
WORKERS = (0, 2)


class Transform:
    """Reflect-padded random crop and flip (if asked for), ToTensor, Normalize: what torchvision does to PIL images."""

    def __init__(self, job: Job, augment: bool) -> None:
        self.augment = augment
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (job.mean, job.std))

    def __call__(self, image: Image.Image) -> Tensor:
        if self.augment:
            width, height = image.size
            image = Image.fromarray(np.pad(np.asarray(image), ((PAD, PAD), (PAD, PAD), (0, 0)), "reflect"))
            left, top = randint(0, 2 * PAD), randint(0, 2 * PAD)
            image = image.crop((left, top, left + width, top + height))
            if random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return tensor.sub_(self.mean).div_(self.std)


class Client(Dataset[tuple[Tensor, int]]):
    """One client's images (N, H, W, C) and their transform."""

    def __init__(self, images: Array, labels: Array, own: list[int], transform: Transform) -> None:
        self.images, self.labels, self.own, self.transform = images, labels, own, transform

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        index = self.own[place]
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


def prototype_loss(z: Tensor, labels: Tensor, prototypes: Tensor, vectorised: bool) -> Tensor:
    """Cross-entropy over the cosines with the classes' prototypes."""
    if vectorised:
        return F.cross_entropy(F.normalize(z) @ F.normalize(prototypes).T, labels)
    loss = torch.zeros(())
    for i in range(len(labels)):
        cosines = F.cosine_similarity(z[i].unsqueeze(0), prototypes)
        loss = loss + F.cross_entropy(cosines.unsqueeze(0), labels[i].unsqueeze(0))
    return loss / len(labels)


def train(
    network: Network,
    loader: DataLoader[tuple[Tensor, int]],
    job: Job,
    prototypes: Tensor | None,
    alpha: float,
    vectorised: bool,
) -> None:
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), job.lr, job.momentum, weight_decay=job.weight_decay)
    for images, labels in loader:
        optimizer.zero_grad()
        z, logits = network(images)
        loss = F.cross_entropy(logits, labels)
        if prototypes is not None:
            loss = (1 - alpha) * loss + alpha * prototype_loss(z, labels, prototypes, vectorised)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def class_means(network: Network, loader: DataLoader[tuple[Tensor, int]], vectorised: bool) -> dict[int, Tensor]:
    """The mean z of each class that the client holds."""
    network.eval()
    held: dict[int, list[Tensor]] = {}
    for images, labels in loader:
        z = network(images)[0]
        if vectorised:
            for k in labels.unique().tolist():
                held.setdefault(k, []).append(z[labels == k])
        else:
            for i in range(len(labels)):
                held.setdefault(int(labels[i]), []).append(z[i].unsqueeze(0))
    return {k: torch.cat(pieces).mean(dim=0) for k, pieces in held.items()}


def merged(means: list[dict[int, Tensor]], classes: int) -> Tensor:
    """Each class's mean over the clients that hold it."""
    return torch.stack([torch.stack([own[k] for own in means if k in own]).mean(dim=0) for k in range(classes)])


class Trial:
    """Which number of DataLoader workers is faster: tried in turns over the first round, its first clients apart."""

    def __init__(self) -> None:
        self.rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}

    def turn(self, place: int) -> int:
        return WORKERS[place % len(WORKERS)]

    def note(self, place: int, samples: int, seconds: float) -> None:
        if place >= len(WORKERS):
            self.rates[self.turn(place)].append(samples / seconds)

    def best(self) -> int:
        return max(WORKERS, key=lambda workers: median(self.rates[workers]))

    def __str__(self) -> str:
        return ", ".join(f"{workers}: {median(rates):,.0f}/s" for workers, rates in self.rates.items())


def main(folder: str, out: str, loss: str) -> None:
    job, vectorised = Job.read(folder), loss == "vectorised"
    images, labels = np.ascontiguousarray(job.array("images").transpose(0, 2, 3, 1)), np.array(job.array("labels"))
    moving, clean = Transform(job, job.augment != "none"), Transform(job, False)
    network, trial = job.network(), Trial()

    def means_of(model: Network, user: int, workers: int) -> dict[int, Tensor]:
        loader = DataLoader(Client(images, labels, job.users[user], clean), 256, num_workers=workers)
        return class_means(model, loader, vectorised)

    prototypes: Tensor | None = None
    if job.method == "fedproc":
        prototypes = merged([means_of(network, user, 0) for user in range(len(job.users))], job.classes)
    ends: list[float] = []
    for t, cohort in enumerate(job.cohorts):
        total = sum(len(job.users[user]) for user in cohort)
        average: dict[str, Tensor] = {}
        means = []
        for place, user in enumerate(cohort):
            began = time.perf_counter()
            workers = trial.best() if t else trial.turn(place)
            own = Client(images, labels, job.users[user], moving)
            loader = DataLoader(own, job.batch_size, shuffle=True, drop_last=True, num_workers=workers)
            local = copy.deepcopy(network)
            train(local, loader, job, prototypes, job.alphas[t], vectorised)
            if prototypes is not None:
                means.append(means_of(local, user, workers))
            for name, tensor in local.state_dict().items():
                average[name] = average.get(name, 0) + tensor * (len(own) / total)
            if t == 0:
                trial.note(place, len(own), time.perf_counter() - began)
        network.load_state_dict(average)
        if prototypes is not None:
            prototypes = merged(means, job.classes)
        ends.append(time.time())
    how = f"{torch.get_num_threads()} torch threads, {trial.best()} DataLoader workers (samples with {trial})"
    answer(out, ["torch", "pillow"], ends, tested(network, job), how)


if __name__ == "__main__":
    main(*sys.argv[1:])
