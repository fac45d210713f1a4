"""Recipe files: presets and files of users, in YAML or JSON, with today's or former names of fields."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size, of_size_key
from nnstretch.support.settings import write_text
from nnstretch.training.recipe import Recipe

_FOLDER = Path(__file__).parent / "recipes"
PRESETS = tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))
"""Names of the presets."""
DENSE = "dense"
"""The preset for segmentation and detection."""

# Former presets: each is the training of one network.
_FORMER_PRESETS = {
    "resnet": "resnet50",
    "regnet": "regnet_x_4gf",
    "efficientnet": "efficientnet_lite4",
    "efficientnet-b5": "efficientnet_b5",
}
# Former name of a field, or of a field of "augmentation" -> today's.
_FORMER_FIELDS = {
    "batch": "batch_size",
    "learning_rate": "lr",
    "label_smoothing": "smoothing",
    "ema_decay": "model_ema_decay",
    "distillation_weight": "kd_loss_weight",
    "temperature": "kd_temperature",
    "blockwise_rate": "blockwise_lr",
    "gradient_clip": "clip_grad",
    "precision": "amp_dtype",
    "nesterov": "opt",
}
_FORMER_AUGMENTATION = {
    "shift": "shift",
    "rotation": "rotation",
    "scale": "zoom",
    "mirror": "hflip",
    "colour": "color_pca",
}
_NOT_FIELDS = ("description", "models")


def load_recipe(text: str, model: str = "") -> Recipe:
    """The preset called `text`, or the recipe in the YAML or JSON file at that path.

    Args:
        text: name or path.
        model: zoo name or `module.py:factory` of the network; fields under `models` of the file whose pattern it matches
            replace the others.

    Raises:
        UsageError: neither; or a field that is unknown, of the wrong type or out of range.
        FileError: a file that cannot be read.
    """
    if text in PRESETS:
        return _of_model(_read(_FOLDER / f"{text}.yaml"), model, text)
    if text in _FORMER_PRESETS:
        return replace(load_recipe("nnstretch", _FORMER_PRESETS[text]), name=text)
    path = Path(text)
    if path.suffix not in (".json", ".yaml", ".yml") and not path.is_file():
        raise UsageError(
            f"no recipe is called {text!r}; there are {', '.join(PRESETS)}, or give the path of a YAML file"
        )
    values = _read(path)
    try:
        return _of_model(values, model, path.stem)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe as a YAML file, or as JSON if the path ends in `.json`.

    Raises:
        FileError: it cannot be written.
    """
    import yaml

    values = recipe.to_json()
    text = json.dumps(values, indent=2) if path.suffix == ".json" else yaml.safe_dump(values, sort_keys=False).rstrip()
    write_text(path, text + "\n")


def recipe_from_json(values: Any) -> Recipe:
    """The recipe with these fields; those that are missing keep their defaults.

    Raises:
        UsageError: a field that is unknown, of the wrong type or out of range.
    """
    return _of_model(values, "", "custom")


def _read(path: Path) -> Any:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise FileError(f"cannot read recipe {path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        said = " ".join(str(error).split())
        raise UsageError(f"recipe {path} is no {kind}: {said}; compare it with one that save_recipe wrote") from error


def _of_model(values: Any, model: str, name: str) -> Recipe:
    """The recipe in the values of a file for one network."""
    if not isinstance(values, dict):
        raise UsageError(f"recipe is a {type(values).__name__}; an object with fields is wanted")
    fields = {"name": name, **_renamed(values)}
    models = values.get("models") or {}
    if not isinstance(models, dict):
        raise UsageError(f"recipe: models is {json.dumps(models)}; an object of patterns of names is wanted")
    for pattern, changes in models.items():
        if not isinstance(changes, dict):
            raise UsageError(
                f"recipe: models has {json.dumps(changes)} for {pattern!r}; an object with fields is wanted"
            )
        if fnmatch(model.lower(), str(pattern).lower()):
            fields.update(_renamed(changes))
    return Recipe(**{name: _typed(name, value) for name, value in fields.items()})


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under today's names; those that are none of a recipe are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == "augmentation":
            found.update(_augmentation(value))
        elif name in _FORMER_FIELDS:
            found.update(_converted(name, value))
        elif name not in _NOT_FIELDS:
            found[name] = value
    return found


def _converted(name: str, value: Any) -> dict[str, Any]:
    """A field with a former name under today's, with its value of today."""
    if name == "nesterov":
        if not isinstance(value, bool):
            raise UsageError(f"recipe: nesterov is {json.dumps(value)}; true or false is wanted")
        return {"opt": "sgd" if value else "momentum"}
    if name == "gradient_clip":
        return {"clip_grad": value or None}
    if name == "ema_decay":
        return {"model_ema": bool(value), "model_ema_decay": value} if value else {"model_ema": False}
    return {_FORMER_FIELDS[name]: value}


def _augmentation(value: Any) -> dict[str, Any]:
    """The fields that were once nested in `augmentation`."""
    if not isinstance(value, dict):
        raise UsageError(f"augmentation is {json.dumps(value)}; an object with fields is wanted")
    for name in value:
        if name not in _FORMER_AUGMENTATION:
            raise UsageError(f"augmentation has no field {name!r}; {_advice(name, _FORMER_AUGMENTATION)}")
    found = {_FORMER_AUGMENTATION[name]: amount for name, amount in value.items()}
    if isinstance(found.get("hflip"), bool):
        found["hflip"] = 0.5 if found["hflip"] else 0.0
    return found


def _advice(name: str, names: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


@cache
def _kinds() -> dict[str, Any]:
    """Types of a recipe's fields by name."""
    return get_type_hints(Recipe)


def _typed(name: str, value: Any) -> Any:
    """The value of a field, checked for its type. Lists become tuples."""
    kinds = _kinds()
    if name not in kinds:
        raise UsageError(f"recipe has no field {name!r}; {_advice(name, {**kinds, **_FORMER_FIELDS})}")
    options = get_args(kinds[name])
    if value is None and type(None) in options:
        return None
    if name == "image_size":
        return _image_size(value)
    if name == "scales":
        return _scales(value)
    if name in ("scale", "ratio"):
        return _range(name, value)
    kind = next((option for option in options if option is not type(None)), kinds[name])
    if kind is float:
        value = _number(value)
    if not isinstance(value, float | int if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"recipe: {name} is {json.dumps(value)}; a value of type {kind.__name__} is wanted")
    return value


def _number(value: Any) -> Any:
    """A text as the number that it says: YAML takes 5e-5 for a text, 5.0e-5 for a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _range(name: str, value: Any) -> tuple[float, float]:
    match value:
        case [int() | float() as low, int() | float() as high]:
            return float(low), float(high)
    raise UsageError(f"recipe: {name} is {json.dumps(value)}; a pair [lowest, highest] is wanted")


def _image_size(value: Any) -> ImageSize:
    """A size as options take it, or the side or both sides."""
    try:
        return of_size_key(value) if isinstance(value, str) else as_image_size(value)
    except UsageError as error:
        raise UsageError(f"recipe: image_size is {json.dumps(value)}; 224, 48x160 or [48, 160] is wanted") from error


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
