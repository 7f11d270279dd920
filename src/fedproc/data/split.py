"""Which of a person's images are test images, where they do not say so themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedproc import streams
from fedproc.data.gather import Item


def drawn_for_test(items: Sequence[Item], fraction: float, seed: int, rounded: bool) -> list[bool]:
    """Whether each image is a test image: a share of each class, of each site where there are sites. Groups stay whole:
    each is drawn with the class and the site that most of its images have, and one at least stays for training.

    A share is the number of images nearest to the fraction and at least 1 where it is `rounded`, else no less than the
    fraction.
    """
    groups: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        groups.setdefault(f"\0{place}" if item.group is None else item.group, []).append(place)
    strata: dict[tuple[str, str], list[str]] = {}
    for name, members in groups.items():
        label = Counter(items[i].label for i in members).most_common(1)[0][0]
        site = Counter(items[i].site or "" for i in members).most_common(1)[0][0]
        strata.setdefault((site, label), []).append(name)
    sites, labels = (sorted({key[axis] for key in strata}) for axis in (0, 1))
    chosen: set[int] = set()
    for (site, label), names in strata.items():
        wanted = fraction * sum(len(groups[name]) for name in names)
        if rounded:
            wanted = max(1, round(wanted))
        at = (labels.index(label), *((sites.index(site),) if site else ()))
        taken = 0
        for i in streams.order(streams.key(seed, streams.Purpose.TEST_SPLIT, *at), len(names)).tolist()[:-1]:
            if taken >= wanted:
                break
            chosen.update(groups[names[i]])
            taken += len(groups[names[i]])
    return [place in chosen for place in range(len(items))]
