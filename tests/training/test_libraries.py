"""timm and torchvision beside any build of torch."""

import subprocess
import sys

import pytest

from nnstretch.errors import MissingExtraError
from nnstretch.support.extras import extras_named
from nnstretch.training.libraries import library


def test_modules_of_both_are_imported() -> None:
    assert callable(library("timm.optim").create_optimizer_v2)
    assert callable(library("torchvision.transforms").ColorJitter)


@pytest.mark.parametrize("defined", [True, False])
def test_a_torchvision_with_its_operators_is_left_alone(defined: bool) -> None:
    """Whether somebody else has defined the operators or not, the import works, and twice."""
    define = (
        "lib = torch.library.Library('torchvision', 'DEF'); "
        "[lib.define(f'{n}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor') for n in ('nms', 'qnms')]"
    )
    code = f"""
import torch
{define if defined else ""}
from nnstretch.training.libraries import library
import torchvision
assert library("torchvision") is torchvision is library("torchvision")
print(torchvision.models.resnet18(num_classes=3).eval()(torch.zeros(1, 3, 32, 32)).shape[1])
"""
    if not defined:
        code = code.replace("import torchvision\n", "library('torchvision')\nimport torchvision\n")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "3"


def test_a_library_that_is_absent_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm.absent", None)
    with pytest.raises(MissingExtraError, match=r"needs timm.*nnstretch\[train\]"), extras_named():
        library("timm.absent")
