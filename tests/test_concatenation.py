"""Concatenations in shared memory: as exact as torch's own, whatever a network does with them."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from acclimate import Adapter
from acclimate.fast import TRICKS
from acclimate.fast.concatenation import Concatenations, joined
from acclimate.fast.lean import Lean
from acclimate.fast.native import native_kernels
from acclimate.models.vision import import_torchvision
from lean_oracle import adapting, kept, random

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="there is no C compiler here")
APART = [name for name in TRICKS if name != "concatenations"]


def images(seed: int, count: int = 3) -> Tensor:
    x = torch.randn(count, 5, 6, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return x.contiguous(memory_format=torch.channels_last)


class Dense(nn.Module):
    """A dense block; ``uses`` says what else is done with a concatenation."""

    def __init__(
        self,
        act: Callable[..., Tensor] = F.silu,
        uses: Callable[[int, Tensor, list[Tensor]], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.act, widths = act, [5, 8, 11, 14, 17]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.convs = nn.ModuleList(nn.Conv2d(width, 3, 3, padding=1) for width in widths[:-1])
        self.uses = uses
        self.held: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        pieces, rest = [x], torch.zeros(())
        for number, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=False)):
            joint = torch.cat(pieces, 1)
            if self.uses is not None:
                rest = rest + self.uses(number, joint, self.held).sum()
            made = self.act(norm(joint), inplace=True)
            del joint
            pieces.append(conv(made))
        last: Tensor = self.norms[-1](torch.cat(pieces, 1))
        return self.act(last) + rest


def passes(
    net: nn.Module, tricks: list[str] | None, counts: tuple[int, ...] = (3, 3, 2), low: bool = False
) -> list[dict[str, Tensor]]:
    """All that comes of some passes, in float64 if it is torch's own; the first one only learns."""
    net, found = copy.deepcopy(net), []
    net = net.double() if tricks is None else net
    lean = Lean(tricks or [])
    for seed, count in enumerate(counts):
        leaf = images(seed, count)
        leaf = (leaf.double() if tricks is None else leaf).requires_grad_()
        net.zero_grad()
        with lean, torch.autocast("cpu", torch.bfloat16, enabled=low):
            made = net(leaf * 1)
        made.backward(random(*made.shape, seed=9).to(made.dtype))
        assert leaf.grad is not None
        parts = {"output": made.detach(), "input": leaf.grad}
        parts |= {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        parts |= {name: buffer.clone() for name, buffer in net.named_buffers()}
        found.append({name: part.double() for name, part in parts.items()})
    return found


def check(net: nn.Module, **how: Any) -> None:
    """As near to float64 as without sharing; nearer than that no rounding error is asked to be."""
    exact = passes(net, None, **how)
    for one, other, right in zip(
        passes(net, list(TRICKS), **how), passes(net, APART, **how), exact, strict=True
    ):
        assert one.keys() == other.keys() == right.keys()
        for name, part in right.items():
            # gradients of parameters are sums over those of elements, which may cancel each other
            size = part.norm() + (1e-3 if name in ("output", "input") else right["input"].norm())
            ours, theirs = ((found[name] - part).norm() / size for found in (one, other))
            assert ours <= max(5 * theirs, 3e-5), (name, ours, theirs)


def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the widths of concatenations that are made in shared memory."""
    seen: list[int] = []
    method = Concatenations._grown

    def noted(self: Concatenations, growth: Any, pieces: Any, kind: Any) -> Tensor:
        seen.append(sum(piece.shape[1] for piece in pieces))
        return method(self, growth, pieces, kind)

    monkeypatch.setattr(Concatenations, "_grown", noted)
    return seen


def dense(*args: Any) -> nn.Module:
    return adapting(nn.BatchNorm2d(5), Dense(*args)).float()


def test_a_dense_block(monkeypatch: pytest.MonkeyPatch) -> None:
    check(dense())
    check(dense(F.relu))
    seen = shared(monkeypatch)
    passes(dense(), list(TRICKS))
    assert seen == 2 * [5, 8, 11, 14, 17]  # from the second pass on


def test_in_low_precision() -> None:
    """The errors of bfloat16 are not much more than those that there are without sharing."""
    net = adapting(nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5), Dense()).float()
    exact = passes(net, None)
    ours, apart = passes(net, list(TRICKS), low=True), passes(net, APART, low=True)
    for right, one, other in zip(exact, ours, apart, strict=True):
        for name in ("output", "input"):
            size = right[name].norm()
            assert (one[name] - right[name]).norm() / size <= 1.5 * (other[name] - right[name]).norm() / size


def running(net: nn.Module) -> nn.Module:
    """Normalised by running statistics, through which no gradient flows."""
    return net.eval()


def partly_frozen(net: nn.Module) -> nn.Module:
    net[0].requires_grad_(False)  # type: ignore[index]
    net[1].norms[0].requires_grad_(False)  # type: ignore[index]
    return net


@pytest.mark.parametrize("change", [running, partly_frozen])
def test_other_norms(change: Callable[[nn.Module], nn.Module]) -> None:
    check(change(dense()))


def convolved(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    return joint.square().mean((2, 3))


def kept_alive(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    held.append(joint)
    return held[number // 2] * 0.5


def written_to(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    """A later pass over an older concatenation, in place."""
    held.append(joint.clone() if number % 2 else joint)
    return held[-1].relu_() if number == 2 else joint


def written_to_in_part(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    joint[:, 1:3].mul_(0.5)
    joint[0] = 0.5
    return joint[:0]


def not_used(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    torch.cat([joint, joint], 1)
    return joint[:0]


def watched(number: int, joint: Tensor, held: list[Any]) -> Tensor:
    joint.register_hook(lambda gradient: gradient * 2)
    return joint[:0]


@pytest.mark.parametrize("uses", [convolved, kept_alive, written_to, written_to_in_part, not_used, watched])
def test_other_uses(uses: Callable[[int, Tensor, list[Any]], Tensor]) -> None:
    class Fresh(Dense):
        def forward(self, x: Tensor) -> Tensor:
            self.held.clear()
            return super().forward(x)

    check(adapting(nn.BatchNorm2d(5), Fresh(F.silu, uses)).float())


class Program(nn.Module):
    """Concatenations of whatever there is, with any use; most of them grow."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        super().__init__()
        which = st.sampled_from(["grow"] * 5 + ["again", "some", "other way", "change"])
        use = st.sampled_from(["norm"] * 5 + ["relu_", "slice_", "plain", "keep"])
        self.plan = draw(st.lists(st.tuples(which, use, st.integers(0, 5)), min_size=2, max_size=7))
        self.norms = nn.ModuleList(nn.BatchNorm2d(5) for _ in self.plan)

    def forward(self, x: Tensor) -> Tensor:
        pieces, kept, total = [x, x * 0.5], [], torch.zeros(())
        for (which, use, pick), norm in zip(self.plan, self.norms, strict=True):
            chosen = pick % len(pieces)
            if which == "change":
                pieces[chosen] = pieces[chosen] + 0.5
            some = pieces[: 1 + chosen] if which == "some" else pieces
            joint = torch.cat(some[::-1] if which == "other way" else some, 1)
            if use == "keep":
                kept.append(joint)
            elif use == "relu_":
                joint.relu_()
            elif use == "slice_":
                joint[:, 1:7].mul_(0.5)
            elif use == "norm":
                affine = (norm.weight.repeat(len(some)), norm.bias.repeat(len(some)))
                joint = F.silu(F.batch_norm(joint, None, None, *affine, training=True))
            if which == "grow":
                pieces.append(pieces[chosen].sin() + joint[:, :5] * 0.3 + joint[:, -5:] * 0.7)
            else:
                total = total + joint[:, 5 * chosen : 5 * chosen + 5].sum((1, 2, 3), keepdim=True)
            del joint
            if kept and pick == 5:
                kept[0].mul_(0.5)
        out: Tensor = sum((piece.cos() for piece in pieces), start=total)
        return sum((one.sum((1, 2, 3), keepdim=True) for one in kept), start=out)


def test_any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, programs = shared(monkeypatch), 0

    @given(st.data())
    @settings(max_examples=100, deadline=None)
    def check_one(data: st.DataObject) -> None:
        nonlocal programs
        programs += 1
        check(adapting(nn.BatchNorm2d(5), Program(data.draw)).float())

    check_one()
    assert len(seen) > programs


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    net, lean = dense(), Lean(TRICKS)
    for _ in range(2):
        x = images(0).requires_grad_()
        with lean:
            y = net(x * 1).sum()
    first, again = (torch.autograd.grad(y, x, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, again)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_parts_of_a_graph() -> None:
    """Gradients of a few late parameters first, which leaves the rest of the graph as it was."""
    found = []
    for tricks in (list(TRICKS), []):
        net, lean = dense(), Lean(tricks)
        for _ in range(2):
            x = images(0).requires_grad_()
            with lean:
                y = net(x * 1)
        late, early = net[1].norms[2].weight, net[1].norms[0].bias  # type: ignore[index, union-attr]
        loss = y.square().sum()
        found.append(torch.autograd.grad(loss, [late], retain_graph=True))
        found[-1] += torch.autograd.grad(loss, [late, early], retain_graph=True)
        found[-1] += torch.autograd.grad(loss, [early, late, x])
    for one, other in zip(*found, strict=True):
        assert other.norm() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


def test_with_checkpoints_of_the_networks_own() -> None:
    class Checkpointed(Dense):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return made

    check(adapting(nn.BatchNorm2d(5), Checkpointed()).float(), counts=(3,))


def test_a_densenet_keeps_each_piece_once() -> None:
    model = import_torchvision().models.DenseNet(8, (3, 3), 16).requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(True)
    x = torch.rand(2, 3, 64, 64).contiguous(memory_format=torch.channels_last).requires_grad_()
    lean, sizes = Lean(TRICKS), {}

    def bytes_kept() -> int:
        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        sizes.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), lean:
            made = model(x)  # noqa: F841  # what is kept stays as long as this does
        return sum(sizes.values())

    first, second = bytes_kept(), bytes_kept()
    assert second < 0.8 * first < 0.8 * kept(model, x, lean=False)


def test_nothing_stays_behind() -> None:
    """Neither pieces nor memory nor graph, whether there was a backward pass or not."""
    net, lean, gone = dense(), Lean(TRICKS), []
    gc.disable()
    try:
        for is_backward in (False, False, True):
            with lean:
                x = images(0).requires_grad_() * 1
                y = net(x)
                joint = torch.cat([x, x], 1)
            if is_backward:
                y.sum().backward()
            gone += [weakref.ref(x), weakref.ref(y), weakref.ref(joint)]
            del x, y, joint
        assert [held() for held in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_only_what_grows_is_shared() -> None:
    """Blocks that concatenate only once, as those of Inception, are torch's own."""
    lean = Lean(TRICKS)
    for _ in range(3):
        with lean:
            x = images(0).requires_grad_() * 1
            assert joined(torch.cat([x, x * 2], 1)) is None
            assert joined(torch.cat([x * 1, x * 2, x * 3], 1)) is None


@pytest.mark.parametrize("statistics", ["running", "blend"])
def test_statistics_that_are_mixed_with_others(statistics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, found = shared(monkeypatch), []
    for fast in (True, APART, False):
        torch.manual_seed(0)
        model = import_torchvision().models.DenseNet(8, (3, 3), 16, num_classes=5).eval()
        adapter = Adapter(model, "slr", statistics=statistics, optimizer="sgd", fast=fast)
        pixels = torch.rand(3, 4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        found.append([adapter(batch) for batch in pixels])
    assert len(seen) == 2 * 8  # both blocks, from the second step on
    for one, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_other_default_types(default: torch.dtype) -> None:
    """Statistics are in float32 whatever torch makes by default."""
    net, found = dense().eval(), []
    torch.set_default_dtype(default)
    try:
        found = passes(net, list(TRICKS))
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, passes(net, list(TRICKS)), strict=True):
        assert all(torch.equal(part, other[name]) for name, part in one.items())


def test_the_channels_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, lean, cat = shared(monkeypatch), Lean(TRICKS), torch.cat
    named: Any = cat
    for _ in range(2):
        with lean:
            x = images(0).requires_grad_() * 1
            first = F.silu(F.batch_norm(named([x, x], axis=1), None, None, training=True))
            more = [x, x, first.sin()]
            both = named(tensors=more, axis=1)
            last = named([x, x], axis=-1)
        assert torch.equal(both, cat(more, 1))
        assert torch.equal(last, cat([x, x], 3))
    assert seen == [10, 20]


def test_what_the_network_keeps_is_its_own() -> None:
    """Across passes, and for whoever writes to it behind the pass."""
    found = []
    for tricks in (list(TRICKS), APART):
        net, lean = dense(), Lean(tricks)
        held: list[Tensor] = []

        def keep(module: nn.Module, args: tuple[Tensor], held: list[Tensor] = held) -> None:
            held.append(args[0])

        net[1].norms[-1].register_forward_pre_hook(keep)  # type: ignore[index, union-attr]
        for seed in range(3):
            with lean:
                y = net(images(seed).requires_grad_())
                (held[0] * 1).sum()
            found.append([y, *torch.autograd.grad(y.square().sum(), [net[0].weight])])  # type: ignore[list-item]
    for one, other in zip(found[:3], found[3:], strict=True):
        for part, right in zip(one, other, strict=True):
            torch.testing.assert_close(part, right, rtol=1e-3, atol=1e-3 * right.abs().max().item())
    storages = {kept.untyped_storage().data_ptr() for kept in held}
    assert len(storages) == 3


class Scribbling(nn.Module):
    """Writes to a concatenation."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5)


def test_scripts_that_write_have_memory_of_their_own() -> None:
    """What a script calls is not seen, so that networks with one do not share memory."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(Scribbling())
    block = Dense(uses=lambda number, joint, held: (torch.zeros(1), script(joint))[0])
    block.script = script
    net = nn.Sequential(nn.BatchNorm2d(5), block, nn.Flatten(), nn.Linear(17 * 6 * 7, 4))
    fast, plain = (Adapter(net, "tent", fast=fast, guard=False) for fast in (True, False))
    for seed in range(3):
        torch.testing.assert_close(fast(images(seed)), plain(images(seed)), rtol=1e-4, atol=1e-4)
