"""Where batch normalisation takes its mean and variance from while the network adapts.

    batch      the batch at hand; the target's average is kept beside it for `export`
    running    a running average that starts at the source's and moves by `momentum` with every batch
    blend      source and batch mixed as N / (N + n) and n / (N + n): N the pseudo-count, n the batch
    source     the source's, unchanged

Limits: momentum 1 and pseudo-count 0 are `batch`; momentum 0 and an endless pseudo-count are `source`.
In every policy the layers' own ``running_mean`` and ``running_var`` hold what `export` bakes in.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from acclimate.errors import OptionError, unknown
from acclimate.fast.checkpointed import is_checkpointed
from acclimate.fast.mixture import mix_next, takes_mixture
from acclimate.norms import batch_norms
from acclimate.ranks import ALONE, Ranks

__all__ = ["POLICIES", "Statistics"]

POLICIES: Final = ("batch", "running", "blend", "source")

_NOTHING: Final = contextlib.nullcontext()
_BUFFERS: Final = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """Applies one policy to every batch norm of a model, which it changes in place."""

    def __init__(
        self,
        model: nn.Module,
        policy: str,
        *,
        momentum: float = 0.1,
        pseudo_count: float = 16.0,
        lean: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        if policy not in POLICIES:
            raise OptionError(unknown("statistics policy", policy, POLICIES))
        self.policy = policy
        self.momentum = momentum
        self.pseudo_count = pseudo_count
        self._lean = lean or ranks.synchronised  # the network runs where layers take a mixture themselves
        self._ranks = ranks
        self.steps = 0
        """Batches in the average that `export` would bake in."""
        found = batch_norms(model)
        self._without_source = [m for m in found.values() if m.running_mean is None]
        self.norms = {name: m for name, m in found.items() if m.running_mean is not None}
        self._flags = {name: (m.momentum, m.track_running_stats) for name, m in self.norms.items()}
        self._updating = False
        if policy == "blend":
            self._source = {name: [t.clone() for t in _mean_and_var(m)] for name, m in self.norms.items()}
        self._taking: set[_NormBase] = set()
        """Layers that take a mixture themselves."""
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._held: list[Tensor] = []
        self._attach()
        if self._lean and policy in ("running", "blend"):
            self._taking |= {m for m in self.norms.values() if isinstance(m, _BatchNorm) and takes_mixture(m)}

    @property
    def single(self) -> str | None:
        """Why a batch of one image cannot be normalised, and what to do; nothing if it can."""
        if any(isinstance(module, _BatchNorm) for module in self._without_source):
            return "the network has batch norms without running statistics, so give more images at once"
        if self.policy == "batch" and any(isinstance(module, _BatchNorm) for module in self.norms.values()):
            return (
                'give more images at once, or choose statistics="running" or statistics="blend", '
                "which work with single images"
            )
        return None

    @property
    def of_batch(self) -> bool:
        """Whether predictions take other statistics than those that `export` would bake in."""
        return self.policy not in ("running", "source") and bool(self.norms)

    @property
    def buffers(self) -> list[str]:
        """Names of the buffers that change."""
        if self.policy == "source":
            return []
        return [
            f"{name}.{buffer}"
            for name, module in self.norms.items()
            for buffer in _BUFFERS
            if getattr(module, buffer, None) is not None
        ]

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Within, a forward pass moves the statistics; without, it leaves no trace."""
        self.steps += 1
        return self._moving() if self.norms else _NOTHING

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        self._switch(self.norms.values(), updating=True)
        try:
            yield
            self._average_over_ranks()
        finally:
            self._switch(self.norms.values(), updating=False)

    def _average_over_ranks(self) -> None:
        """Of what layers hold, that each rank has moved by its own images only."""
        if self._ranks.size == 1 or self.policy == "source":
            return
        norms = [
            m for m in self.norms.values() if not (self._ranks.synchronised and isinstance(m, _BatchNorm))
        ]
        averages = iter(self._ranks.average([t for m in norms for t in _mean_and_var(m)]))
        for module in norms:
            # new tensors, not in place: backward needs the old ones
            module.running_mean, module.running_var = next(averages), next(averages)

    def untouched(self) -> contextlib.AbstractContextManager[None]:
        """Within, a forward pass leaves no trace: an instance norm rounds what it should leave as it is."""
        rounding = [m for m in self.norms.values() if not isinstance(m, _BatchNorm)]
        return self._untouched(rounding) if rounding else _NOTHING

    @contextlib.contextmanager
    def _untouched(self, norms: list[_NormBase]) -> Iterator[None]:
        before = [_mean_and_var(module) for module in norms]
        for module in norms:
            module.running_mean, module.running_var = (tensor.clone() for tensor in _mean_and_var(module))
        try:
            yield
        finally:
            for module, (mean, var) in zip(norms, before, strict=True):
                module.running_mean, module.running_var = mean, var

    def hold(self) -> Callable[[], None]:
        """Remember the statistics as they are; what this returns puts them back."""
        steps, changing = self.steps, self._changing() if self.norms else []
        if len(self._held) != len(changing):
            self._held = [tensor.clone() for tensor in changing]
        if changing:
            torch._foreach_copy_(self._held, changing)

        def put_back() -> None:
            self.steps = steps
            if changing:
                torch._foreach_copy_(self._changing(), self._held)

        return put_back

    @contextlib.contextmanager
    def repeating(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Within, those layers find again what they found in the step since `hold`, and move copies of it."""
        norms = {name: module for name, module in self.norms.items() if module in modules}
        held = dict(zip(self.buffers, self._held, strict=True))
        now = {
            (name, b): m._buffers[b] for name, m in norms.items() for b in _BUFFERS if f"{name}.{b}" in held
        }
        for name, buffer in now:
            norms[name]._buffers[buffer] = held[f"{name}.{buffer}"].clone()
        self._switch(norms.values(), updating=True)
        try:
            yield
        finally:
            self._switch(norms.values(), updating=False)
            for (name, buffer), tensor in now.items():
                norms[name]._buffers[buffer] = tensor

    def _changing(self) -> list[Tensor]:
        if self.policy == "source":
            return []
        tensors = (
            tensor
            for m in self.norms.values()
            for tensor in (m.running_mean, m.running_var, m.num_batches_tracked)
        )
        return [tensor for tensor in tensors if tensor is not None]

    def restart(self) -> None:
        """Begin a new average for `export`: what comes from here on replaces what came before."""
        self.steps = 0

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Within, the layers are as they were found, but for the statistics they hold."""
        for hook in self._hooks:
            hook.remove()
        for name, module in self.norms.items():
            module.training = False
            module.momentum, module.track_running_stats = self._flags[name]
        try:
            yield
        finally:
            self._attach()

    def _attach(self) -> None:
        self._hooks = []
        for name, module in self.norms.items():
            # Only the flag of the layer itself: some norms have a dropout among their children.
            module.training = self.policy == "batch"
            if self.policy in ("running", "blend") and isinstance(module, _BatchNorm):
                hook = functools.partial(self._renormalise, name)
                self._hooks.append(module.register_forward_pre_hook(hook))
        self._switch(self.norms.values(), updating=False)

    def _switch(self, norms: Iterable[_NormBase], *, updating: bool) -> None:
        self._updating = updating
        if self.policy != "batch":
            return
        for module in norms:
            # In training mode torch normalises with the batch and, where it tracks, moves the
            # running average in the same pass: 1 / steps makes that the plain mean of the batches.
            # Past the checks of a module's attributes, which are for parameters and the like.
            object.__setattr__(module, "track_running_stats", updating)
            object.__setattr__(module, "momentum", 1 / self.steps if updating else 0.0)

    def _renormalise(
        self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        """Shift and scale a norm's input so that its own evaluation mode gives the mixed statistics.

        (x' - m) / sqrt(v + eps) = (x - mean) / sqrt(var + eps), with m and v what the layer holds. The
        gradient flows through the batch's share of mean and var, as it does in training mode.
        """
        assert isinstance(module, _NormBase)
        if self.policy == "running" and not self._updating:
            return None
        x = inputs[0]
        mixture = functools.partial(self._mixture, name, module, self._ranks.scaled(x.shape[0]))
        held_mean, held_var = _mean_and_var(module)
        if module in self._taking and not is_checkpointed():
            mix_next(held_mean, mixture)  # and the layer itself does all that follows
            return None
        mean, var, _ = mixture(*self._ranks.moments(x.to(held_mean.dtype)))
        held_mean, held_var = _mean_and_var(module)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = ((held_var + module.eps) / (var + module.eps)).sqrt()
        moved = (x - mean.view(shape)) * scale.view(shape) + held_mean.view(shape)
        return (moved.to(x.dtype), *inputs[1:])

    def _mixture(
        self, name: str, module: _NormBase, count: int, batch_mean: Tensor, batch_var: Tensor
    ) -> tuple[Tensor, Tensor, float]:
        """What a batch is normalised with, and its own share in that; moves the statistics that are held."""
        if self.policy == "running":
            (source_mean, source_var), share = _mean_and_var(module), self.momentum
        else:
            source_mean, source_var = self._source[name]
            share = count / (count + self.pseudo_count)
        mean = torch.lerp(source_mean, batch_mean, share)
        var = torch.lerp(source_var, batch_var, share)
        if self._updating:
            weight = 1.0 if self.policy == "running" else 1 / self.steps
            held_mean, held_var = _mean_and_var(module)
            # New tensors, not in place: a layer that is used twice needs the old ones in backward.
            # Past the checks of a module's attributes, which take longer than this does.
            module._buffers["running_mean"] = torch.lerp(held_mean, mean.detach(), weight)
            module._buffers["running_var"] = torch.lerp(held_var, var.detach(), weight)
        return mean, var, share


def _mean_and_var(module: _NormBase) -> tuple[Tensor, Tensor]:
    assert module.running_mean is not None
    assert module.running_var is not None
    return module.running_mean, module.running_var
