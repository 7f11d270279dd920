from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import toy_images
from PIL import Image

from fedproc import InputError
from fedproc.data import load
from fedproc.data.own import find, read
from fedproc.data.partition import iid, natural
from fedproc.data.sites import write_sites


def picture(path: Path, colour: tuple[int, ...] | int, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def make(folder: Path, count: int = 5) -> None:
    for i in range(count):
        picture(folder / "red" / f"{i}.png", (200, 0, 0), (40 + i, 30))
        picture(folder / "blue" / f"{i}.jpg", (0, 0, 200), (20, 50 + i))


def test_classes_with_a_stratified_split(tmp_path: Path) -> None:
    make(tmp_path, 10)
    (tmp_path / "red" / ".hidden.png").write_text("no image")
    (tmp_path / "red" / "notes.txt").write_text("no image")
    images = read(tmp_path, None, 0.2, 0)
    assert images.class_names == ("blue", "red")
    assert images.train.images.shape == (16, 3, 32, 32)
    assert np.bincount(images.test.labels).tolist() == [2, 2]
    red = images.train.images[images.train.labels == 1][:, 0]
    assert (red[:, 16] == 200).all() and (red[:, 0] == 0).all()  # whole, with black above
    assert read(tmp_path, None, 0.2, 0).fingerprint == images.fingerprint


def test_the_split_follows_the_data_seed(tmp_path: Path) -> None:
    for i in range(10):
        picture(tmp_path / "a" / f"{i}.png", 10 * i)
        picture(tmp_path / "b" / f"{i}.png", 10 * i)
    images = [read(tmp_path, None, 0.3, seed) for seed in (0, 0, 1)]
    assert images[0].fingerprint == images[1].fingerprint != images[2].fingerprint
    assert images[0].channels == 1  # all grey


def test_train_and_test_folders_and_the_image_size(tmp_path: Path) -> None:
    make(tmp_path / "train")
    make(tmp_path / "test", 2)
    images = load(str(tmp_path), None, 48, 0.2, 0)
    assert images.train.images.shape == (10, 3, 48, 48) and len(images.test) == 4


def test_small_squares_of_one_size_keep_it(tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / "a" / f"{i}.png", 9, (28, 28))
        picture(tmp_path / "b" / f"{i}.bmp", 9, (28, 28))
    assert read(tmp_path, None, 0.5, 0).side == 28


def test_a_sideways_photograph_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = 255
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            image.save(tmp_path / name / f"{i}.png", exif=exif)
    assert read(tmp_path, 32, 0.5, 0).train.images[0, 0, 0].max() == 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("not an image", "red/3.png: not a readable image: its format is not known"),
        ("cut", "blue/3.jpg: not a readable image"),
        ("empty class", "green: an empty class"),
        ("no classes", "not an image folder"),
        ("one image", "solo: one image only"),
        ("dicom", "red/3.png: DICOM is not read"),
        ("nested", "deep: holds folders (inner) and no images"),
        ("some nested", "red: holds images, and a folder with more (more), which would be left out"),
        ("enormous", "red/3.png: 9,000 x 9,000 pixels; expected at most"),
        ("float", "red/3.tiff: floating-point pixels"),
    ],
)
def test_damage_is_named_by_path(damage: str, words: str, tmp_path: Path) -> None:
    make(tmp_path)
    if damage == "not an image":
        (tmp_path / "red" / "3.png").write_text("hello")
    elif damage == "cut":
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(
            tmp_path / "blue" / "3.jpg"
        )
        path = tmp_path / "blue" / "3.jpg"
        path.write_bytes(path.read_bytes()[:-900])
    elif damage == "empty class":
        (tmp_path / "green").mkdir()
    elif damage == "dicom":
        (tmp_path / "red" / "3.png").write_bytes(b"\0" * 128 + b"DICM" + b"\0" * 50)
    elif damage == "nested":
        picture(tmp_path / "deep" / "inner" / "0.png", 3)
    elif damage == "some nested":
        picture(tmp_path / "red" / "more" / "inner" / "0.png", 3)
    elif damage == "enormous":
        Image.new("1", (9000, 9000)).save(tmp_path / "red" / "3.png")
    elif damage == "float":
        Image.fromarray(np.ones((20, 20), np.float32)).save(tmp_path / "red" / "3.tiff")
    elif damage == "one image":
        picture(tmp_path / "solo" / "0.png", 3)
    where = tmp_path / "red" if damage == "no classes" else tmp_path
    with pytest.raises(InputError) as caught:
        read(where, None, 0.2, 0)
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)


def test_one_class_alone_may_be_a_table_overlooked(tmp_path: Path) -> None:
    for number in range(6):
        picture(tmp_path / "files" / f"{number}.png", 3)
    with pytest.raises(InputError, match=r"all images are of one class \(files\); expected two at least$"):
        read(tmp_path, None, 0.2, 0)
    table = tmp_path / "images.csv"
    table.write_text("path,label\n" + "".join(f"files/{n}.png,{'ab'[n % 2]}\n" for n in range(6)))
    with pytest.raises(InputError, match=r"if images.csv lists the images, give (--)?data .*images\.csv$"):
        read(tmp_path, None, 0.2, 0)
    assert read(table, None, 0.4, 0).class_names == ("a", "b")
    assert len(find(tmp_path, 0.2, 0, lonely=True).train) == 5  # at a site that is one of many


def test_a_test_class_that_train_lacks(tmp_path: Path) -> None:
    make(tmp_path / "train")
    make(tmp_path / "test")
    picture(tmp_path / "test" / "green" / "0.png", (0, 200, 0))
    with pytest.raises(InputError, match=r"the test images have a class green that the training images do not have"):
        read(tmp_path, None, 0.2, 0)


def test_names_that_are_nothing() -> None:
    with pytest.raises(InputError, match="data nonsense: expected fashion-mini"):
        load("nonsense", None, None, 0.2, 0)
    with pytest.raises(InputError, match="no such folder"):
        load("./nonsense", None, None, 0.2, 0)


def test_sites_hold_the_partition_losslessly(tmp_path: Path) -> None:
    images = toy_images(side=18)
    shares = iid(images.train.labels, 3, 0)
    write_sites(images, shares, tmp_path / "sites")
    assert sorted(p.name for p in (tmp_path / "sites").iterdir()) == [
        "site-1",
        "site-2",
        "site-3",
        "sites.json",
        "test",
    ]
    back = {}
    for site, share in zip(("site-1", "site-2", "site-3"), shares, strict=True):
        found = sorted((tmp_path / "sites" / site).rglob("*.png"))
        assert len(found) == len(share)
        for path in found:
            back[int(path.stem)] = (path.parent.name, np.asarray(Image.open(path)))
    for index, (name, pixels) in back.items():
        assert name == images.class_names[images.train.labels[index]]
        assert (pixels == images.train.images[index, 0]).all()
    assert len(list((tmp_path / "sites" / "test").rglob("*.png"))) == len(images.test)
    assert read(tmp_path / "sites" / "site-1", None, 0.2, 0).side == 18
    with pytest.raises(InputError, match="already there"):
        write_sites(images, shares, tmp_path / "sites")


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_keep_their_range(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(ramp).save(tmp_path / name / f"{i}.{suffix}")
    images = read(tmp_path, 32, 0.5, 0)
    assert images.channels == 1
    assert (images.train.images[0, 0] == ramp >> 8).all()


def test_train_and_val_or_train_alone(tmp_path: Path) -> None:
    make(tmp_path / "a" / "train")
    make(tmp_path / "a" / "val", 2)
    assert len(read(tmp_path / "a", None, 0.2, 0).test) == 4
    make(tmp_path / "b" / "train")
    assert read(tmp_path / "b", None, 0.2, 0).class_names == ("blue", "red")


def test_sites_come_back_as_a_natural_partition(tmp_path: Path) -> None:
    images = toy_images(side=18)
    shares = iid(images.train.labels, 3, 0)
    write_sites(images, shares, tmp_path / "sites")
    back = read(tmp_path / "sites", None, 0.2, 0)
    assert back.site_names == ("site-1", "site-2", "site-3") and back.class_names == images.class_names
    assert [len(share) for share in natural(back.train.sites)] == [len(share) for share in shares]
    assert len(back.test) == len(images.test)


def test_images_beyond_memory_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "pictures", 10)
    plain = read(tmp_path / "pictures", 64, 0.2, 0)
    monkeypatch.setenv("FEDPROC_IMAGE_MEMORY", "0")
    monkeypatch.setenv("FEDPROC_CACHE", str(tmp_path / "cache"))
    mapped = read(tmp_path / "pictures", 64, 0.2, 0)
    assert isinstance(mapped.train.images, np.memmap) and not isinstance(plain.train.images, np.memmap)
    assert mapped.fingerprint == plain.fingerprint
    assert list((tmp_path / "cache").iterdir()) == []  # the file has no name


def test_sites_without_a_test_folder_are_split(tmp_path: Path) -> None:
    make(tmp_path / "north")
    make(tmp_path / "south")
    images = read(tmp_path, None, 0.2, 0)
    assert images.site_names == ("north", "south") and images.class_names == ("blue", "red")
    assert len(images.test) == 4 and len(images.train) == 16


def test_a_format_that_would_call_a_program_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "red" / "3.png").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(InputError, match=r"red/3\.png: not a readable image: its format is not known"):
        read(tmp_path, None, 0.2, 0)
