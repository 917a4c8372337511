"""The adaptable model g = f ∘ normalisation ∘ d: pixels in, logits of the classes asked for out."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning, InputError, ModelError, OptionError, unknown
from acclimate.fast.layout import in_planes, is_by_pixel, pixel_by_pixel
from acclimate.fast.lean import Lean
from acclimate.input_transform import InputTransformation
from acclimate.outputs import caution_about, logits_of, tells_enough
from acclimate.ranks import ALONE, Ranks

__all__ = ["Network", "Normalization", "classifier_name"]

_AS_IT_IS: Final = contextlib.nullcontext()
_MIXED: Final = re.compile(r"\b(Half|BFloat16)\b")
"""How torch names half precision where an operation gets two types."""
_CASTS: Final = (
    "the network's own code casts to half precision, but here its weights compute in float32 ({}): take the "
    'cast out of its forward, or give precision="fp16" or "bf16"'
)


class Normalization(nn.Module):
    """(x - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        means, stds = (torch.tensor(value, dtype=torch.float32) for value in (mean, std))
        self.register_buffer("mean", means.view(-1, 1, 1), persistent=False)
        self.register_buffer("std", stds.view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Network(nn.Module):
    """Holds the prepared model, and before it the input transformation and the normalisation, if any."""

    classes: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        normalization: Normalization | None = None,
        transform: InputTransformation | None = None,
        classes: Sequence[int] | None = None,
        features: str | None = None,
        tricks: Collection[str] = (),
        precision: torch.dtype | None = None,
        adapts: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.model = model
        self.normalization = normalization
        self.transform = transform
        self.channels = None if normalization is None else len(normalization.mean)
        chosen = None if classes is None else torch.tensor(classes)
        self.register_buffer("classes", chosen, persistent=False)
        # looked up in every step: attributes that are no modules come several times faster
        self._before = tuple(part for part in (transform, normalization) if part is not None)
        self._has_classes = classes is not None
        self._classifier = features
        self._range_checked = normalization is None
        self._outputs_checked = not adapts or ranks.rank > 0
        has_images = any(isinstance(module, nn.Conv2d) for module in model.modules())
        self._channels_last = "layout" in tricks and has_images
        self._single_channel_last = self._channels_last and not any(map(_fails_by_pixel, model.modules()))
        # a script may write to memory that concatenations share, and nobody asks us
        has_scripts = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
        self._lean = Lean([t for t in tricks if not (has_scripts and t == "concatenations")], ranks)
        self._precision = precision
        self._insists = False
        self._outputs: int | None = None
        if features is not None and features not in dict(model.named_modules()):
            raise OptionError(
                unknown("classifier layer", features, [n for n, _ in model.named_modules() if n])
            )

    def check(self, images: Tensor) -> None:
        """An error if these are no images that the normalisation fits; a warning if they are no pixels."""
        if self.channels is not None and (images.ndim != 4 or images.shape[1] != self.channels):
            raise InputError(
                f"images must have the shape (N, {self.channels}, H, W), as normalize has {self.channels} "
                f"channels, got {tuple(images.shape)}"
            )
        if not self._range_checked:
            self._check_range(images)

    def forward(self, images: Tensor) -> Tensor:
        by_pixel = self._channels_last and not self._insists and images.ndim == 4 and images.is_cpu
        by_pixel = by_pixel and (images.shape[1] > 1 or self._single_channel_last)
        if self._insists:
            images = in_planes(images)
        elif by_pixel:
            images = pixel_by_pixel(images)
        as_usual = not self._before and not by_pixel and images.is_contiguous()
        with self._autocast(images.device.type), self._lean if self._lean else _AS_IT_IS:
            for part in self._before:
                images = part(images)
            if by_pixel and images.shape[1] == 1:  # what a part makes of one channel may be either for torch
                images = pixel_by_pixel(images)
            try:
                output = self.model(images) if as_usual else self._output(images)
            except RuntimeError as error:
                if self._precision is not None or _MIXED.search(str(error)) is None:
                    raise
                raise ModelError(_CASTS.format(str(error).partition("\n")[0])) from error
        logits = logits_of(output, len(images))
        if not self._outputs_checked and tells_enough(logits):
            self._check_outputs(logits)
        if self._precision is not None:
            logits = logits.float()
        if self._outputs != logits.shape[1]:
            self._outputs = logits.shape[1]
        if not self._has_classes:
            return logits
        assert self.classes is not None
        if int(self.classes.max()) >= logits.shape[1]:
            raise OptionError(
                f"classes goes up to {int(self.classes.max())}, but the network has {logits.shape[1]} outputs"
            )
        return logits[:, self.classes]

    def _autocast(self, device: str) -> contextlib.AbstractContextManager[object]:
        if self._precision is None:
            return _AS_IT_IS
        return torch.autocast(device, self._precision)

    def _output(self, images: Tensor) -> object:
        """The model's output; images lie in memory pixel by pixel where convolutions are faster so.

        A model that asks for another shape by ``view`` may refuse that: it gets them plane by plane.
        """
        if images.is_contiguous() and not is_by_pixel(images):
            return self.model(images)
        before = [] if self._outputs else [buffer.clone() for buffer in self.model.buffers()]
        try:
            return self.model(images)
        except RuntimeError as error:
            if "view size is not compatible" not in str(error):
                raise
        self._insists = True
        with torch.no_grad():  # the layers before the one that refused have seen the batch already
            for buffer, value in zip(self.model.buffers(), before, strict=bool(before)):
                buffer.copy_(value)
        return self.model(in_planes(images))

    def _check_range(self, images: Tensor) -> None:
        """Once: pixels that were normalised already, or never divided by 255, are a costly silent mistake."""
        self._range_checked = True
        low, high = torch.stack(images.detach().aminmax()).tolist()
        if low < -0.5 or high > 1.5:
            warnings.warn(
                f"with normalize=, images are pixels in [0, 1], but these go from {low:.3g} to {high:.3g}: "
                "were they normalised before, or are they bytes?",
                AcclimateWarning,
                stacklevel=2,
            )

    def _check_outputs(self, outputs: Tensor) -> None:
        """Once: a network that gives no logits adapts to no good, and nothing else would say so."""
        self._outputs_checked = True
        caution = caution_about(outputs)
        if caution is not None:
            warnings.warn(caution, AcclimateWarning, stacklevel=2)

    @contextlib.contextmanager
    def features(self) -> Iterator[list[Tensor]]:
        """Within, every forward pass appends the classifier's input ``(N, d)`` to the list."""
        name = self._classifier or classifier_name(self.model, self._outputs)
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach()
            # a convolution as classifier sees a map: the mean over its pixels is the feature
            seen.append(x.flatten(2).mean(2) if x.ndim == 4 else x.flatten(1))

        handle = self.model.get_submodule(name).register_forward_pre_hook(keep)
        try:
            yield seen
        finally:
            handle.remove()


def _fails_by_pixel(module: nn.Module) -> bool:
    """Whether oneDNN may get images of one channel wrong so: if columns are left out and no rows (2.13)."""
    return isinstance(module, nn.Conv2d) and module.in_channels == 1 and module.stride[0] < module.stride[1]


def classifier_name(model: nn.Module, outputs: int | None) -> str:
    """The layer that makes the logits: the last linear layer or 1x1 convolution with as many outputs."""
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, nn.Linear) and module.out_features == outputs:
            return str(name)
        if (
            isinstance(module, nn.Conv2d)
            and set(module.kernel_size) == {1}
            and module.out_channels == outputs
        ):
            return str(name)
    raise ModelError(
        f"no linear layer or 1x1 convolution with {outputs} outputs was found that could be the classifier: "
        "name it by features="
    )
