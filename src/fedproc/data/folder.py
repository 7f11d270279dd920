"""A user's own images, as folders:

train/<class>/*  and  test/<class>/* (or val/)
<class>/*                               with a stratified split
<site>/<class>/*  and  test/<class>/*   for --partition natural; test/<class>/* next to the sites (as
    `fedproc data split` writes it) is the test set, or else a part of each
<site>/train/<class>/*  and  <site>/test/<class>/*   one with test images alone is only tested on
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedproc.data.gather import Files, Item, decoded
from fedproc.data.images import Split
from fedproc.data.names import normal
from fedproc.data.pictures import DICOM, EXTENSIONS, Fit, Picture
from fedproc.data.problems import Complain, Problem, refuse
from fedproc.data.split import drawn_for_test
from fedproc.errors import InputError

TEST_NAMES = ("test", "val")


def find(
    folder: Path, test_fraction: float, data_seed: int, lonely: bool = False, complain: Complain = refuse
) -> Files:
    """The image files of a folder, in two parts. A class of one image is refused where that must be split, or trained
    on and not tested where `lonely` ones may be: at a site that is one of many.
    """
    if not folder.is_dir():
        raise InputError(f"--data {folder}: no such folder, nor a data set of that name")
    train, test, undivided = _listed(folder, complain)
    if undivided:
        if not lonely and undivided[0].site is None:
            _expect_two(undivided, complain)
        drawn = drawn_for_test(undivided, test_fraction, data_seed, rounded=True)
        train += [item for item, tested in zip(undivided, drawn, strict=True) if not tested]
        test += [item for item, tested in zip(undivided, drawn, strict=True) if tested]
        train.sort(key=lambda item: item.site or "")
    return Files(str(folder), train, test, bool(undivided)).judge(complain)


def read_flat(folder: Path, class_names: Sequence[str], side: int, channels: int, fit: Fit) -> Split:
    """All images of <class>/*, which must be of these classes."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    items = _items(folder, folder, None, refuse)
    strange = sorted({item.label for item in items} - set(class_names))
    if strange:
        raise InputError(f"{folder}: images of {strange[0]}, expected {', '.join(class_names)}")
    return decoded(items, class_names, side, channels, fit)


def _listed(folder: Path, complain: Complain) -> tuple[list[Item], list[Item], list[Item]]:
    """Images for training, for testing, and those of which a share is to be tested on."""
    held_out = _held_out(folder)
    tested = [] if held_out is None else _items(held_out, folder, None, complain)
    if (folder / "train").is_dir():
        train = _items(folder / "train", folder, None, complain)
        return (train, tested, []) if held_out is not None else ([], [], train)
    sites = _sites(folder)
    if not sites:
        return [], [], _items(folder, folder, None, complain)
    parts: tuple[list[Item], list[Item], list[Item]] = ([], tested, [])
    for site in sites:
        train, own, undivided = _of_site(site, folder, complain)
        if own and held_out is not None:
            text = f"{folder}: site {site.name} has test images, and {held_out.name}/ beside the sites has more"
            complain(Problem("two test sets", f"{text}; keep one of the two", (str(held_out),)))
        parts[0].extend(train if held_out is None else [*train, *undivided])
        parts[1].extend(own)
        parts[2].extend(undivided if held_out is None else [])
    return parts


def _of_site(site: Path, root: Path, complain: Complain) -> tuple[list[Item], list[Item], list[Item]]:
    held_out, name = _held_out(site), normal(site.name)
    tested = [] if held_out is None else _items(held_out, root, name, complain)
    if (site / "train").is_dir():
        train = _items(site / "train", root, name, complain)
        return (train, tested, []) if held_out is not None else ([], [], train)
    if held_out is not None and _folders(site) == [held_out]:
        return [], tested, []
    return [], [], _items(site, root, name, complain)


def _held_out(folder: Path) -> Path | None:
    return next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]


def _pictures(folder: Path) -> list[Path]:
    wanted = (*EXTENSIONS, *DICOM)
    return [p for p in sorted(folder.iterdir()) if p.suffix.lower() in wanted and p.is_file() and p.name[0] != "."]


def _anywhere(folder: Path) -> bool:
    return bool(_pictures(folder)) or any(map(_anywhere, _folders(folder)))


def _sites(folder: Path) -> list[Path]:
    """The sub-folders, if they are sites: if they hold classes, and not images."""
    sites = [entry for entry in _folders(folder) if entry.name not in TEST_NAMES]
    return sites if sites and all(_folders(site) and not _pictures(site) for site in sites) else []


def _items(folder: Path, root: Path, site: str | None, complain: Complain) -> list[Item]:
    """The images of <class>/* in a folder, in the order of the classes."""
    classes = _folders(folder)
    if not classes:
        text = f"{folder}: not an image folder: expected one sub-folder per class with images in it"
        complain(Problem("no classes", text, (str(folder),)))
    found = []
    for entry in sorted(classes, key=lambda entry: normal(entry.name)):
        files = _pictures(entry)
        _judge_class(entry, files, complain)
        for path in files:
            name = path.relative_to(root).as_posix()
            found.append(Item(Picture.at(path), normal(entry.name), site, None, name))
    return found


def _judge_class(folder: Path, files: Sequence[Path], complain: Complain) -> None:
    inner = _folders(folder)
    if files and (deeper := [inside for inside in inner if _anywhere(inside)]):
        text = (
            f"{folder}: holds images, and a folder with more ({deeper[0].name}), which would be left out; "
            "move them up, or away"
        )
        complain(Problem("folders in a class", text, (str(deeper[0]),)))
    if not files and inner:
        text = f"{folder}: holds folders ({inner[0].name}) and no images; expected a class"
        complain(Problem("folders in a class", text, (str(folder),)))
    elif not files:
        text = f"{folder}: an empty class: no image ({', '.join(EXTENSIONS)}) in it; add images or remove the folder"
        complain(Problem("empty class", text, (str(folder),)))


def _expect_two(items: Sequence[Item], complain: Complain) -> None:
    for label in sorted({item.label for item in items}):
        members = [item for item in items if item.label == label]
        if len(members) < 2:
            where = Path(members[0].picture.name).parent
            text = f"{where}: one image only; a split into train and test needs two per class"
            complain(Problem("one image only", text, (members[0].picture.name,)))
