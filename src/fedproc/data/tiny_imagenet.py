"""Tiny-ImageNet: the official zip or its folder; the val split, through its annotations, is the test set."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from fedproc.data.download import Download, fetch
from fedproc.data.gather import Files, Item, gather
from fedproc.data.images import Images
from fedproc.data.pictures import Picture
from fedproc.errors import InputError

ROOT = "tiny-imagenet-200"
SIDE = 64
CLASSES = 200
MOST_MEMBER = 8 << 20  # far more than its largest file
DOWNLOAD = Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")


class Tree:
    """The files below the root, in a folder or a zip: their names, and the bytes of each."""

    def __init__(self, where: str, names: list[str], content: Callable[[str], bytes]) -> None:
        self.where = where
        self.names = sorted(names)
        self.content = content

    def text(self, name: str) -> list[str]:
        if name not in self.names:
            raise InputError(f"{self.where}/{name}: missing; expected the layout of {ROOT}")
        try:
            return self.content(name).decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.where}/{name}: not text: {error}") from error

    def picture(self, name: str) -> Picture:
        return Picture(f"{self.where}/{name}", lambda: self.content(name))


def read(data_dir: Path | None, image_size: int | None) -> Images:
    """64x64 colour images, or scaled to `image_size`."""
    tree = _tree(fetch(DOWNLOAD) if data_dir is None else data_dir)
    ids = [line.strip() for line in tree.text("wnids.txt") if line.strip()]
    if len(set(ids)) != CLASSES:
        raise InputError(f"{tree.where}/wnids.txt: {len(set(ids))} classes, expected {CLASSES}")
    train = _train(tree, set(ids))
    test = _test(tree, set(ids))
    images = gather(Files("tiny-imagenet", train, test), image_size or SIDE, "crop")
    return Images(images.name, images.train, images.test, _names(tree, images.class_names))


def _tree(data_dir: Path) -> Tree:
    if data_dir.is_file():
        return _from_zip(data_dir)
    if not data_dir.is_dir():
        raise InputError(f"--data-dir {data_dir}: no such folder or zip")
    for folder in (data_dir / ROOT, data_dir):
        if (folder / "wnids.txt").is_file():
            return _from_folder(folder)
    if (data_dir / DOWNLOAD.name).is_file():
        return _from_zip(data_dir / DOWNLOAD.name)
    raise InputError(f"--data-dir {data_dir}: expected {ROOT}/wnids.txt or {DOWNLOAD.name} in it, found neither")


def _from_folder(folder: Path) -> Tree:
    def content(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise InputError(f"{folder / name}: cannot be read: {error.strerror}") from error

    return Tree(str(folder), [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()], content)


def _from_zip(path: Path) -> Tree:
    """Members are read one by one into memory, by their names in the layout; nothing is unpacked."""
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # damaged directories fail in many ways
        raise InputError(f"{path}: not a whole zip archive: {error}; get the file again") from error
    members = {m.filename.removeprefix(f"{ROOT}/"): m for m in archive.infolist() if not m.is_dir()}

    def content(name: str) -> bytes:
        member = members[name]
        if member.file_size > MOST_MEMBER:
            raise InputError(f"{path}/{name}: unpacks to {member.file_size:,} bytes, expected at most {MOST_MEMBER:,}")
        try:
            with archive.open(member) as file:
                return file.read(MOST_MEMBER)
        except Exception as error:
            raise InputError(f"{path}/{name}: cannot be read: {error}; get the archive again") from error

    return Tree(str(path), list(members), content)


def _train(tree: Tree, ids: set[str]) -> list[Item]:
    items = []
    for name in tree.names:
        parts = PurePosixPath(name).parts
        if len(parts) == 4 and parts[0] == "train" and parts[2] == "images" and parts[1] in ids:
            items.append(Item(tree.picture(name), parts[1]))
    without = sorted(ids - {item.label for item in items})
    if without:
        raise InputError(f"{tree.where}/train/{without[0]}: an empty class: no image in it")
    return items


def _test(tree: Tree, ids: set[str]) -> list[Item]:
    items, there = [], set(tree.names)
    for number, line in enumerate(tree.text("val/val_annotations.txt"), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in ids:
            raise InputError(f"{tree.where}/val/val_annotations.txt, line {number}: expected an image and its class id")
        name = f"val/images/{fields[0]}"
        if name not in there:
            raise InputError(f"{tree.where}/{name}: missing, though val_annotations.txt lists it")
        items.append(Item(tree.picture(name), fields[1]))
    return items


def _names(tree: Tree, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word of each class where words.txt is there, else its id."""
    lines = tree.text("words.txt") if "words.txt" in tree.names else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(words.get(identity, identity).split(",")[0] for identity in ids)
