"""The models of the speed-up table, at sizes that keep two cores busy for a tenth of a second to
some seconds a step: built from their configurations, random weights and inputs.

Each entry gives the network and `loss(network)`, which a training step differentiates.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "census"), str(ROOT / "examples" / "imagenet")]

from models import without_torchvision  # noqa: E402  (bench/census)


def _images(network, batch, size, classes):
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
    return network, lambda net: F.cross_entropy(net(images), labels)


def _efficientnet():
    from efficientnet_pytorch import EfficientNet

    return _images(EfficientNet.from_name("efficientnet-b0"), 8, 224, 1000)


def _timm(name, batch, size=224, **options):
    without_torchvision()
    import timm

    return _images(timm.create_model(name, pretrained=False, **options), batch, size, 1000)


def _text(config, model, batch=4, length=128, attention="eager", **options):
    import transformers

    made = getattr(transformers, config)(vocab_size=4096, **options)
    made._attn_implementation = attention
    tokens = torch.randint(3, 4000, (batch, length))
    network = getattr(transformers, model)(made)
    return network, lambda net: net(input_ids=tokens, labels=tokens).loss


class Residual(nn.Module):
    """GroupNorm, SiLU, convolution, twice, as in diffusion UNets; SiLU as a formula."""

    def __init__(self, before, after):
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x):
        h = self.first(x)
        h = self.conv1(h * torch.sigmoid(h))
        h = self.second(h)
        return self.conv2(h * torch.sigmoid(h)) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Residual(width, 2 * width), Residual(2 * width, 4 * width)
        self.middle = Residual(4 * width, 4 * width)
        self.up2, self.up1 = Residual(8 * width, 2 * width), Residual(4 * width, width)
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x):
        a = self.down1(self.stem(x))
        b = self.down2(F.avg_pool2d(a, 2))
        h = self.middle(F.avg_pool2d(b, 2))
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2.0), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(h, scale_factor=2.0), a], 1)))


def _unet():
    images, noise = torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64)
    return UNet(), lambda net: F.mse_loss(net(images), noise)


class Cell(nn.Module):
    """Convolution, norm, SiLU as a formula."""

    def __init__(self, before, after, kernel=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x * torch.sigmoid(x)


class Detector(nn.Module):
    """A one-stage detector: a backbone of cells, three heads of boxes and classes."""

    def __init__(self, width=24):
        super().__init__()
        widths = [width * 2**i for i in range(4)]
        self.stem = nn.Sequential(Cell(3, widths[0], stride=2), Cell(widths[0], widths[0]))
        self.stages = nn.ModuleList(
            nn.Sequential(Cell(a, b, stride=2), Cell(b, b // 2, 1), Cell(b // 2, b))
            for a, b in zip(widths, widths[1:])
        )
        self.heads = nn.ModuleList(
            nn.Sequential(Cell(w, w), nn.Conv2d(w, 24, 1)) for w in widths[1:]
        )

    def forward(self, x):
        x, found = self.stem(x), []
        for stage, head in zip(self.stages, self.heads):
            x = stage(x)
            found.append(head(x).flatten(2))
        return torch.cat(found, 2)


def _detector():
    images = torch.randn(4, 3, 256, 256)
    targets = torch.rand(4, 24, Detector().eval()(images[:1]).size(2))
    return Detector(), lambda net: F.binary_cross_entropy_with_logits(net(images), targets)


_SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
          "num_attention_heads": 4}  # fmt: skip
MODELS = {
    "efficientnet_pytorch B0": _efficientnet,
    "ResNet-18": lambda: _timm("resnet18", 8),
    "MobileNetV3-small": lambda: _timm("mobilenetv3_small_100", 16),
    "RegNetY-200MF": lambda: _timm("regnety_002", 16),
    "ConvNeXt-atto": lambda: _timm("convnext_atto", 8),
    "ViT-tiny": lambda: _timm("vit_tiny_patch16_224", 8),
    "Swin-tiny": lambda: _timm("swin_tiny_patch4_window7_224", 2),
    "BERT": lambda: _text("BertConfig", "BertForMaskedLM", **_SMALL),
    "GPT-2": lambda: _text("GPT2Config", "GPT2LMHeadModel", n_embd=256, n_layer=4, n_head=4,
                           bos_token_id=1, eos_token_id=2),
    "Llama": lambda: _text("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **_SMALL),
    "T5": lambda: _text("T5Config", "T5ForConditionalGeneration", d_model=256, d_kv=64, d_ff=1024,
                        num_layers=3, num_heads=4, decoder_start_token_id=0),
    "UNet": _unet,
    "detector": _detector,
}  # fmt: skip
