"""Small networks of the kinds of blocks that hybrids of convolution and attention, detectors and upscalers have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.kits.networks.any_module import Tail, conv


class SelfAttention(nn.Module):
    """Attention between the tokens of `N,L,C`, as one call or as products around a softmax; with a bias where `tokens` > 0."""

    def __init__(self, channels: int, heads: int, tokens: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(torch.randn(1, heads, tokens, tokens)) if tokens else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, length, channels = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        bias: Tensor | None = self.bias
        if mask is not None:
            windows = mask.shape[0]
            mask = mask.view(1, windows, 1, length, length).expand(n // windows, -1, self.heads, -1, -1)
            assert bias is not None
            bias = bias + mask.reshape(-1, self.heads, length, length)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = (q @ k.transpose(-2, -1)) * 0.3
            y = torch.softmax(scores if bias is None else scores + bias, dim=-1) @ v
        z: Tensor = self.proj(y.transpose(1, 2).reshape(n, length, channels))
        return z


class Transformer(nn.Module):
    """Attention and two dense layers, each with a norm before, a layer scale and a shortcut."""

    def __init__(self, channels: int, heads: int, tokens: int, *, fused: bool = True) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.attention = SelfAttention(channels, heads, tokens, fused=fused)
        self.dense = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.0, channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.gamma * self.attention(self.norms[0](x), mask)
        y: Tensor = x + self.gamma * self.dense(self.norms[1](x))
        return y


class VisionTransformer(nn.Module):
    """Patches, a class token, position embeddings; `forward` has a parameter that nobody gives."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token, self.position = (nn.Parameter(torch.randn(1, length, 32)) for length in (1, 17))
        self.layers = nn.ModuleList(Transformer(32, 4, 17, fused=fused) for _ in range(2))
        self.norm, self.classes = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x, mask)
        y: Tensor = self.classes(self.norm(x)[:, 0])
        return y


class Windows(nn.Module):
    """A transformer on windows of a map `N,H,W,C`; shifted ones have a mask that differs between windows."""

    def __init__(self, channels: int, heads: int, side: int, *, shifted: bool) -> None:
        super().__init__()
        self.side = side
        self.layer = Transformer(channels, heads, side * side)
        mask = torch.zeros(4, side * side, side * side)
        mask[1:, :, ::2] = -2.0
        self.register_buffer("mask", mask if shifted else None)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        s = self.side
        y = x.view(n, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        y = self.layer(y, self.mask)
        y = y.view(-1, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, c)
        z: Tensor = (x + y).permute(0, 3, 1, 2)
        return z


class Patches(nn.Module):
    """MobileViT: a transformer between the pixels of equal place in 2x2 patches, by reshapes that mix batch and channels."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.local, self.enter = conv(channels, channels), nn.Conv2d(channels, wide, 1, bias=False)
        self.layers = nn.Sequential(Transformer(wide, 4, 0), Transformer(wide, 4, 0, fused=False))
        self.leave, self.fuse = conv(wide, channels, 1), conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(self.local(x))
        n, c, h, w = y.shape
        y = y.reshape(n * c * h // 2, 2, w // 2, 2).transpose(1, 2).reshape(n, c, h * w // 4, 4)
        y = self.layers(y.transpose(1, 3).reshape(n * 4, h * w // 4, c))
        y = y.contiguous().view(n, 4, h * w // 4, c).transpose(1, 3).reshape(n * c * h // 2, w // 2, 2, 2)
        y = y.transpose(1, 2).reshape(n, c, h, w)
        z: Tensor = self.fuse(torch.cat([x, self.leave(y)], 1))
        return z


class SharedKeys(nn.Module):
    """MobileNetV4: all heads read the same keys and values, of a smaller map."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, width = heads, channels // heads
        self.query = nn.Conv2d(channels, channels, 1, bias=False)
        self.smaller = nn.Conv2d(channels, channels, 3, 2, 1, groups=channels, bias=False)
        self.key, self.value = (nn.Conv2d(channels, width, 1, bias=False) for _ in range(2))
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q = self.query(x).reshape(n, self.heads, c // self.heads, h * w).transpose(-1, -2)
        low = self.smaller(x)
        k, v = (layer(low).flatten(2).transpose(1, 2).unsqueeze(1) for layer in (self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v)
        z: Tensor = x + self.proj(y.transpose(1, 2).reshape(n, h, w, c).permute(0, 3, 1, 2))
        return z


class ResponseNorm(nn.Module):
    """ConvNeXt V2: a block whose global response normalisation divides by the mean over channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.gain, self.shift = (nn.Parameter(torch.linspace(0.1, 0.9, 2 * channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        energy = y.norm(p=2, dim=(1, 2), keepdim=True)
        response = energy / (energy.mean(dim=-1, keepdim=True) + 1e-6)
        y = y + torch.addcmul(self.shift, self.gain, y * response)
        z: Tensor = x + self.narrow(y).permute(0, 3, 1, 2)
        return z


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = conv(channels, channels), conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.second(self.first(x))
        return y


class Divided(nn.Module):
    """C2f: half of the channels go through bottlenecks, and all that these write is concatenated."""

    def __init__(self, channels: int, out: int, times: int = 2) -> None:
        super().__init__()
        self.enter, self.leave = conv(channels, out, 1), conv((2 + times) * out // 2, out, 1)
        self.steps = nn.ModuleList(Bottleneck(out // 2) for _ in range(times))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.enter(x).chunk(2, 1)
        parts = [first, second]
        for step in self.steps:
            parts.append(step(parts[-1]))
        y: Tensor = self.leave(torch.cat(parts, 1))
        return y


class Pyramid(nn.Module):
    """SPPF: pools of pools, concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = conv(channels, channels // 2, 1), conv(2 * channels, channels, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        parts += [self.pool(parts[-1])]
        parts += [self.pool(parts[-1])]
        parts += [self.pool(parts[-1])]
        y: Tensor = self.leave(torch.cat(parts, 1))
        return y


class PositionedAttention(nn.Module):
    """YOLO11's attention: a convolution makes queries, keys and wider values head by head; a depthwise one positions."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.wide = heads, channels // heads
        self.narrow = self.wide // 2
        self.qkv, self.proj = conv(channels, 2 * channels, 1), conv(channels, channels, 1)
        self.position = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.dense = nn.Sequential(conv(channels, 2 * channels, 1), conv(2 * channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = self.qkv(x).view(n, self.heads, 2 * self.wide, h * w)
        q, k, v = parts.split([self.narrow, self.narrow, self.wide], dim=2)
        scores = ((q * self.narrow**-0.5).transpose(-2, -1) @ k).softmax(dim=-1)
        y = (v @ scores.transpose(-2, -1)).view(n, c, h, w) + self.position(v.reshape(n, c, h, w))
        x = x + self.proj(y)
        z: Tensor = x + self.dense(x)
        return z


class PartlyAttended(nn.Module):
    """YOLO11's C2PSA: half of a convolution's channels pass attention, and both halves are concatenated."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.enter, self.leave = conv(channels, channels, 1), conv(channels, channels, 1)
        self.attention = PositionedAttention(channels // 2, heads)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.enter(x).chunk(2, 1)
        y: Tensor = self.leave(torch.cat([first, self.attention(second)], 1))
        return y


class Cascade(nn.Module):
    """EdgeNeXt's cascade: depthwise convolutions of parts, each added to the next one; the last part is smaller."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        steps = range(-(-channels // width) - 1)
        self.steps = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in steps)
        self.dense = nn.Sequential(conv(channels, 2 * channels, 1), nn.Conv2d(2 * channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        *parts, rest = torch.split(x, self.width, 1)
        done: list[Tensor] = []
        for part, step in zip(parts, self.steps, strict=True):
            done.append(step(part + done[-1] if done else part))
        y: Tensor = x + self.dense(torch.cat([*done, rest], 1))
        return y


class Yolo(nn.Module):
    """A backbone, a neck that goes up and down again, and a decoupled head that decodes distributions of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, stride=2), conv(8, 16, stride=2), Divided(16, 16, 1))
        self.down = nn.ModuleList([conv(16, 24, stride=2), conv(24, 32, stride=2)])
        self.stages = nn.ModuleList([Divided(24, 24), nn.Sequential(Divided(32, 32, 1), Pyramid(32))])
        self.neck = nn.ModuleList([Divided(56, 24, 1), Divided(40, 16, 1), Divided(40, 24, 1), Divided(56, 32, 1)])
        self.up = nn.Upsample(scale_factor=2.0)
        self.again = nn.ModuleList([conv(16, 16, stride=2), conv(24, 24, stride=2)])
        self.boxes = nn.ModuleList(nn.Sequential(conv(c, 8), nn.Conv2d(8, 16, 1)) for c in (16, 24, 32))
        self.classes = nn.ModuleList(nn.Sequential(conv(c, 8), nn.Conv2d(8, 3, 1)) for c in (16, 24, 32))
        self.register_buffer("bins", torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        low = self.stem(x)
        middle = self.stages[0](self.down[0](low))
        high = self.stages[1](self.down[1](middle))
        middle = self.neck[0](torch.cat([self.up(high), middle], 1))
        low = self.neck[1](torch.cat([self.up(middle), low], 1))
        middle = self.neck[2](torch.cat([self.again[0](low), middle], 1))
        high = self.neck[3](torch.cat([self.again[1](middle), high], 1))
        found = []
        for level, box, kind in zip((low, middle, high), self.boxes, self.classes, strict=True):
            found.append(torch.cat([box(level), kind(level)], 1).flatten(2))
        boxes, scores = torch.split(torch.cat(found, 2), [16, 3], 1)
        n, _, count = boxes.shape
        distances = (boxes.view(n, 4, 4, count).softmax(2) * self.bins[:, None]).sum(2)
        return torch.cat([distances, scores.sigmoid()], 1)


class Upscaler(nn.Module):
    """Super-resolution: a long shortcut, PReLU, a pixel shuffle and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.PReLU(16))
        self.body = nn.Sequential(Bottleneck(16), Bottleneck(16), nn.Conv2d(16, 16, 3, padding=1))
        self.up = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.again = nn.Sequential(nn.ConvTranspose2d(8, 12, 4, 2, 1), nn.BatchNorm2d(12), nn.PReLU(12))
        self.leave = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y: Tensor = self.leave(self.again(self.up(x + self.body(x))))
        return y


def windows() -> nn.Module:
    blocks = (Windows(16, 2, 4, shifted=False), Windows(16, 4, 4, shifted=True))
    return Tail(nn.Conv2d(3, 16, 4, 4), *blocks, nn.Conv2d(16, 24, 2, 2), channels=24)


def patches() -> nn.Module:
    return Tail(conv(3, 16, stride=4), Patches(16, 24), conv(16, 24, stride=2), channels=24)


def shared_keys() -> nn.Module:
    return Tail(conv(3, 16, stride=4), SharedKeys(16, 4), SharedKeys(16, 2), conv(16, 24, stride=2), channels=24)


def response_norm() -> nn.Module:
    return Tail(nn.Conv2d(3, 16, 4, 4), ResponseNorm(16), ResponseNorm(16), nn.Conv2d(16, 24, 2, 2), channels=24)


def partly_attended() -> nn.Module:
    return Tail(conv(3, 32, stride=4), PartlyAttended(32, 4), conv(32, 24, stride=2), channels=24)


def cascade() -> nn.Module:
    return Tail(conv(3, 16, stride=2), conv(16, 22, stride=2), Cascade(22, 8), conv(22, 24, stride=2), channels=24)


MODERN: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: VisionTransformer(fused=True),
    "transformer in products": lambda: VisionTransformer(fused=False),
    "windows": windows,
    "patches": patches,
    "shared keys": shared_keys,
    "response norm": response_norm,
    "yolo": Yolo,
    "partly attended": partly_attended,
    "cascade": cascade,
    "upscaler": Upscaler,
}
