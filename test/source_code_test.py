"""Code that takes the old one's place: compiled, compared with the diff, found again."""

import pytest
import torch
from source_helpers import SWISH, facts_of_call, load, tensor

from opfuse import source


def prepared(folder, text, old, memory, diff, name="_opfuse_silu"):
    module = load(folder, text)
    facts = facts_of_call(
        lambda: module.M().forward(tensor()), "Swish" if "apply(x)" in text else ""
    )
    return module, source.prepare_code(
        facts, text.replace(old, memory), text.replace(old, diff), name
    )


def test_the_edited_code_runs_in_place_of_the_old(tmp_path):
    module, (running, edited) = prepared(
        tmp_path, SWISH, "Swish.apply(x)", "_opfuse_silu(x)", "F.silu(x)"
    )
    assert running is module.M.forward.__code__ and edited.co_firstlineno == running.co_firstlineno
    module._opfuse_silu = torch.nn.functional.silu
    before = module.M()(tensor())
    module.M.forward.__code__ = edited
    assert torch.allclose(module.M()(tensor()), before)
    assert module.M()(tensor(grad=True)).grad_fn.name() == "SiluBackward0"


@pytest.mark.parametrize(
    "memory, diff, problem",
    [
        ("_opfuse_silu(x)", "F.silu(x) + 0", "line"),
        ("_opfuse_silu(x)", "F.silu(x, True)", "line"),
        ("_opfuse_silu(_opfuse_silu(x))", "F.silu(F.relu(x))", "several names"),
        ("_opfuse_silu(x", "F.silu(x)", "does not compile"),
    ],
)
def test_a_diff_that_is_not_what_runs_is_refused(tmp_path, memory, diff, problem):
    with pytest.raises(source.SourceRefused, match=problem):
        prepared(tmp_path, SWISH, "Swish.apply(x)", memory, diff)


def test_an_added_import_and_moved_lines_are_the_same_program():
    memory = "import torch\ndef f(x):\n\n    return _opfuse_silu(x\n)\n"
    diff = "import torch\nimport torch_npu\ndef f(x):\n    return torch_npu.npu_silu(x)\n"
    assert source.program_difference(memory, diff, "_opfuse_silu") == ""
    lacking = diff.replace("import torch\n", "")
    assert "lacks import torch" in source.program_difference(memory, lacking, "_opfuse_silu")
    other = diff.replace("return ", "return -")
    assert "line 3 is in the diff" in source.program_difference(memory, other, "_opfuse_silu")


def test_two_operators_of_one_file_are_told_apart():
    memory = "import torch.nn.functional as F\ndef f(x):\n    return _opfuse_silu(x)\n"
    memory += "def g(x):\n    return _opfuse_hardswish(x)\n"
    diff = memory.replace("_opfuse_", "F.")
    assert source.program_difference(memory, diff, "_opfuse_silu") == ""
    one = memory.replace("hardswish", "silu")
    said = source.program_difference(one, diff, "_opfuse_silu")
    assert "one operator has several names: F.hardswish, F.silu" in said


def test_private_names_and_super_survive(tmp_path):
    text = """
import torch
class B(torch.nn.Module):
    def forward(self, x): return x
class M(B):
    def __k(self): return 2.0
    def forward(self, x):
        x = super().forward(x) * self.__k()
        return x * torch.sigmoid(x)
"""
    module, (running, edited) = prepared(
        tmp_path, text, "x * torch.sigmoid(x)", "_opfuse_silu(x)", "torch.nn.functional.silu(x)"
    )
    module._opfuse_silu = torch.nn.functional.silu
    one = module.M()
    before = one(tensor())
    module.M.forward.__code__ = edited
    assert running.co_freevars == ("__class__",) and torch.allclose(one(tensor()), before)


def test_a_stored_plan_finds_the_running_code(tmp_path):
    module = load(tmp_path, SWISH)
    entry = {"file": module.__file__, "qualname": "M.forward", "module": "victim", "site": 3}
    facts = source.facts_of_entry(entry)
    running, edited = source.prepare_code(facts, SWISH.replace("Swish.apply(x)", "_opfuse_silu(x)"))
    assert running is module.M.forward.__code__ and "_opfuse_silu" in edited.co_names
    with pytest.raises(source.SourceRefused, match="found 0"):
        source.facts_of_entry({**entry, "qualname": "M.backward"})
