"""Convolutional models on images and sequences."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, Setting, Settings, Target, choice, flag, integer

_IMAGE_TARGET = Target("float", common.image_shape, classes=None)


def _cnn(name: str, description: str, *, size: int, channels: int, layers: int, width: int, norm: str) -> ModelEntry:
    return ModelEntry(
        name=name,
        family="cnn",
        description=description,
        builder="trainpilot.zoo.models.cnn:CNN",
        inputs=common.IMAGE_INPUT,
        has_conv=True,
        settings={
            **common.image(size, channels),
            "layers": integer(layers, 2, 64, "convolutions plus the final linear layer"),
            "width": integer(width, 4, 512, "channels of the first convolution; doubled at each pooling, up to 512"),
            "kernel": choice(3, (3, 5, 7), "height and width of the kernels"),
            "norm": common.norm(norm),
            "activation": common.activation(),
            "pooling": choice("max", ("max", "average", "stride"), "how the image gets smaller"),
            "head": choice("flatten", ("flatten", "global"), "what the linear layer sees: all positions or their mean"),
            "dropout": common.dropout(),
            "classes": common.classes(),
        },
    )


_VGG = ModelEntry(
    name="vgg",
    family="vgg",
    description="VGG-like: stages of 3x3 convolutions and three large linear layers",
    builder="trainpilot.zoo.models.vgg:VGG",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    settings={
        **common.image(32),
        "layers": choice(11, (8, 11, 13, 16, 19), "convolutions plus the three linear layers"),
        "width": integer(64, 8, 256, "channels of the first stage; doubled in the next three"),
        "hidden": integer(512, 16, 8192, "units of the two hidden linear layers"),
        "norm": common.norm("none"),
        "activation": common.activation(),
        "dropout": common.dropout(0.5),
        "classes": common.classes(),
    },
)


def _resnet_settings(layers: Setting, width: int) -> dict[str, Setting]:
    return {
        **common.image(32),
        "layers": layers,
        "width": integer(width, 8, 256, "channels of the first stage; doubled in each further one"),
        "stem": choice("small", ("small", "imagenet"), "3x3 convolution, or 7x7 with stride and pooling"),
        "norm": common.norm(),
        "activation": common.activation(),
        "classes": common.classes(),
    }


_LAYERS_HELP = "weight layers of the main path: stem, block convolutions and linear layer"
_RESNET = ModelEntry(
    name="resnet",
    family="resnet",
    description="Residual network of basic blocks (two 3x3 convolutions)",
    builder="trainpilot.zoo.models.resnet:ResNet",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    settings=_resnet_settings(choice(18, (8, 10, 14, 18, 20, 34, 44, 56, 110), _LAYERS_HELP), 64),
)


def _groups_contradiction(settings: Settings) -> str | None:
    width, groups = settings["width"], settings["groups"]
    return f"width {width} is not divisible by {groups} groups" if width % groups else None


_RESNET_BOTTLENECK = ModelEntry(
    name="resnet_bottleneck",
    family="resnet",
    description="Residual network of bottleneck blocks (1x1, 3x3, 1x1), grouped for ResNeXt",
    builder="trainpilot.zoo.models.resnet:ResNet",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_groups_contradiction,
    settings={
        **_resnet_settings(choice(50, (14, 26, 38, 50, 101, 152), _LAYERS_HELP), 64),
        "groups": integer(1, 1, 64, "groups of the 3x3 convolutions; must divide the width"),
    },
)


def _stages_contradiction(settings: Settings) -> str | None:
    size, stages = settings["image_size"], settings["stages"]
    if size < 2 ** (stages - 1):
        return f"image_size {size} cannot be halved {stages - 1} times (stages)"
    return None


_DENSENET = ModelEntry(
    name="densenet",
    family="densenet",
    description="Densely connected convolutions: each layer sees all earlier ones of its stage",
    builder="trainpilot.zoo.models.densenet:DenseNet",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_stages_contradiction,
    settings={
        **common.image(32),
        "stages": integer(3, 1, 4, "stages; the image is halved between them"),
        "layers": integer(6, 1, 48, "dense layers of each stage, two convolutions each"),
        "growth": integer(12, 4, 64, "channels that each layer adds"),
        "norm": common.norm(),
        "classes": common.classes(),
    },
)


def _mobilenet_contradiction(settings: Settings) -> str | None:
    if settings["stages"] > settings["layers"]:
        return f"{settings['stages']} stages need at least as many layers, got {settings['layers']}"
    return None


_MOBILENET = ModelEntry(
    name="mobilenet",
    family="mobilenet",
    description="Depthwise-separable convolutions, plain or as inverted residuals",
    builder="trainpilot.zoo.models.mobilenet:MobileNet",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_mobilenet_contradiction,
    settings={
        **common.image(32),
        "layers": integer(8, 1, 64, "blocks between the stem and the last convolution"),
        "stages": integer(4, 1, 6, "groups of blocks; the image is halved and the channels doubled between them"),
        "width": integer(32, 8, 256, "channels of the stem"),
        "block": choice("separable", ("separable", "inverted"), "plain separable convolution or inverted residual"),
        "expansion": integer(4, 1, 8, "how far an inverted residual widens its input"),
        "kernel": choice(3, (3, 5, 7), "height and width of the depthwise kernels"),
        "squeeze_excite": flag(False, "each block scales its channels by a gate"),
        "stem_stride": choice(1, (1, 2), "stride of the first convolution"),
        "norm": common.norm(),
        "activation": common.activation(),
        "dropout": common.dropout(),
        "classes": common.classes(),
    },
)


def _convnext_contradiction(settings: Settings) -> str | None:
    size, least = settings["image_size"], settings["patch"] * 2 ** (settings["stages"] - 1)
    return f"image_size {size} is too small: patch and stages need at least {least} pixels" if size < least else None


_CONVNEXT = ModelEntry(
    name="convnext",
    family="convnext",
    description="ConvNeXt-like: depthwise 7x7 convolution, layer norm, two linear layers with GELU",
    builder="trainpilot.zoo.models.convnext:ConvNeXt",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_convnext_contradiction,
    settings={
        **common.image(32),
        "patch": choice(2, (1, 2, 4), "kernel and stride of the stem"),
        "stages": integer(3, 1, 4, "stages; channels double and the image is halved between them"),
        "layers": integer(2, 1, 27, "blocks of each stage"),
        "width": integer(48, 8, 256, "channels of the first stage"),
        "kernel": choice(7, (3, 5, 7), "height and width of the depthwise kernels"),
        "expansion": integer(4, 1, 8, "how far the linear layers of a block widen"),
        "activation": common.activation("gelu"),
        "classes": common.classes(),
    },
)

_UNET = ModelEntry(
    name="unet",
    family="unet",
    description="U-Net: a class for every pixel",
    builder="trainpilot.zoo.models.unet:UNet",
    inputs=common.IMAGE_INPUT,
    target=Target("class_per_position", lambda s: (s["image_size"], s["image_size"])),
    has_conv=True,
    contradiction=common.halving_contradiction,
    settings={
        **common.image(64),
        "layers": integer(3, 1, 5, "halvings of the image on the way down, and doublings on the way up"),
        "width": integer(16, 4, 128, "channels at full size; doubled at each halving"),
        "norm": common.norm(),
        "activation": common.activation(),
        "upsampling": choice("transpose", ("transpose", "nearest", "bilinear"), "how the image is doubled"),
        "classes": common.classes(4),
    },
)


def _image_decoder_settings(size: int) -> dict[str, Setting]:
    return {
        **common.image(size, 3),
        "layers": integer(3, 1, 6, "convolutions that halve or double the image, counted once"),
        "width": integer(32, 4, 256, "channels at the largest size; doubled at each halving, up to 512"),
        "latent": integer(64, 2, 4096, "size of the latent vector"),
        "norm": common.norm(),
        "activation": common.activation(),
    }


_AUTOENCODER = ModelEntry(
    name="autoencoder",
    family="autoencoder",
    description="Strided convolutions to a latent vector and transposed convolutions back",
    builder="trainpilot.zoo.models.autoencoder:Autoencoder",
    inputs=common.IMAGE_INPUT,
    target=_IMAGE_TARGET,
    has_conv=True,
    contradiction=common.halving_contradiction,
    settings=_image_decoder_settings(32),
)

_GENERATOR = ModelEntry(
    name="generator",
    family="autoencoder",
    description="Images from latent vectors by transposed convolutions (DCGAN-like)",
    builder="trainpilot.zoo.models.autoencoder:ImageDecoder",
    inputs=(Input(lambda s: (s["latent"],)),),
    target=_IMAGE_TARGET,
    has_conv=True,
    contradiction=common.halving_contradiction,
    settings=_image_decoder_settings(32),
)

_TCN = ModelEntry(
    name="tcn",
    family="tcn",
    description="Temporal convolutional network: dilated one-dimensional convolutions with residuals",
    builder="trainpilot.zoo.models.tcn:TCN",
    inputs=common.SERIES_INPUT,
    has_conv=True,
    settings={
        **common.series(128, 16),
        "layers": integer(4, 1, 32, "residual blocks, two convolutions each"),
        "width": integer(64, 4, 1024, "channels of each block"),
        "kernel": choice(3, (3, 5, 7, 9), "steps that a kernel sees"),
        "norm": choice("batch", ("none", "batch"), "normalisation after each convolution"),
        "activation": common.activation(),
        "dropout": common.dropout(),
        "classes": common.classes(),
    },
)

ENTRIES = (
    _cnn("small_cnn", "Small plain CNN for grey images", size=28, channels=1, layers=3, width=16, norm="none"),
    _cnn("cnn", "Plain CNN with batch normalisation", size=32, channels=3, layers=7, width=32, norm="batch"),
    _VGG,
    _RESNET,
    _RESNET_BOTTLENECK,
    _DENSENET,
    _MOBILENET,
    _CONVNEXT,
    _UNET,
    _AUTOENCODER,
    _GENERATOR,
    _TCN,
)
