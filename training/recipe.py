"""Recipes: the settings of a training as data, under the names that timm gives them.

A field of `Recipe` is declared once, with its default, its range, its help and its option of `nnstretch train`. Presets are the
YAML files in `training/recipes` (`training.recipe_files`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nnstretch.api.options import Option
from nnstretch.errors import UsageError
from nnstretch.support.image_size import LEAST_SIDE, as_image_size, parse_image_size, sides, size_key

AMP_DTYPES = ("auto", "float32", "bfloat16", "float16")
CHECKPOINTS = ("best", "last")
"""Epochs whose weights may be the result."""
SCHEDULES = ("cosine", "linear", "constant")
RANGES = ("learned", "ema")
"""How ranges of activations follow a training through quantisation."""
METHODS = ("minmax", "entropy", "percentile", "mse")

_SCHEDULE = "Recipe: schedule and optimiser"
_AUGMENTATION = "Recipe: images and augmentation"
_AVERAGES = "Recipe: averages"
_TEACHER = "Recipe: learning from a teacher"
_QUANTISATION = "Recipe: quantisation-aware training"
_COMPUTATION = "Recipe: computation"


def _setting(
    spelling: str, help: str, default: Any, low: float | None = None, high: float = math.inf, **more: Any
) -> Any:
    """A field with its `Option` and, for a number, its lowest and highest value; infinity itself is never allowed."""
    metadata: dict[str, Any] = {"option": Option(help, spelling, ("train",), **more)}
    if low is not None:
        metadata["range"] = (low, high)
    return field(default=default, metadata=metadata)


def _pair(text: str | None) -> tuple[float, float] | None:
    """`MIN,MAX` as numbers; "none" is None."""
    if text is None or text == "none":
        return None
    low, comma, high = text.partition(",")
    try:
        return float(low), float(high if comma else low)
    except ValueError:
        raise UsageError(f"{text!r} is no range; write MIN,MAX, as in 0.08,1") from None


def _stages(text: str | None) -> tuple[tuple[int, float], ...]:
    """`EPOCHS:SCALE,…` as pairs; "none" is no stage."""
    if text is None or text == "none":
        return ()
    try:
        parts = (stage.partition(":") for stage in text.split(","))
        return tuple((int(epochs), float(scale)) for epochs, _, scale in parts)
    except ValueError:
        raise UsageError(f"{text!r} are no stages; write EPOCHS:SCALE,…, as in 2:0.5,1:1") from None


@dataclass(frozen=True)
class Recipe:
    """All settings of a training.

    The help of each field describes it. A recipe file has the same fields.
    """

    name: str = field(default="custom", metadata={"option": Option("Its name in reports.", "")})
    epochs: int = _setting("--epochs N", "Passes over the training images.", 10, 0)
    batch_size: int = _setting("--batch-size N", "Images per batch, over all processes.", 32, 2)
    image_size: int | tuple[int, int] | None = _setting(
        "--image-size SIZE",
        "Side of the images, or height and width, as in 48x160; by default that of the weights, the design, the model file or "
        "the factory's example input, the recipe, or 64.",
        None,
        text=str | None,
        parse=parse_image_size,
    )
    seed: int = _setting("--seed N", "Seed of all random numbers.", 0, 0, 2**63 - 1)
    threads: int | None = _setting("--threads -t N", "CPU threads; torch's setting by default.", None, 1)

    opt: str = _setting("--opt NAME", "Optimiser by timm's name: sgd, adamw, lamb …", "sgd", panel=_SCHEDULE)
    lr: float = _setting("--lr RATE", "Highest learning rate.", 0.1, 0, panel=_SCHEDULE)
    momentum: float = _setting(
        "--momentum SHARE", "Momentum, of the optimisers that have one.", 0.9, 0, 1, panel=_SCHEDULE
    )
    weight_decay: float = _setting(
        "--weight-decay SHARE", "Weight decay; vectors, such as biases and norms, have none.", 5e-5, 0, panel=_SCHEDULE
    )
    clip_grad: float | None = _setting(
        "--clip-grad NORM", "Limit of the gradient's norm; 0: none.", None, 0, panel=_SCHEDULE
    )
    grad_accum_steps: int = _setting(
        "--grad-accum-steps N", "Batches whose gradients one update averages.", 1, 1, panel=_SCHEDULE
    )
    sched: str = _setting("--sched NAME", f"How the rate falls: {', '.join(SCHEDULES)}.", "cosine", panel=_SCHEDULE)
    warmup_epochs: float = _setting(
        "--warmup-epochs N", "Epochs of linear growth of the rate; fractions count.", 0.0, 0, panel=_SCHEDULE
    )
    hold_epochs: float = _setting(
        "--hold-epochs N", "Epochs at the highest rate after the warm-up.", 0.0, 0, panel=_SCHEDULE
    )
    min_lr: float = _setting("--min-lr RATE", "The rate that the schedule falls to.", 0.0, 0, panel=_SCHEDULE)
    smoothing: float = _setting(
        "--smoothing SHARE", "Share of the target that is spread over all classes.", 0.0, 0, 1, panel=_SCHEDULE
    )
    evaluate_every: int = _setting(
        "--evaluate-every N", "Epochs between evaluations on the validation images; 0: at the end only.", 1, 0,
        panel=_SCHEDULE,
    )  # fmt: skip
    checkpoint: str = _setting(
        "--checkpoint NAME",
        "Epoch whose weights are the result: best (the first with the highest score on the validation images) or last.",
        "best",
        panel=_SCHEDULE,
    )
    target_accuracy: float = _setting(
        "--target-accuracy PERCENT",
        "Top-1, mIoU or mAP on the validation images that ends the training; 0: none.",
        0.0,
        0,
        100,
        panel=_SCHEDULE,
    )
    patience: int = _setting(
        "--patience N", "Evaluations without a better result that end the training; 0: none.", 0, 0, panel=_SCHEDULE
    )

    crop_pct: float | None = _setting(
        "--crop-pct SHARE",
        "Image size over the size that an image is scaled to cover for evaluation; the data set's by default.",
        None,
        0.01,
        1,
        panel=_AUGMENTATION,
    )
    scales: tuple[tuple[int, float], ...] = _setting(
        "--scales EPOCHS:SCALE,…",
        "Progressive resizing: for how many epochs images have which scale, such as 2:0.5,1:1; none: full size.",
        (),
        text=str | None,
        parse=_stages,
        panel=_AUGMENTATION,
    )
    drop: float | None = _setting(
        "--drop SHARE", "Rate of all dropout layers; the network's by default.", None, 0, 0.99, panel=_AUGMENTATION
    )
    scale: tuple[float, float] | None = _setting(
        "--scale MIN,MAX",
        "Area of random resized crops over that of the image; none: no random crops.",
        None,
        1e-3,
        1,
        text=str | None,
        parse=_pair,
        panel=_AUGMENTATION,
    )
    ratio: tuple[float, float] = _setting(
        "--ratio MIN,MAX",
        "Aspect ratio of random resized crops, over that of the input.",
        (3 / 4, 4 / 3),
        0.1,
        10,
        text=str | None,
        parse=_pair,
        panel=_AUGMENTATION,
    )
    hflip: float = _setting("--hflip SHARE", "Share of images flipped left to right.", 0.0, 0, 1, panel=_AUGMENTATION)
    color_jitter: float | None = _setting(
        "--color-jitter AMOUNT",
        "Largest change of brightness, contrast and saturation.",
        None,
        0,
        1,
        panel=_AUGMENTATION,
    )
    color_pca: float = _setting(
        "--color-pca DEVIATION",
        "Standard deviation of the principal components of colour.",
        0.0,
        0,
        panel=_AUGMENTATION,
    )
    aa: str | None = _setting(
        "--aa POLICY", "Automatic augmentation by timm's name, such as rand-m7-mstd0.5-inc1.", None, panel=_AUGMENTATION
    )
    reprob: float = _setting("--reprob SHARE", "Share of images with an erased part.", 0.0, 0, 1, panel=_AUGMENTATION)
    shift: float = _setting(
        "--shift SHARE", "Largest random shift, as a share of the side.", 0.0, 0, 1, panel=_AUGMENTATION
    )
    rotation: float = _setting("--rotation DEGREES", "Largest random rotation.", 0.0, 0, 180, panel=_AUGMENTATION)
    zoom: float = _setting(
        "--zoom AMOUNT", "0.1: axes are scaled by 1/1.1 to 1.1 at random.", 0.0, 0, panel=_AUGMENTATION
    )
    mixup: float = _setting("--mixup ALPHA", "Alpha of mixup; 0: none.", 0.0, 0, panel=_AUGMENTATION)
    cutmix: float = _setting("--cutmix ALPHA", "Alpha of CutMix; 0: none.", 0.0, 0, panel=_AUGMENTATION)
    mixup_prob: float = _setting(
        "--mixup-prob SHARE",
        "Probability that a batch is mixed: one draw per batch, as timm's mixup_mode batch.",
        1.0,
        0,
        1,
        panel=_AUGMENTATION,
    )
    mixup_switch_prob: float = _setting(
        "--mixup-switch-prob SHARE",
        "Probability that a mixed batch gets CutMix where both are on.",
        0.5,
        0,
        1,
        panel=_AUGMENTATION,
    )
    mixup_off_epoch: int = _setting(
        "--mixup-off-epoch N", "Epoch from which on images are not mixed; 0: never.", 0, 0, panel=_AUGMENTATION
    )

    model_ema: bool = _setting(
        "--model-ema/--no-model-ema", "The result has the moving average of the weights.", False, panel=_AVERAGES
    )
    model_ema_decay: float = _setting(
        "--model-ema-decay SHARE", "Decay of that average per update.", 0.9998, 0, 1, panel=_AVERAGES
    )
    precise_bn_samples: int = _setting(
        "--precise-bn-samples N",
        "Images over which the batch-norm statistics of the result are taken; 0: those of the training.",
        0,
        0,
        panel=_AVERAGES,
    )

    kd_loss_weight: float = _setting(
        "--kd-loss-weight SHARE", "Share of the teacher's logits in the loss.", 0.9, 0, 1, panel=_TEACHER
    )
    kd_temperature: float = _setting(
        "--kd-temperature T", "By which logits are divided for the soft targets.", 4.0, 1e-3, panel=_TEACHER
    )
    kd_feature_weight: float = _setting(
        "--kd-feature-weight WEIGHT",
        "Weight of the loss of feature maps against the teacher's.",
        0.0,
        0,
        panel=_TEACHER,
    )
    blockwise_epochs: float = _setting(
        "--blockwise-epochs N",
        "Epochs in which the segments of a branched network first learn the teacher's feature maps side by side.",
        0.0,
        0,
        panel=_TEACHER,
    )
    blockwise_lr: float = _setting(
        "--blockwise-lr RATE", "Highest learning rate of these epochs, of Adam.", 2e-3, 0, panel=_TEACHER
    )

    qat: bool = _setting(
        "--qat/--no-qat",
        "Train through the roundings of int8; the network starts from trained weights.",
        False,
        panel=_QUANTISATION,
    )
    qat_ranges: str = _setting(
        "--qat-ranges NAME",
        "How ranges of activations follow the training: learned (by gradients) or ema (average of the batches' extremes).",
        "learned",
        panel=_QUANTISATION,
    )
    qat_method: str = _setting(
        "--qat-method NAME",
        f"How the first ranges are chosen on training images: {', '.join(METHODS)}.",
        "minmax",
        panel=_QUANTISATION,
    )
    qat_images: int = _setting(
        "--qat-images N", "Training images that the first ranges are taken from.", 100, 1, panel=_QUANTISATION
    )
    qat_keep_float: str = _setting(
        "--qat-keep-float NAMES",
        "Layers that stay in float32, as for `nnstretch quantize`, with commas between them.",
        "auto",
        panel=_QUANTISATION,
    )

    amp_dtype: str = _setting(
        "--amp-dtype TYPE",
        f"Type of matrix products: {', '.join(AMP_DTYPES)}; auto: bfloat16 where the processor has it.",
        "auto",
        panel=_COMPUTATION,
    )
    channels_last: bool = _setting(
        "--channels-last/--no-channels-last",
        "Tensors have channels as the last axis in memory.",
        True,
        panel=_COMPUTATION,
    )
    fsdp: bool = _setting(
        "--fsdp/--no-fsdp",
        "Several processes divide gradients, optimiser state and averages (FSDP2) instead of having copies of them (DDP).",
        False,
        panel=_COMPUTATION,
    )
    sync_bn: bool = _setting(
        "--sync-bn/--no-sync-bn",
        "Batch norms take their statistics over the batches of all processes; else each over its own, and those of the first "
        "process are kept.",
        True,
        panel=_COMPUTATION,
    )
    torchcompile: str | None = _setting(
        "--torchcompile BACKEND", "Compile the network with torch.compile: inductor, eager …", None, panel=_COMPUTATION
    )
    workers: int | None = _setting(
        "--workers N",
        "Processes that load images; by the data set and the cores by default.",
        None,
        0,
        panel=_COMPUTATION,
    )

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            UsageError: a value out of its range; names it and the range.
        """
        for one in dataclasses.fields(self):
            if "range" in one.metadata:
                self._check_range(one.name, *one.metadata["range"])
        choices_of = {
            "amp_dtype": AMP_DTYPES,
            "checkpoint": CHECKPOINTS,
            "sched": SCHEDULES,
            "qat_ranges": RANGES,
            "qat_method": METHODS,
        }
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"recipe: {name} is {getattr(self, name)!r}; one of {', '.join(choices)} is wanted")
        if self.opt == "sgd" and self.momentum == 0:
            raise UsageError(
                "recipe: opt sgd is with nesterov, which needs a momentum; set momentum or opt to momentum"
            )
        if self.may_stop_early and not self.evaluate_every:
            raise UsageError(
                "recipe: target_accuracy and patience need evaluations between epochs; set evaluate_every to 1 or more"
            )
        self._take_image_size()
        if self.scales:
            if any(epochs < 1 or not 0 < scale <= 1 for epochs, scale in self.scales):
                raise UsageError("recipe: scales wants pairs of epochs (1 or more) and scale (above 0, up to 1)")
            total = sum(epochs for epochs, _ in self.scales)
            if total != self.epochs:
                raise UsageError(f"recipe: the epochs of scales add up to {total}, but epochs is {self.epochs}")

        if self.qat:
            self._check_qat()

    def _take_image_size(self) -> None:
        """Checks the size of images, which may be a list."""
        if self.image_size is None:
            return
        size = as_image_size(self.image_size)
        object.__setattr__(self, "image_size", size)
        if min(sides(size)) < LEAST_SIDE:
            raise UsageError(f"recipe: image_size is {size_key(size)}; sides of {LEAST_SIDE} or more are wanted")

    def _check_qat(self) -> None:
        """Refuses what a network with the roundings of its int8 graph does not have."""
        for name, wanted, reason in (
            ("amp_dtype", "float32", "roundings are those of float32"),
            ("scales", (), "the int8 graph is of one image size"),
            ("kd_feature_weight", 0.0, "folded layers have no stages to compare"),
            ("blockwise_epochs", 0.0, "segments learn side by side before the quantisation"),
            ("fsdp", False, "rounded weights are not divided over processes"),
        ):
            if getattr(self, name) != wanted:
                shown = "none" if wanted == () else str(wanted).lower()
                raise UsageError(f"recipe: qat trains with {name} {shown}: {reason}")

    def _check_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        for one in values:
            if not (math.isfinite(one) and low <= one <= high):
                wanted = f"{low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
                raise UsageError(f"recipe: {name} is {one:g}; {wanted} is wanted")
        if isinstance(value, tuple) and value[0] > value[1]:
            raise UsageError(f"recipe: {name} is {value[0]:g} to {value[1]:g}; the lower bound comes first")

    @property
    def may_stop_early(self) -> bool:
        """Whether evaluations can end the training."""
        return self.target_accuracy > 0 or self.patience > 0

    def evaluates(self, epoch: int) -> bool:
        """Whether the network is evaluated between `epoch` (from 0) and the next one."""
        if self.evaluate_every == 0 or epoch + 1 == self.epochs:
            return False
        return (epoch + 1) % self.evaluate_every == 0 and not (self.may_stop_early and self.image_scale(epoch) < 1)

    def stops_after(self, accuracies: Sequence[float]) -> bool:
        """Whether the training ends early after evaluations with these accuracies, in percent and in order."""
        if not accuracies:
            return False
        if 0 < self.target_accuracy <= accuracies[-1]:
            return True
        best = accuracies.index(max(accuracies))
        return 0 < self.patience <= len(accuracies) - 1 - best

    def image_scale(self, epoch: int) -> float:
        """Scale of the images in `epoch` (from 0), relative to the data set's image size."""
        for epochs, scale in self.scales:
            if epoch < epochs:
                return scale
            epoch -= epochs
        return 1.0

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of `step` (from 0, over the whole training).

        It grows linearly during the warm-up, is then constant, and then falls as `sched` says; it would reach `min_lr` one
        step after the last one.
        """
        total = self.epochs * steps_per_epoch
        warm = min(round(self.warmup_epochs * steps_per_epoch), total)
        falling = min(warm + round(self.hold_epochs * steps_per_epoch), total)
        if step < warm:
            return self.lr * (step + 1) / warm
        progress = max(0, step - falling) / max(1, total - falling)
        share = {"cosine": 0.5 * (1 + math.cos(math.pi * progress)), "linear": 1 - progress, "constant": 1.0}[
            self.sched
        ]
        return self.min_lr + (self.lr - self.min_lr) * share

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values; `recipe_files.recipe_from_json` reads them back."""
        values = dataclasses.asdict(self)
        values["scales"] = [list(stage) for stage in self.scales]
        for name in ("image_size", "scale", "ratio"):
            values[name] = list(values[name]) if isinstance(values[name], tuple) else values[name]
        return values
