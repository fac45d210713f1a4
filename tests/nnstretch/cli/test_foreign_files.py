"""Files that are no models: the message says what they are and what to give."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import pytest

import nnstretch as nns
from nnstretch.frontends.resolve import load_file
from nnstretch.package.format import is_package
from nnstretch.support.foreign_files import instead_of
from tests.kits.command_line import Cli, refuses

SAID = {
    "photo.jpg": ("is an image", "nnstretch run MODEL --image photo.jpg"),
    "photo.PNG": ("is an image", "--image"),
    "x.npy": ("holds arrays", "nnstretch run MODEL --input NAME=x.npy"),
    "net.pt": ("is a file of torch", "FILE.py:FACTORY", "torch.onnx.export"),
    "net.pth": ("is a file of torch", "FILE.py:FACTORY"),
    "net.safetensors": ("has weights", "--weights"),
    "net.h5": ("TensorFlow", "tf.lite.TFLiteConverter", "tf2onnx"),
    "net.keras": ("TensorFlow", "tf.lite.TFLiteConverter"),
    "net.pb": ("TensorFlow", "tf.lite.TFLiteConverter"),
    "net.engine": ("is a model for TensorRT", "give the ONNX or TFLite file"),
    "net.mlpackage": ("is a model for Core ML", "give the ONNX or TFLite file"),
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("content", ["zip", "bytes", "folder"])
def test_commands_name_what_to_give(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    if content == "folder":
        file.mkdir()
    elif content == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data.pkl", b"1")
    else:
        file.write_bytes(pickle.dumps({"a": 1}))
    for command in ("run", "bench"):
        refuses(cli(command, name), name, *SAID[name])
    with pytest.raises(nns.NNStretchError, match=re.escape(SAID[name][0])):
        load_file(str(file))
    assert not is_package(file)


def test_other_files_are_not_guessed_at() -> None:
    for name in ("net.onnx", "net.tflite", "net.nns", "net", "resnet18", "folder/net"):
        assert instead_of(Path(name)) == ""


def test_an_onnx_file_may_have_any_ending(cli: Cli, onnx_file: Path, tmp_path: Path) -> None:
    named = tmp_path / "net.pb"
    named.write_bytes(onnx_file.read_bytes())
    assert len(load_file(str(named)).graph) > 0
