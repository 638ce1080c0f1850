"""python/opfuse/source.py on custom autograd.Functions."""

import json

import pytest
from conftest import ROOT
from source_helpers import SWISH, Recorder, facts_of_call, load, spanned, swish_facts, tensor

from opfuse import source


def test_a_function_is_edited_at_its_call(tmp_path):
    facts = swish_facts(tmp_path)
    assert facts["span_kind"] == "function_apply" and spanned(facts) == "Swish.apply(x)"
    assert facts["qualname"] == "M.forward" and facts["argument_sources"] == ["x"]
    assert facts["operations"][0]["callee"] == "Function.apply:Swish"
    assert facts["function_straight_line"], facts["function_problem"]
    flags = ("jvp", "vmap")
    assert not any(facts[f"function_has_{flag}"] for flag in flags)
    assert not facts["function_once_differentiable"] and not facts["function_subclassed"]


def test_the_facts_that_the_core_is_tested_with_are_these(tmp_path):
    stored = json.loads((ROOT / "opfuse" / "rewrite" / "testdata" / "facts.json").read_text())
    facts = swish_facts(tmp_path)
    facts["file"] = stored["file"]
    facts["module_globals"] = [n for n in facts["module_globals"] if not n.startswith("__")]
    assert facts == stored


def test_an_alias_of_apply_is_the_function(tmp_path):
    facts = swish_facts(tmp_path, "class M(", "swish = Swish.apply\nclass M(", None)
    module = load(tmp_path, SWISH.replace("class M(", "swish = Swish.apply\nclass M(").replace(
        "return Swish.apply(x)", "return swish(x + 1)"))  # fmt: skip
    facts = facts_of_call(lambda: module.M()(tensor(grad=True)), "Swish", backward=True)
    assert spanned(facts) == "swish(x + 1)" and facts["argument_sources"] == ["x + 1"]
    assert facts["operations"][0]["arguments"] == ["expr"]


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("        result =", "        if i.numel() > 3: i = i + 0\n        result =",
         "not an assignment"),
        ("        ctx.save_for", "        ctx.scale = 2.0\n        ctx.save_for",
         "it keeps ctx.scale"),
        ("torch.sigmoid(i)\n        ctx", "torch.sigmoid(i)\n        i.sum().item()\n        ctx",
         "not an assignment"),
        ("import torch\n", "import torch\nscale = torch.ones(1)\n", ""),
        ("1 + i", "scale + i", "it uses scale"),
        ("        sigmoid_i = ", "        print(1)\n        sigmoid_i = ", "not an assignment"),
        ("        return grad", "        for _ in range(1): pass\n        return grad",
         "not an assignment"),
        ("sigmoid_i = torch.sigmoid(i)", "sigmoid_i = helper(i)", "it calls helper(i)"),
        ("    @staticmethod\n    def backward",
         "    @staticmethod\n    @torch.no_grad()\n    def backward",
         "its backward is decorated"),
        ("result = i *", "result = i.detach() *", ""),
    ],
)  # fmt: skip
def test_a_function_must_be_straight_line(tmp_path, old, new, problem):
    assert old in SWISH
    text = SWISH.replace(old, new)
    text = text.replace(
        "class Swish(", "scale = 1\ndef helper(i): return torch.sigmoid(i)\nclass Swish("
    )
    module = load(tmp_path, text)
    with Recorder() as record:
        module.M()(tensor(grad=True)).sum().backward()
    names = [operation["op"] for operation in record.operations]
    first = names.index("aten.sigmoid.default")
    start = next(
        i for i, o in enumerate(record.operations)
        if any(f["function"] == "Swish.forward" for f in o["stack"])
    )  # fmt: skip
    site = record.site("Swish")
    site["operations"] = record.operations[start : first + 2]
    facts = source.collect_facts([site], record.codes)[0]
    assert facts["span_problem"] == "" and facts["source_problem"] == ""
    assert (
        facts["function_straight_line"] is (problem == "") and problem in facts["function_problem"]
    )


def test_an_operator_without_a_place_in_the_function_is_seen(tmp_path):
    module = load(tmp_path, SWISH)
    with Recorder() as record:
        module.M()(tensor(grad=True)).sum().backward()
    site = record.site("Swish")
    site["backward_operations"].pop()
    facts = source.collect_facts([site], record.codes)[0]
    assert "no operator was recorded" in facts["function_problem"]


@pytest.mark.parametrize(
    "new, flag",
    [
        ("    @staticmethod\n    def jvp(ctx, t): return t\n", "function_has_jvp"),
        ("    generate_vmap_rule = True\n", "function_has_vmap"),
        ("    @staticmethod\n    def vmap(info, dims, x): return x, 0\n", "function_has_vmap"),
        (
            "    @classmethod\n    def apply(cls, x): return super().apply(x)\n",
            "function_subclassed",
        ),
    ],
)
def test_what_a_function_has_beside_forward_and_backward(tmp_path, new, flag):
    marker = "class Swish(torch.autograd.Function):\n"
    if flag == "function_subclassed":
        text = SWISH.replace("class M(", f"class Own(Swish):\n{new}class M(")
        cls = load(tmp_path, text).Own
        from opfuse.straightline import function_facts

        site = {"function_class": "Own", "operations": [], "backward_operations": []}
        assert function_facts(cls, site, {})[flag]
        assert not function_facts(cls.__mro__[1], site, {})[flag]
    else:
        assert swish_facts(tmp_path, marker, marker + new)[flag]
        assert not swish_facts(tmp_path)[flag]


def test_once_differentiable_is_seen(tmp_path):
    once = "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward"
    facts = swish_facts(tmp_path, "    @staticmethod\n    def backward", once)
    assert facts["function_once_differentiable"] and not facts["function_straight_line"]


def test_a_swapped_module_is_another_class(tmp_path):
    """What set_swish() does: the site belongs to the class that ran, not to the attribute."""
    text = (
        SWISH + "\nclass Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    )
    text += "        self.act = M()\n    def forward(self, x):\n        return self.act(x)\n"
    module = load(tmp_path, text)
    block = module.Block()
    facts = facts_of_call(lambda: block(tensor(grad=True)), "Swish", backward=True)
    assert facts["qualname"] == "M.forward"


def test_the_published_case_is_edited_at_its_call(tmp_path):
    folder = ROOT / "examples" / "imagenet" / "efficientnet_pytorch"
    if not (folder / "utils.py").exists():
        pytest.skip("efficientnet_pytorch is unpacked by make demo")
    module = load(tmp_path, (folder / "utils.py").read_bytes(), "utils")
    with Recorder() as record:
        module.MemoryEfficientSwish()(tensor(grad=True)).sum().backward()
    facts = source.collect_facts([record.site("SwishImplementation")], record.codes)[0]
    assert facts["line"] == 80 and spanned(facts) == "SwishImplementation.apply(x)"
    assert facts["function_straight_line"], facts["function_problem"]
    assert "F=torch.nn.functional" in facts["module_aliases"]
    assert len(record.site("SwishImplementation")["backward_operations"]) == 6
