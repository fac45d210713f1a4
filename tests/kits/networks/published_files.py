"""The branchings of `published_latencies` as YAML files of NN-Stretch's form.

    python -m tests.kits.networks.published_files DIR

A file is named after network and processors, as in `R-34-CG.yaml`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kits.networks.published_latencies import FAMILIES, PROCESSORS, SETTINGS
from tests.kits.networks.published_networks import Setting

MODELS = {
    "R-34": "resnet34",
    "R-50": "resnet50",
    "RX-1.6": "regnet_x_1_6gf",
    "RX-4": "regnet_x_4gf",
    "EN-L4": "efficientnet_lite4",
    "EN-B5": "scripts/studies/published_designs.py:efficientnet_b5_without_gates",
}
"""Network -> what nnstretch builds it from."""
_BLOCKS = {"basic": "res_basic_block", "bottleneck": "res_bottleneck_block", "mobile": "mbconv"}


def setting(name: str, processors: str) -> Setting:
    """A published branching for processors by their letters, as in `CG`."""
    family, (depths, widths) = FAMILIES[name], SETTINGS[name, processors]
    is_mobile, stages = family.block == "mobile", len(depths)
    return Setting(
        MODELS[name],
        224,
        ("simple_stem_in" if is_mobile or family.group else "res_stem_in", family.stem),
        _BLOCKS[family.block],
        [list(stage) for stage in depths],
        [list(stage) for stage in widths],
        list(family.strides),
        [1 if stage == 0 else 6 for stage in range(stages)] if is_mobile else [family.bottleneck] * stages,
        list(family.widths) if is_mobile else [sum(stage) for stage in widths],
        group=family.group,
        kernels=family.kernels if is_mobile else (),
        head=family.head,
        version=1 if is_mobile else 2,
        devices=tuple(PROCESSORS[letter] for letter in processors),
    )


def main(folder: Path) -> None:
    """Writes all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, processors in SETTINGS:
        (folder / f"{name}-{processors}.yaml").write_text(setting(name, processors).text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
