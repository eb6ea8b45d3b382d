"""Models that generate images by transposed convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

_MOST_CHANNELS = 512


class ImageDecoder(nn.Module):
    """Linear layer to a small image, doubled by ``layers`` transposed convolutions.

    Shapes: (batch, latent) → (batch, image_channels, image_size, image_size), values from -1 to 1.
    """

    def __init__(
        self,
        *,
        latent: int,
        image_size: int,
        image_channels: int,
        layers: int,
        width: int,
        norm: str,
        activation: str,
    ) -> None:
        super().__init__()
        sizes = [min(width * 2**level, _MOST_CHANNELS) for level in range(layers)]
        self.side = image_size // 2**layers
        self.channels = sizes[-1]
        self.start = nn.Linear(latent, self.channels * self.side * self.side)
        body: list[nn.Module] = []
        before = self.channels
        for after in reversed(sizes[:-1]):
            body += [
                nn.ConvTranspose2d(before, after, 4, stride=2, padding=1),
                blocks.norm2d(norm, after),
                blocks.activation(activation),
            ]
            before = after
        self.body = nn.Sequential(*body, nn.ConvTranspose2d(before, image_channels, 4, stride=2, padding=1))
        self.squash = nn.Tanh()

    def forward(self, z: Tensor) -> Tensor:
        """Images."""
        x = self.start(z).unflatten(1, (self.channels, self.side, self.side))
        images: Tensor = self.squash(self.body(x))
        return images


class Autoencoder(nn.Module):
    """``layers`` strided convolutions to a latent vector, and a decoder that mirrors them.

    Shapes: (batch, image_channels, image_size, image_size) → the same.
    """

    def __init__(
        self,
        *,
        image_size: int,
        image_channels: int,
        layers: int,
        width: int,
        latent: int,
        norm: str,
        activation: str,
    ) -> None:
        super().__init__()
        body: list[nn.Module] = []
        before = image_channels
        for level in range(layers):
            after = min(width * 2**level, _MOST_CHANNELS)
            body += [
                nn.Conv2d(before, after, 4, stride=2, padding=1),
                blocks.norm2d(norm, after),
                blocks.activation(activation),
            ]
            before = after
        side = image_size // 2**layers
        self.encoder = nn.Sequential(*body, nn.Flatten(), nn.Linear(before * side * side, latent))
        self.decoder = ImageDecoder(
            latent=latent,
            image_size=image_size,
            image_channels=image_channels,
            layers=layers,
            width=width,
            norm=norm,
            activation=activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Reconstructed images."""
        images: Tensor = self.decoder(self.encoder(x))
        return images
