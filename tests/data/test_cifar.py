"""The CIFAR reader on small files of the official layout, on damage, and on the real bytes."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedproc import InputError
from fedproc.data.cifar import CIFAR10, CIFAR100, Cifar, Part
from fedproc.data.partition import dirichlet


def small(cifar: Cifar) -> Cifar:
    """The same layout with 20 records a file, whatever bytes they hold."""

    def cut(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(Part(part.name, 20, None) for part in parts)

    return replace(cifar, train=cut(cifar.train), test=cut(cifar.test))


def write(cifar: Cifar, folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    target = folder / cifar.folder
    target.mkdir(parents=True)
    written = {}
    for part in (*cifar.train, *cifar.test):
        records = rng.integers(0, 256, (part.records, cifar.label_bytes + 3072)).astype(np.uint8)
        records[:, : cifar.label_bytes] %= 10
        (target / part.name).write_bytes(records.tobytes())
        written[part.name] = records
    return written


def pack(folder: Path, cifar: Cifar) -> Path:
    archive = folder / cifar.download.name
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / cifar.folder, cifar.folder)
    return archive


@pytest.mark.parametrize("official", [CIFAR10, CIFAR100], ids=lambda c: c.name)
def test_extracted_and_packed_files_give_the_same_images(official: Cifar, tmp_path: Path) -> None:
    cifar = small(official)
    written = write(cifar, tmp_path)
    images = cifar.read(tmp_path)
    assert images.train.images.shape == (20 * len(cifar.train), 3, 32, 32)
    first = written[cifar.train[0].name]
    assert images.train.labels[:20].tolist() == first[:, cifar.label_bytes - 1].tolist()  # CIFAR-100: the fine label
    assert (images.train.images[3].reshape(-1) == first[3, cifar.label_bytes :]).all()
    assert cifar.read(tmp_path / cifar.folder).fingerprint == images.fingerprint
    packed = tmp_path / "packed"
    packed.mkdir()
    archive = pack(tmp_path, cifar).rename(packed / cifar.download.name)
    assert cifar.read(packed).fingerprint == images.fingerprint
    assert cifar.read(archive).fingerprint == images.fingerprint
    assert [p.name for p in packed.iterdir()] == [archive.name]  # nothing was unpacked


def test_class_names_come_from_the_archive_or_are_the_published_ones(tmp_path: Path) -> None:
    cifar = small(CIFAR10)
    write(cifar, tmp_path)
    assert cifar.read(tmp_path).class_names[0] == "airplane"
    (tmp_path / cifar.folder / "batches.meta.txt").write_text("\n".join(f"name{k}" for k in range(10)) + "\n\n")
    assert cifar.read(tmp_path).class_names[:2] == ("name0", "name1")


def damage_truncated(folder: Path) -> None:
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-7])


def damage_too_long(folder: Path) -> None:
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes() + b"x")


def damage_label(folder: Path) -> None:
    path = folder / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[3073 * 4] = 10
    path.write_bytes(bytes(content))


def damage_missing(folder: Path) -> None:
    (folder / "data_batch_2.bin").unlink()


def damage_unreadable(folder: Path) -> None:
    (folder / "data_batch_2.bin").unlink()
    (folder / "data_batch_2.bin").mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_truncated, "truncated: has 61,453 bytes, expected 61,460"),
        (damage_too_long, "too long: has 61,461 bytes, expected 61,460"),
        (damage_label, "record 4 has label 10, expected 0 to 9"),
        (damage_missing, "missing"),
        (damage_unreadable, "cannot be read"),
    ],
)
def test_damage_is_named_by_path(damage, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cifar = small(CIFAR10)
    write(cifar, tmp_path)
    damage(tmp_path / cifar.folder)
    with pytest.raises(InputError) as caught:
        cifar.read(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path / cifar.folder / "data_batch_2.bin") in str(caught.value)


def test_wrong_checksum_is_named_by_path(tmp_path: Path) -> None:
    cifar = small(CIFAR10)
    write(cifar, tmp_path)
    cifar = replace(cifar, test=(replace(cifar.test[0], sha1="00" * 20),))
    with pytest.raises(InputError, match=r"test_batch\.bin: wrong checksum: SHA-1 is .*, published is 0000"):
        cifar.read(tmp_path)


@pytest.mark.parametrize("kind", ["cut", "not a tar", "empty"])
def test_damaged_archives_are_named_by_path(kind: str, tmp_path: Path) -> None:
    cifar = small(CIFAR10)
    write(cifar, tmp_path)
    archive = pack(tmp_path, cifar)
    whole = archive.read_bytes()
    content = {"cut": whole[: len(whole) // 2], "not a tar": b"hello" * 1000, "empty": b""}[kind]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / archive.name).write_bytes(content)
    with pytest.raises(InputError, match=f"{archive.name}: not a whole"):
        cifar.read(alone)


def test_an_archive_with_other_things_in_it_writes_nothing(tmp_path: Path) -> None:
    archive = tmp_path / CIFAR10.download.name
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("../../evil.bin")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(InputError, match=r"data_batch_1\.bin: missing"):
        small(CIFAR10).read(tmp_path)
    assert not (tmp_path.parent.parent / "evil.bin").exists()


def test_a_folder_without_the_files_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test_batch.bin or cifar-10-binary.tar.gz in it for cifar10"):
        CIFAR10.read(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        CIFAR10.read(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_real_files(real_data: Path, tmp_path: Path) -> None:
    for cifar, classes in ((CIFAR10, 10), (CIFAR100, 100)):
        images = cifar.read(real_data)
        assert images.train.images.shape == (50_000, 3, 32, 32) and len(images.test) == 10_000
        assert np.bincount(images.train.labels).tolist() == [50_000 // classes] * classes
    images = CIFAR10.read(real_data)
    # per-channel means that SPEC section 3 gives, and the draws of section 4 on the real labels
    means = images.train.images.mean(axis=(0, 2, 3))
    assert means == pytest.approx([125.3, 123.0, 113.9], abs=0.1)
    sizes = [len(share) for share in dirichlet(images.train.labels, 10, 0.5, 0)]
    assert (min(sizes), max(sizes)) == (3688, 8078)
    with tarfile.open(tmp_path / CIFAR10.download.name, "w:gz", compresslevel=1) as tar:
        tar.add(real_data / CIFAR10.folder, CIFAR10.folder)
    assert CIFAR10.read(tmp_path).fingerprint == images.fingerprint


@pytest.mark.slow
def test_one_changed_pixel_of_the_real_files_is_noticed(real_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / CIFAR10.folder
    folder.mkdir()
    for file in (real_data / CIFAR10.folder).glob("*.bin"):
        (folder / file.name).write_bytes(file.read_bytes())
    content = bytearray((folder / "data_batch_3.bin").read_bytes())
    content[100] ^= 1
    (folder / "data_batch_3.bin").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"data_batch_3\.bin: wrong checksum"):
        CIFAR10.read(tmp_path)
