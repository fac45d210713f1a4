"""The options that say, beside its name, which network a command builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.options import IMAGE_SIZE, SEED, WEIGHTS, field_of, option_field
from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize

if TYPE_CHECKING:
    from nnstretch.cli.models.networks import Network


@dataclass(frozen=True)
class NetworkRequest:
    """Options of the commands that change a network or write it.

    Attributes:
        weights: file of the network's weights.
        num_classes, small_images: of a zoo network.
        image_size: of the input.
        seed: of weights that are not filled in from a file.
    """

    weights: Path | None = field_of(WEIGHTS)
    num_classes: int | None = option_field("--num-classes N", "Classes of a zoo network.", shown="1000", minimum=1)
    small_images: bool = option_field(
        "--small-images", "A zoo network with a stem for images of about 64 x 64.", default=False
    )
    image_size: ImageSize | None = field_of(IMAGE_SIZE)
    seed: int = field_of(SEED, default=0)

    def build(self, spec: str) -> Network:
        """The network that `spec` names, with these options.

        Args:
            spec: a zoo name, `module.py:factory`, or an ONNX or TFLite file.

        Raises:
            UsageError: an option is for networks of the zoo, and this is none.
            NNStretchError: something is not found, cannot be read, or does not fit the rest.
        """
        from nnstretch.cli.models.networks import NetworkOptions, build_network, is_of_zoo

        if self.num_classes is not None and not is_of_zoo(spec):
            raise UsageError(
                f"--num-classes is for zoo networks; {spec} has the classes of its last layer: leave the option out"
            )
        options = NetworkOptions(self.num_classes, self.small_images or None, None, self.image_size, self.seed)
        return build_network(spec, options, self.weights)
