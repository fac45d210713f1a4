"""Weights in files: back as they were, or refused with a reason and nothing half-filled."""

import itertools
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import nn

from nnstretch.errors import FileError, ModelError
from nnstretch.training.weights import _KINDS, load_weights, read_tensors, save_weights, write_tensors


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 2))


def test_weights_come_back_whatever_their_layout(tmp_path: Path) -> None:
    saved, path = network(), tmp_path / "weights.safetensors"
    saved.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save_weights(saved, path, {"top1": "98.5"})
    loaded = network()
    assert load_weights(loaded, path) == {"top1": "98.5"}
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert set(load_file(path)) == set(saved.state_dict())


def test_files_are_those_of_the_library_for_every_type(tmp_path: Path) -> None:
    """But for the order of the texts, which the library leaves to chance."""
    tensors = {f"{kind} β": torch.arange(6).reshape(2, 3).to(kind) for kind in _KINDS}
    tensors |= {"scalar": torch.tensor(3), "empty": torch.zeros(0, 4), "a": torch.ones(5)}
    write_tensors(tmp_path / "all.safetensors", tensors, {})
    written = (tmp_path / "all.safetensors").read_bytes()
    checksum = json.loads(written[8 : 8 + int.from_bytes(written[:8], "little")])["__metadata__"]
    assert written == save(tensors, metadata=checksum)
    assert all(torch.equal(value, tensors[name]) for name, value in load(written).items())


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_weights(tied, tmp_path / "tied.safetensors")
    load_weights(tied, tmp_path / "tied.safetensors")


def test_another_network_is_refused_by_its_first_tensors_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(network(4), path)
    other = network(6)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(
        ModelError, match=r"0\.weight is float32 \[4, 1, 3, 3\], wanted float32 \[6, 1, 3, 3\].*more"
    ) as caught:
        load_weights(other, path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    with pytest.raises(ModelError, match=r"3\.weight is float32 \[2, 4\], wanted absent"):
        load_weights(network(4)[:3], path)
    with pytest.raises(ModelError, match=r"4\.weight is absent"):
        load_weights(nn.Sequential(*network(4), nn.Linear(2, 2)), path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(network(), path)
    content = bytearray(path.read_bytes())
    for length in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(FileError, match=r"weights\.safetensors"):
            load_weights(network(), path)
    content[-3] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FileError, match="checksum"):
        load_weights(network(), path)


def test_places_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        load_weights(network(), tmp_path / "absent.safetensors")
    with pytest.raises(FileError, match="absent"):
        save_weights(network(), tmp_path / "absent" / "weights.safetensors")


def test_files_of_others_need_no_checksum(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    module, path = network(), tmp_path / "plain.safetensors"
    save_file(module.state_dict(), path)
    assert load_weights(network(), path) == {}


def test_a_file_that_is_replaced_meanwhile_is_read_as_one_of_its_versions(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    versions = [tmp_path / name for name in ("0", "1")]
    for number, version in enumerate(versions):
        write_tensors(version, {"a": torch.full((1000,), float(number))}, {"version": version.name})
    os.link(versions[1], path)
    done = threading.Event()

    def replace() -> None:
        for version in itertools.cycle(versions):
            os.link(version, tmp_path / "new")
            (tmp_path / "new").replace(path)
            if done.is_set():
                return

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(3000):
            tensors, metadata = read_tensors(path)
            assert set(tensors["a"].tolist()) == {float(metadata["version"])}
    finally:
        done.set()
        writer.join()


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    """The texts have an order, too."""
    texts = {f"text {number}": "§" * number for number in range(12)}
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    for number in range(4):
        write_tensors(tmp_path / str(number), tensors, texts)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(4)}) == 1
    found, metadata = read_tensors(tmp_path / "0")
    assert metadata == texts
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
