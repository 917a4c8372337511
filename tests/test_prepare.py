"""What adapts and what does not, for every family of norms, for known and unknown networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from acclimate.errors import ModelError, OptionError
from acclimate.models.vision import import_timm, import_torchvision
from acclimate.prepare import model_info, normalization_mismatch, prepare
from networks import images, resnet, same, state

timm = import_timm()
models = import_torchvision().models


class Rms(nn.Module):
    """A norm that no library knows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x


class MyRmsNorm(Rms):
    pass


class GammaNorm(nn.Module):
    """A norm whose parameters have other names and more dimensions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma + self.beta


def around(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))


FAMILIES = {
    "batch 2d": nn.BatchNorm2d(8),
    "sync batch": nn.SyncBatchNorm(8),
    "group": nn.GroupNorm(2, 8),
    "layer": nn.LayerNorm([8, 6, 6]),
    "instance": nn.InstanceNorm2d(8, affine=True),
    "instance tracked": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "rms": nn.RMSNorm([6]),
    "timm batch with activation": timm.layers.BatchNormAct2d(8),
    "timm group with activation": timm.layers.GroupNormAct(8, 2),
    "timm layer 2d": timm.layers.LayerNorm2d(8),
    "timm rms 2d": timm.layers.RmsNorm2d(8),
    "timm evo": timm.layers.EvoNorm2dS0(8, groups=2),
    "timm filter response": timm.layers.FilterResponseNormTlu2d(8),
    "timm simple": timm.layers.SimpleNorm2d(8),
    "own": MyRmsNorm(8),
    "own with other names": GammaNorm(8),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_affine_parameters_of_every_family_adapt(family: str) -> None:
    net = around(FAMILIES[family])
    net(images(2, size=8))
    prepared = prepare(net, freeze="none")
    expected = [
        f"1.{name}"
        for name, _ in FAMILIES[family].named_parameters()
        if name in ("weight", "bias", "gamma", "beta")
    ]
    assert list(prepared.parameters) == expected != []
    assert all(p.requires_grad for p in prepared.parameters.values())
    others = [p for n, p in prepared.model.named_parameters() if n not in prepared.parameters]
    assert not any(p.requires_grad for p in others)


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (4, 8)), (nn.BatchNorm3d, (4, 8, 2, 2, 2))])
def test_batch_norms_of_other_dimensions(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    prepared = prepare(
        nn.Sequential(kind(8), nn.Flatten(), nn.Linear(8 if len(shape) == 2 else 64, 3)), freeze="none"
    )
    assert prepared.names == (
        "0.weight",
        "0.bias",
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    )
    with prepared.statistics.updating():
        prepared.model(torch.randn(shape))


def test_the_users_model_is_never_touched_and_unchanged_weights_are_shared() -> None:
    model = resnet().train()
    before = state(model)
    prepared = prepare(model)
    prepared.parameters["bn1.weight"].data.add_(1)
    with prepared.statistics.updating():
        prepared.model(images())
    assert same(before, state(model))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert prepared.model.conv1.weight.data_ptr() == model.conv1.weight.data_ptr()
    assert prepared.model.bn1.weight.data_ptr() != model.bn1.weight.data_ptr()


def test_dropout_and_stochastic_depth_are_off() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Dropout(0.5),
        timm.layers.DropPath(0.5),
        nn.Flatten(),
        nn.Linear(288, 3),
    ).train()
    prepared = prepare(net, freeze="none")
    x = images(8, size=8)
    assert torch.equal(prepared.model(x), prepared.model(x))
    assert [name for name, module in prepared.model.named_modules() if module.training] == ["1"]


def test_a_dropout_inside_a_norm_is_off_too() -> None:
    norm = timm.layers.BatchNormAct2d(8, drop_layer=nn.Dropout)
    prepared = prepare(nn.Sequential(nn.Conv2d(3, 8, 3), norm).train(), freeze="none")
    x = images(8, size=8)
    assert torch.equal(prepared.model(x), prepared.model(x))
    assert [name for name, module in prepared.model.named_modules() if module.training] == ["1"]


def test_a_parameter_of_two_norms_adapts_once_and_is_frozen_if_one_of_them_is() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    net[2].weight = net[0].weight
    assert list(prepare(net, freeze="none").parameters) == ["0.weight", "0.bias", "2.bias"]
    assert list(prepare(net, freeze="2").parameters) == ["0.bias"]


def test_attributes_that_deepcopy_refuses_are_copied_all_the_same() -> None:
    net = resnet()
    net.cache = {"bias": net.linear.weight * 2}
    net.recent = [net.linear.weight * 3]
    prepared = prepare(net)
    assert not prepared.model.cache["bias"].requires_grad
    assert torch.equal(prepared.model.recent[0], net.recent[0])


# Freezing -------------------------------------------------------------------------------------------


def frozen(model: nn.Module, **options: object) -> tuple[str, ...]:
    return prepare(model, **options).frozen  # type: ignore[arg-type]


def test_the_papers_frozen_tops() -> None:
    for name in ("resnet18", "resnet50", "resnet152", "resnext50_32x4d"):
        net = getattr(models, name)()
        norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
        assert frozen(net) == tuple(n for n in norms if n.startswith("layer4."))
    dense = models.densenet121()
    assert {n.split(".")[1] for n in frozen(dense)} == {"denseblock4", "norm5"}
    assert {n.split(".")[1] for n in frozen(models.mobilenet_v2())} == {"16", "17", "18"}


def test_norms_above_the_known_top_are_frozen_too() -> None:
    backbone = models.resnet18()
    backbone.fc = nn.Identity()
    shot = nn.Sequential(backbone, nn.Linear(512, 16), nn.BatchNorm1d(16), nn.Linear(16, 5))
    found = frozen(shot)
    assert found[-1] == "2"
    assert {n.split(".")[1] for n in found[:-1]} == {"layer4"}


@pytest.mark.parametrize(
    ("build", "stage"),
    [
        (lambda: resnet(), "layer3"),
        (lambda: timm.create_model("vit_tiny_patch16_224", img_size=32), "blocks.11"),
        (lambda: timm.create_model("convnext_atto"), "stages.3"),
        (lambda: timm.create_model("efficientnet_b0"), "blocks.6"),
        (lambda: timm.create_model("resnet26"), "layer4"),
        (lambda: models.efficientnet_b0(), "features.7"),
        (lambda: models.convnext_tiny(), "features.7"),
        (lambda: models.swin_t(), "features.7"),
        (lambda: models.regnet_y_400mf(), "trunk_output.block4"),
        (lambda: models.shufflenet_v2_x0_5(), "stage4"),
        (lambda: models.mobilenet_v3_small(), "features.11"),
        (lambda: nn.Sequential(nn.Identity(), models.densenet121()), "1.features.denseblock4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_last_stage_of_other_networks(build: object, stage: str) -> None:
    net = build()  # type: ignore[operator]
    norms = list(prepare(net, freeze="none").parameters)
    prepared = prepare(net)
    assert prepared.frozen[0].startswith(stage)
    # everything from the stage on, and nothing below it
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in norms))
    assert tuple(layers[layers.index(prepared.frozen[0]) :]) == prepared.frozen
    assert not any(name.startswith(stage) for name in prepared.parameters)
    assert any(f"from {stage!r} on" in note for note in prepared.notes)


def test_a_flat_network_freezes_its_last_quarter() -> None:
    vgg = models.vgg16_bn()
    assert frozen(vgg) == ("features.35", "features.38", "features.41")


def test_a_network_with_one_norm_freezes_nothing_and_says_so() -> None:
    prepared = prepare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    assert prepared.frozen == ()
    assert "grow without bound" in prepared.cautions[0]


def test_freezing_by_pattern() -> None:
    assert {n.split(".")[0] for n in frozen(resnet(), freeze="layer2")} == {"layer2"}
    assert {n.split(".")[0] for n in frozen(resnet(), freeze=["layer[12]", "bn1"])} == {
        "layer1",
        "layer2",
        "bn1",
    }
    assert frozen(resnet(), freeze="none") == ()
    assert frozen(resnet(), freeze="auto", freeze_top=False) == ()
    assert frozen(resnet(), freeze="top", freeze_top=False) == frozen(resnet())


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("layer5", "unknown freeze pattern 'layer5': did you mean 'layer"),
        ("ayer", "unknown freeze pattern"),
        ("linear", "nothing would adapt"),
        ("*", "leaves nothing to adapt"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(freeze: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prepare(resnet(), freeze=freeze)


# Affines where there are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(8, affine=False),
        nn.InstanceNorm2d(8),
        nn.GroupNorm(2, 8, affine=False),
        nn.LayerNorm([8, 6, 6], elementwise_affine=False),
        nn.RMSNorm([6], elementwise_affine=False),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_without_affine_get_an_identity(norm: nn.Module) -> None:
    net = around(norm).eval()
    x = images(4, size=8)
    before = net(x)
    prepared = prepare(net, freeze="none", statistics="source")
    assert prepared.inserted == ("1",)
    assert "1.weight" in prepared.parameters
    torch.testing.assert_close(prepared.model(x), before, rtol=1e-6, atol=1e-6)
    assert not dict(norm.named_parameters())


def plain_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 12),
        nn.Tanh(),
        nn.Linear(12, 5),
    )


def test_a_network_without_norms_gets_affines_that_start_as_the_identity() -> None:
    net = plain_network()
    x = images(4, size=8)
    prepared = prepare(net, freeze="none")
    assert prepared.inserted == ("0", "2.0", "2.2", "5")
    assert torch.equal(prepared.model(x), net(x))
    assert not hasattr(net[0], "acclimate_affine")
    prepared.model(x).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in prepared.parameters.values())


# Preflight ------------------------------------------------------------------------------------------


def test_the_preflight_explains_itself() -> None:
    notes = prepare(resnet()).notes
    assert notes == (
        "found 7 BatchNorm2d",
        "224 values in 10 parameters adapt; the top is frozen from 'layer3' on",
        "statistics of 7 layers: by the size of the first batch",
    )
    assert "statistics of 7 layers: stream" in prepare(resnet(), statistics="stream").notes
    assert "identity affines were added to '0', '2.0', '2.2', '5'" in " ".join(
        prepare(plain_network(), freeze="none").notes
    )


def test_a_network_in_which_nothing_adapts_is_a_caution() -> None:
    layer_norms = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    assert "nothing of Sequential adapts" in prepare(layer_norms, parameters=False).cautions[0]


def test_half_precision_becomes_float32_and_is_noted() -> None:
    prepared = prepare(resnet().bfloat16())
    assert "bfloat16" in prepared.notes[-1]
    assert prepared.cautions == ()
    assert {p.dtype for p in prepared.model.parameters()} == {torch.float32}
    assert set(prepared.types.values()) == {prepared.main_type} == {torch.bfloat16}


def test_metadata_of_timm_networks_are_compared_with_the_normalisation() -> None:
    net = timm.create_model("vit_tiny_patch16_224", img_size=32)
    info = model_info(net)
    assert info is not None
    assert info.mean == (0.5, 0.5, 0.5)
    assert normalization_mismatch(info, (0.5,) * 3, (0.5,) * 3) is None
    sentence = normalization_mismatch(info, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert sentence is not None
    assert "(0.5, 0.5, 0.5)" in sentence
    assert model_info(resnet()) is None
    assert normalization_mismatch(None, (0,), (1,)) is None


def test_networks_that_cannot_be_adapted_are_refused() -> None:
    with pytest.raises(ModelError, match=r"torch\.nn\.Module, got function"):
        prepare(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no hidden layer"):
        prepare(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    with pytest.raises(ModelError, match=r"not initialised yet: .0\.weight"):
        prepare(nn.Sequential(nn.LazyConv2d(4, 3), nn.BatchNorm2d(4)))
    with pytest.raises(ModelError, match="meta device"):
        prepare(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to("meta"))

    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(3)
            self.stream = (i for i in range(3))

    with pytest.raises(ModelError, match="Stubborn cannot be copied"):
        prepare(Stubborn())


def test_scripted_modules_are_refused() -> None:
    class Scripted(torch.jit.ScriptModule):
        pass

    with pytest.raises(ModelError, match="scripted"):
        prepare(Scripted())


def test_wrappers_are_taken_off() -> None:
    for wrapped in (nn.DataParallel(resnet()), torch.compile(resnet(), backend="eager")):
        assert prepare(wrapped).names == prepare(resnet()).names


def test_weight_norm_of_old_can_be_copied() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        head = nn.utils.weight_norm(nn.Linear(8, 5))
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    x = images(4, size=8)
    net(x)
    prepared = prepare(net, freeze="none")
    net.eval()
    with prepared.statistics.detached():
        assert torch.equal(prepared.model(x), net(x))
