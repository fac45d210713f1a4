"""Recipes: the settings of a training as data, stored as JSON; a few presets."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnstretch.errors import FileError, UsageError
from nnstretch.support.settings import write_text
from nnstretch.training.augmentation import Augmentation

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """All settings of a training; SGD with momentum, linear warm-up, a plateau, then a cosine down to zero.

    Attributes:
        name: its name in reports.
        epochs: passes over the training images.
        batch: images per step.
        learning_rate: the highest one, reached after the warm-up.
        warmup_epochs: epochs (fractions allowed) of linear growth of the rate.
        hold_epochs: epochs after the warm-up at the highest rate.
        momentum: of SGD.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: L2, on weights of convolutions and dense layers alone; scales, shifts and biases have none.
        label_smoothing: share of the target that is spread over all classes.
        ema_decay: per step, of the average of the weights that becomes the result; 0 turns it off.
        distillation_weight: share of the teacher's soft targets in the loss; used only if there is a teacher.
        temperature: by which the logits are divided for the soft targets.
        scales: progressive resizing: ``(epochs, scale)`` stages in order, scale relative to the data set's image
            size; empty means full size throughout. The epochs add up to ``epochs``.
        gradient_clip: limit of the gradient's norm; 0 turns it off.
        precise_bn_samples: images at full size over which the batch-norm statistics are taken at the end; 0 turns
            it off.
        augmentation: random changes of the training images.
        image_size: side for which the recipe was made, in pixels; None if it suits any.
        evaluate_every: epochs between evaluations on the test images; 0 evaluates at the end alone.
        precision: of the matrix products: "float32", "bfloat16", or "auto" (bfloat16 where the processor has it).
        seed: of order and augmentation of the images, and of dropout.
        threads: CPU threads; None leaves torch's setting.
    """

    name: str = "custom"
    epochs: int = 10
    batch: int = 32
    learning_rate: float = 0.1
    warmup_epochs: float = 0.0
    hold_epochs: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-5
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    distillation_weight: float = 0.9
    temperature: float = 4.0
    scales: tuple[tuple[int, float], ...] = ()
    gradient_clip: float = 0.0
    precise_bn_samples: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)
    image_size: int | None = None
    evaluate_every: int = 1
    precision: str = "auto"
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            UsageError: a value out of its range; names it and the range.
        """
        _check_numbers(self)
        if self.precision not in PRECISIONS:
            raise UsageError(f"recipe: precision is {self.precision!r}; one of {', '.join(PRECISIONS)} is wanted")
        if self.nesterov and self.momentum == 0:
            raise UsageError("recipe: nesterov needs a momentum; set momentum above 0 or nesterov to false")
        if self.scales:
            if any(epochs < 1 or not 0 < scale <= 1 for epochs, scale in self.scales):
                raise UsageError("recipe: scales wants pairs of epochs (1 or more) and scale (above 0, up to 1)")
            total = sum(epochs for epochs, _ in self.scales)
            if total != self.epochs:
                raise UsageError(f"recipe: the epochs of scales add up to {total}, but epochs is {self.epochs}")

    def scale(self, epoch: int) -> float:
        """Scale of the images in ``epoch`` (from 0)."""
        for epochs, scale in self.scales:
            if epoch < epochs:
                return scale
            epoch -= epochs
        return 1.0

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of ``step`` (from 0, over the whole training).

        It grows linearly during the warm-up, is then constant, and then follows half a cosine that ends one step before
        zero.
        """
        total = self.epochs * steps_per_epoch
        warm = min(round(self.warmup_epochs * steps_per_epoch), total)
        falling = min(warm + round(self.hold_epochs * steps_per_epoch), total)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        progress = max(0, step - falling) / max(1, total - falling)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values; :func:`recipe_from_json` reads them back."""
        values = dataclasses.asdict(self)
        values["scales"] = [list(stage) for stage in self.scales]
        return values

    def save(self, path: Path) -> None:
        """Write the recipe as a JSON file.

        Raises:
            FileError: it cannot be written.
        """
        write_text(path, json.dumps(self.to_json(), indent=2) + "\n")


# Lowest and highest value of each number; None where there is no limit.
_RANGES: dict[str, tuple[float, float | None]] = {
    "epochs": (0, None),
    "batch": (2, None),  # a batch norm has no statistics of one image's last feature
    "learning_rate": (0, None),
    "warmup_epochs": (0, None),
    "hold_epochs": (0, None),
    "momentum": (0, 1),
    "weight_decay": (0, None),
    "label_smoothing": (0, 1),
    "ema_decay": (0, 1),
    "distillation_weight": (0, 1),
    "temperature": (1e-3, None),
    "gradient_clip": (0, None),
    "precise_bn_samples": (0, None),
    "image_size": (8, None),
    "evaluate_every": (0, None),
    "seed": (0, 2**63 - 1),
    "threads": (1, None),
}
_OPTIONAL = frozenset({"image_size", "threads"})
_AUGMENTATION_RANGES: dict[str, tuple[float, float | None]] = {
    "shift": (0, 1),
    "rotation": (0, 180),
    "scale": (0, None),
}


def _check_numbers(recipe: Recipe) -> None:
    for name, limits in _RANGES.items():
        value = getattr(recipe, name)
        if not (value is None and name in _OPTIONAL):
            _check_range(name, value, limits)
    for name, limits in _AUGMENTATION_RANGES.items():
        _check_range(f"augmentation.{name}", getattr(recipe.augmentation, name), limits)


def _check_range(name: str, value: float, limits: tuple[float, float | None]) -> None:
    low, high = limits
    if not math.isfinite(value) or value < low or (high is not None and value > high):
        wanted = f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
        raise UsageError(f"recipe: {name} is {value:g}; {wanted} is wanted")


def load_recipe(text: str) -> Recipe:
    """The preset called ``text``, or the recipe in the JSON file at that path.

    Raises:
        UsageError: neither; or a field that is unknown, of the wrong type or out of range.
        FileError: a file that cannot be read.
    """
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if path.suffix != ".json" and not path.is_file():
        raise UsageError(
            f"no recipe is called {text!r}; there are {', '.join(PRESETS)}, or give the path of a JSON file"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read recipe {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"recipe {path} is no JSON: {error}; compare it with one that Recipe.save wrote") from error
    return recipe_from_json(values)


def recipe_from_json(values: Any) -> Recipe:
    """The recipe with these fields; those that are missing keep their defaults.

    Raises:
        UsageError: a field that is unknown, of the wrong type or out of range.
    """
    fields = _typed(values, Recipe, "recipe")
    if "augmentation" in fields:
        fields["augmentation"] = Augmentation(**_typed(fields["augmentation"], Augmentation, "augmentation"))
    if "scales" in fields:
        fields["scales"] = _scales(fields["scales"])
    return Recipe(**fields)


def _typed(values: Any, into: type[Recipe | Augmentation], what: str) -> dict[str, Any]:
    """``values`` as constructor arguments of the dataclass ``into``; numbers and texts are checked for their type."""
    if not isinstance(values, dict):
        raise UsageError(f"{what} is a {type(values).__name__} in JSON; an object with fields is wanted")
    kinds = {field.name: str(field.type) for field in dataclasses.fields(into)}
    checks: dict[str, tuple[type, ...]] = {
        "int": (int,),
        "int | None": (int, type(None)),
        "float": (int, float),
        "bool": (bool,),
        "str": (str,),
    }
    for name, value in values.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds)}"
            raise UsageError(f"{what} has no field {name!r}; {advice}")
        wanted = checks.get(kinds[name])
        is_bool_elsewhere = isinstance(value, bool) and kinds[name] != "bool"
        if wanted is not None and (not isinstance(value, wanted) or is_bool_elsewhere):
            raise UsageError(f"{what}: {name} is {json.dumps(value)}; a value of type {kinds[name]} is wanted")
    return dict(values)


def _scales(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list):
        raise UsageError(f"recipe: scales is {json.dumps(value)}; a list of [epochs, scale] is wanted")
    stages: list[tuple[int, float]] = []
    for stage in value:
        match stage:
            case [int(epochs), int() | float() as scale]:
                stages.append((epochs, float(scale)))
            case _:
                raise UsageError(f"recipe: scales has {json.dumps(stage)}; a pair [epochs, scale] is wanted")
    return tuple(stages)


_DIGITS = Augmentation(shift=0.06, rotation=10.0, scale=0.12)
_PHOTOS = Augmentation(shift=0.1, scale=0.25, mirror=True)

# The published trainings of NN-Stretch's baselines, without their colour augmentation.
_RESNET = Recipe(
    name="resnet",
    epochs=100,
    batch=256,
    learning_rate=0.2,
    warmup_epochs=5.0,
    weight_decay=5e-5,
    ema_decay=0.9999,
    precise_bn_samples=8192,
    augmentation=_PHOTOS,
    image_size=224,
)
_REGNET = replace(_RESNET, name="regnet", batch=1024, learning_rate=0.8)
_EFFICIENTNET = replace(
    _RESNET, name="efficientnet", batch=64, learning_rate=0.1, warmup_epochs=0.0, weight_decay=1e-5, image_size=300
)

# Minutes on a few cores, for images as small and few as handwritten digits.
_QUICK = Recipe(
    name="quick",
    epochs=7,
    batch=32,
    learning_rate=0.05,
    warmup_epochs=1.0,
    hold_epochs=3.0,
    weight_decay=5e-4,
    label_smoothing=0.05,
    ema_decay=0.97,
    scales=((4, 0.5), (3, 1.0)),
    precise_bn_samples=512,
    augmentation=_DIGITS,
    image_size=64,
    evaluate_every=0,
)
_QUICK_RETRAIN = replace(
    _QUICK,
    name="quick-retrain",
    epochs=2,
    learning_rate=0.03,
    warmup_epochs=0.3,
    hold_epochs=0.7,
    label_smoothing=0.0,
    scales=(),
    distillation_weight=0.8,
    temperature=3.0,
)

PRESETS: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (_QUICK, _QUICK_RETRAIN, _RESNET, _REGNET, _EFFICIENTNET)
}
