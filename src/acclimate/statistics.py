"""Where batch normalisation takes its mean and variance from while the network adapts.

    batch      the batch at hand; the target's average is kept beside it for `export`
    stream     source and stream mixed, as far as the stream has moved: `stream.py` has the formulas
    running    a running average that starts at the source's and moves by `momentum` with every batch
    blend      source and batch mixed as N / (N + n) and n / (N + n): N the pseudo-count, n the batch
    source     the source's, unchanged
    auto       `stream` where the first batch has fewer than 32 images, `batch` otherwise

Limits: momentum 1 and pseudo-count 0 are `batch`; momentum 0 and an endless pseudo-count are `source`.
In every policy the layers' own ``running_mean`` and ``running_var`` hold what `export` bakes in.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from acclimate.errors import OptionError, unknown
from acclimate.fast.checkpointed import is_checkpointed
from acclimate.fast.mixture import Mixed, mix_next, takes_mixture
from acclimate.norms import batch_norms
from acclimate.ranks import ALONE, Ranks
from acclimate.stream import FEW, Moments, displacement, followed, mixed_with_source, nothing_seen

__all__ = ["POLICIES", "Statistics"]

POLICIES: Final = ("auto", "batch", "stream", "running", "blend", "source")
_MIXED: Final = ("stream", "running", "blend")
"""Policies that normalise by other statistics than the batch's alone or the source's."""

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
        self.policy = "batch" if policy == "auto" else policy
        self._is_auto = self.undecided = policy == "auto"
        """Whether the first batch to come decides the policy."""
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
        if policy in ("auto", "stream", "blend"):
            self._source = {
                name: Moments(*(t.clone() for t in _mean_and_var(m))) for name, m in self.norms.items()
            }
        self.begins = False
        """Whether the last step was a stream's first, of which little was known yet."""
        self._stream: dict[str, Tensor] = {}
        """What `followed` knows of each layer; a layer that saw nothing yet has no entry."""
        self._taking: set[_NormBase] = set()
        """Layers that take a mixture themselves."""
        self._can_take: dict[_NormBase, bool] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._held: list[Tensor] = []
        self._held_stream: dict[str, Tensor] = {}
        self._attach()

    def decide(self, images: int) -> None:
        """Choose a policy for ``auto`` by the size of the first batch, of all ranks."""
        if self.undecided:
            self._decide_for("stream" if images < FEW else "batch")

    def _decide_for(self, policy: str) -> None:
        self.undecided = False
        if self.policy != policy:
            self._become(policy)

    def _undecide(self) -> None:
        self._become("batch")
        self.undecided = True

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided by the first batch, in a sentence."""
        if not self._is_auto or self.undecided or self.policy == "batch" or not self.norms:
            return ()
        return (
            f'batches of fewer than {FEW} images: source and stream are mixed (statistics="stream"); '
            'statistics="batch" takes those of the batch alone',
        )

    def needs_source(self, images: int) -> bool:
        """Whether a prediction can only be the source's: a single image before the first step."""
        return self.undecided and images == 1

    def forget(self) -> None:
        """Begin anew, as if no batch had been seen; what the layers hold is for the caller to put back."""
        self.put_back({}, 0)
        if self._is_auto:
            self._undecide()

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on beside the layers' buffers and `steps`."""
        stream = {f"stream.{name}": tensor for name, tensor in self._stream.items()}
        decided = self._is_auto and not self.undecided
        return {**stream, "policy": torch.tensor(POLICIES.index(self.policy))} if decided else stream

    def restore(self, state: Mapping[str, Tensor], steps: int) -> None:
        """The inverse of `state`, decision included."""
        self.forget()
        if "policy" in state:
            self._decide_for(POLICIES[int(state["policy"])])
        self.put_back(state, steps)

    def put_back(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Go back to an earlier state of the same run: what the first batch decided stays."""
        self.steps = steps
        self._stream = {}
        for key, tensor in state.items():
            if key.startswith("stream."):
                name = key.removeprefix("stream.")
                self._stream[name] = tensor.to(_mean_and_var(self.norms[name])[0].device, copy=True)

    def _become(self, policy: str) -> None:
        for hook in self._hooks:
            hook.remove()
        self.policy = policy
        for name, module in self.norms.items():
            module.momentum, module.track_running_stats = self._flags[name]
        self._attach()

    @property
    def single(self) -> str | None:
        """Why a batch of one image cannot be normalised, and what to do; nothing if it can."""
        if any(isinstance(module, _BatchNorm) for module in self._without_source):
            return "the network has batch norms without running statistics, so give more images at once"
        if self.undecided:
            return None
        if self.policy == "batch" and any(isinstance(module, _BatchNorm) for module in self.norms.values()):
            return 'give more images at once, or choose statistics="stream", which works with single images'
        return None

    @property
    def of_batch(self) -> bool:
        """Whether predictions take other statistics than those that `export` would bake in."""
        return self.policy not in ("stream", "running", "source") and bool(self.norms)

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
        self.begins = self.policy == "stream" and not self._stream
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
        """Average over all ranks what each of them has moved by its own images only."""
        if self._ranks.size == 1 or self.policy == "source":
            return
        norms = [
            m for m in self.norms.values() if not (self._ranks.synchronised and isinstance(m, _BatchNorm))
        ]
        averages = iter(self._ranks.average([t for m in norms for t in _mean_and_var(m)]))
        for module in norms:
            # new tensors, not in place: backward needs the old ones
            module.running_mean, module.running_var = next(averages), next(averages)
        if self._stream and not self._ranks.synchronised:
            streams = self._ranks.average(list(self._stream.values()))
            self._stream = dict(zip(self._stream, streams, strict=True))

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
        self._held_stream = stream = dict(self._stream)  # whose tensors are replaced, never written to
        undecided = self.undecided
        if len(self._held) != len(changing):
            self._held = [tensor.clone() for tensor in changing]
        if changing:
            torch._foreach_copy_(self._held, changing)

        def put_back() -> None:
            self.steps, self._stream = steps, dict(stream)
            if undecided and not self.undecided:
                self._undecide()
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
        stream, self._stream = self._stream, dict(self._held_stream)
        self._switch(norms.values(), updating=True)
        try:
            yield
        finally:
            self._switch(norms.values(), updating=False)
            self._stream = stream
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
            if self.policy in _MIXED and isinstance(module, _BatchNorm):
                hook = functools.partial(self._renormalise, name)
                self._hooks.append(module.register_forward_pre_hook(hook))
        self._taking = {m for m in self.norms.values() if self._takes_mixture(m)}
        self._switch(self.norms.values(), updating=False)

    def _takes_mixture(self, module: _NormBase) -> bool:
        """Whether a layer does by itself what `_renormalise` does by moving its input."""
        if not self._lean or self.policy not in _MIXED or not isinstance(module, _BatchNorm):
            return False
        # such a layer is told the batch's share as a number, for which another device would be waited for
        is_near = self.policy != "stream" or _mean_and_var(module)[0].device.type == "cpu"
        if module not in self._can_take:
            self._can_take[module] = takes_mixture(module)
        return is_near and self._can_take[module]

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
        if self.policy in ("stream", "running") and not self._updating:
            return None
        x = inputs[0]
        mixture = functools.partial(self._mixture, name, module, self._ranks.scaled(x.shape[0]))
        held_mean, held_var = _mean_and_var(module)
        if module in self._taking and not is_checkpointed():
            mix_next(held_mean, mixture)  # and the layer itself does all that follows
            return None
        mean, var, *_ = mixture(*self._ranks.moments(x.to(held_mean.dtype)))
        held_mean, held_var = _mean_and_var(module)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = ((held_var + module.eps) / (var + module.eps)).sqrt()
        moved = (x - mean.view(shape)) * scale.view(shape) + held_mean.view(shape)
        return (moved.to(x.dtype), *inputs[1:])

    def _mixture(
        self, name: str, module: _NormBase, count: int, batch_mean: Tensor, batch_var: Tensor
    ) -> Mixed:
        """What a batch is normalised with; moves the statistics that are held."""
        if self.policy == "stream":
            mixed = self._stream_mixture(name, module.eps, count, batch_mean, batch_var)
            weight = 1.0
        else:
            mixed, weight = self._weighted_mixture(name, module, count, batch_mean, batch_var)
        if self._updating:
            held_mean, held_var = _mean_and_var(module)
            # New tensors, not in place: a layer that is used twice needs the old ones in backward.
            # Past the checks of a module's attributes, which take longer than this does.
            module._buffers["running_mean"] = torch.lerp(held_mean, mixed.mean.detach(), weight)
            module._buffers["running_var"] = torch.lerp(held_var, mixed.var.detach(), weight)
        return mixed

    def _stream_mixture(self, name: str, eps: float, count: int, mean: Tensor, var: Tensor) -> Mixed:
        source = self._source[name]
        before = self._stream.get(name)
        if before is None:
            before = nothing_seen(len(source.mean), source.mean)
        z = displacement(source, mean, var, eps)
        self._stream[name], moved, share, part = followed(before, z, count)
        mixed = mixed_with_source(source, moved, share, eps)
        return Mixed(mixed.mean, mixed.var, share * part, mixed.mean.detach())

    def _weighted_mixture(
        self, name: str, module: _NormBase, count: int, batch_mean: Tensor, batch_var: Tensor
    ) -> tuple[Mixed, float]:
        """The mixture by a fixed weight, and how far it moves what the layer holds."""
        if self.policy == "running":
            (source_mean, source_var), share, weight = _mean_and_var(module), self.momentum, 1.0
        else:
            source_mean, source_var = self._source[name]
            share = count / (count + self.pseudo_count)
            weight = 1 / self.steps if self._updating else 0.0
        mean = torch.lerp(source_mean, batch_mean, share)
        var = torch.lerp(source_var, batch_var, share)
        return Mixed(mean, var, share, batch_mean), weight


def _mean_and_var(module: _NormBase) -> tuple[Tensor, Tensor]:
    assert module.running_mean is not None
    assert module.running_var is not None
    return module.running_mean, module.running_var
