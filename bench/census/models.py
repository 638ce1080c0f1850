"""One small training step each of current models, built from their configurations: no weights.

`python models.py NAME [STEPS]` trains; `python models.py --list` names them. Needs transformers,
timm and efficientnet_pytorch, as far as the model does.
"""

import enum
import importlib.machinery
import sys
import types

import torch
from torch import nn

_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 256}  # fmt: skip
_GROUPED = {**_TEXT, "num_key_value_heads": 2}


def _language(config: str, model: str, attention: str = "eager", **options):
    """A causal or masked language model of transformers on random tokens."""
    import transformers

    made = getattr(transformers, config)(**options)
    made._attn_implementation = attention
    network = getattr(transformers, model)(made)
    tokens = torch.randint(3, 255, (2, 32))

    def loss(net):
        inputs = {"input_ids": tokens, "labels": tokens.clone()}
        return net(**inputs).loss

    return network, loss


def _vision(config: str, model: str, size: int = 64, **options):
    import transformers

    network = getattr(transformers, model)(getattr(transformers, config)(**options))
    images = torch.randn(2, 3, size, size)
    labels = torch.randint(0, 2, (2,))
    return network, lambda net: net(pixel_values=images, labels=labels).loss


def without_torchvision():
    """timm imports names of torchvision that no model here uses; it need not be installed."""
    if "torchvision" in sys.modules:
        return

    class Stub(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            if name == "InterpolationMode":
                names = ["NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING"]
                return enum.Enum(name, {n: n.lower() for n in [*names, "LANCZOS"]})
            return type(name, (nn.Module,), {})

    for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets",
                 ".models", ".models.feature_extraction", ".io", ".utils",
                 ".datasets.folder"):  # fmt: skip
        module = Stub("torchvision" + name)
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _timm(name: str, size: int = 64, **options):
    without_torchvision()
    import timm

    network = timm.create_model(name, pretrained=False, num_classes=10, **options)
    images, labels = torch.randn(2, 3, size, size), torch.randint(0, 10, (2,))
    return network, lambda net: nn.functional.cross_entropy(net(images), labels)


def _efficientnet():
    from efficientnet_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-b0", image_size=64)
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 1000, (2,))
    return network, lambda net: nn.functional.cross_entropy(net(images), labels)


def _lstm():
    network = nn.LSTM(32, 32, num_layers=2)
    inputs = torch.randn(8, 4, 32)
    return network, lambda net: net(inputs)[0].square().mean()


GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256,
      "decoder_start_token_id": 0}  # fmt: skip

MODELS = {
    "efficientnet_pytorch_b0": _efficientnet,
    "lstm": _lstm,
    "llama": lambda: _language("LlamaConfig", "LlamaForCausalLM", **_GROUPED),
    "llama_sdpa": lambda: _language("LlamaConfig", "LlamaForCausalLM", "sdpa", **_GROUPED),
    "mistral": lambda: _language("MistralConfig", "MistralForCausalLM", **_GROUPED),
    "qwen2": lambda: _language("Qwen2Config", "Qwen2ForCausalLM", **_GROUPED),
    "qwen3": lambda: _language("Qwen3Config", "Qwen3ForCausalLM", head_dim=16, **_GROUPED),
    "gemma": lambda: _language("GemmaConfig", "GemmaForCausalLM", head_dim=16, **_GROUPED),
    "phi": lambda: _language("PhiConfig", "PhiForCausalLM", **_TEXT),
    "gpt2": lambda: _language("GPT2Config", "GPT2LMHeadModel", **GPT2),
    "gpt_neox": lambda: _language("GPTNeoXConfig", "GPTNeoXForCausalLM", **_TEXT),
    "opt": lambda: _language("OPTConfig", "OPTForCausalLM", vocab_size=256, hidden_size=64,
                             ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
                             word_embed_proj_dim=64),
    "bert": lambda: _language("BertConfig", "BertForMaskedLM", **_TEXT),
    "bert_gelu_new": lambda: _language("BertConfig", "BertForMaskedLM", hidden_act="gelu_new",
                                       **_TEXT),
    "roberta": lambda: _language("RobertaConfig", "RobertaForMaskedLM", **_TEXT),
    "distilbert": lambda: _language("DistilBertConfig", "DistilBertForMaskedLM", vocab_size=256,
                                    dim=64, hidden_dim=128, n_layers=2, n_heads=4),
    "t5": lambda: _language("T5Config", "T5ForConditionalGeneration", **T5),
    "t5_gated": lambda: _language("T5Config", "T5ForConditionalGeneration",
                                  feed_forward_proj="gated-gelu", **T5),
    "vit": lambda: _vision("ViTConfig", "ViTForImageClassification", image_size=64, patch_size=16,
                           hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                           num_attention_heads=4),
    "convnext": lambda: _vision("ConvNextConfig", "ConvNextForImageClassification",
                                hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    "timm_efficientnet_b0": lambda: _timm("efficientnet_b0", drop_path_rate=0.1),
    "timm_mobilenetv3": lambda: _timm("mobilenetv3_small_100"),
    "timm_regnety": lambda: _timm("regnety_002", drop_path_rate=0.1),
    "timm_convnext": lambda: _timm("convnext_atto", drop_path_rate=0.1),
    "timm_vit": lambda: _timm("vit_tiny_patch16_224", 224, drop_path_rate=0.1, depth=4),
    "timm_swin": lambda: _timm("swin_tiny_patch4_window7_224", 224, drop_path_rate=0.1),
    "timm_resnet": lambda: _timm("resnet18"),
}  # fmt: skip


def main() -> None:
    if sys.argv[1] == "--list":
        print("\n".join(MODELS))
        return
    torch.manual_seed(0)
    network, loss_of = MODELS[sys.argv[1]]()
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 4):
        optimizer.zero_grad()
        loss = loss_of(network)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
