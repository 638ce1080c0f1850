"""python/opfuse/source.py on small modules that were traced as the recorder does: expressions and
statements."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from source_helpers import HEAD, Recorder, facts_of_call, inline, load, spanned, tensor

from opfuse import source


def test_an_expression_gives_its_span_and_operations(tmp_path):
    facts = inline(tmp_path, "return x * torch.sigmoid(x)")
    assert facts["span_kind"] == "expression" and facts["span_problem"] == ""
    assert spanned(facts) == "x * torch.sigmoid(x)"
    assert [(o["callee"], o["arguments"]) for o in facts["operations"]] == [
        ("torch.sigmoid", ["read:x"]),
        ("operator.mul", ["read:x", "op:0"]),
    ]
    reads = {read["text"]: (read["kind"], read["count"]) for read in facts["reads"]}
    assert reads == {"x": ("local", 2), "torch": ("global", 1)}
    assert facts["source_matches"] and facts["has_positions"] and facts["functions_found"] == 1
    assert facts["qualname"] == "f" and facts["module"] == "victim" and facts["line"] == 4
    assert "F=torch.nn.functional" in facts["module_aliases"]


@pytest.mark.parametrize(
    "body, callee",
    [
        ("return x * x.sigmoid()", "Tensor.sigmoid"),
        ("return x.sigmoid() * x", "Tensor.sigmoid"),
        ("return x * F.sigmoid(x)", "torch.nn.functional.sigmoid"),
        ("return x.mul(torch.special.expit(x))", "torch.special.expit"),
        ("return torch.mul(x, torch.sigmoid(x))", "torch.sigmoid"),
    ],
)
def test_every_spelling_resolves_to_its_operator(tmp_path, body, callee):
    facts = inline(tmp_path, body)
    assert facts["span_problem"] == "" and spanned(facts) == body.removeprefix("return ")
    assert facts["operations"][0] == {**facts["operations"][0], "callee": callee,
                                      "arguments": ["read:x"]}  # fmt: skip


def test_every_field_of_the_facts_is_in_the_contract():
    header = (ROOT / "opfuse" / "rewrite" / "facts.h").read_text()
    text = header.split("struct SiteFacts {")[1].split("\n};")[0]
    types = r"std::vector<[^>]*>|std::string|\b(int|int32_t|int64_t|bool|Span)\b"
    plain = re.sub(r"//.*|=[^,;]*|" + types, "", text)
    declared = set(re.findall(r"\w+", plain))
    assert set(source.blank_facts(0)) == declared


def test_positions_count_bytes_after_unicode_and_tabs(tmp_path):
    text = HEAD + "def f(x):\n\tif True:\n\t\tä = 'éü😀'; return (ä, x * torch.sigmoid(x))[1]\n"
    module = load(tmp_path, text.encode())
    assert spanned(facts_of_call(lambda: module.f(tensor()))) == "x * torch.sigmoid(x)"


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_spans_hold_with_crlf_and_byte_order_mark(tmp_path, bom, newline):
    lines = [b"import torch", b"def f(x): return x * torch.sigmoid(x)", b"y = 1"]
    module = load(tmp_path, bom + newline.join(lines))
    facts = facts_of_call(lambda: module.f(tensor()))
    assert facts["source_matches"] and spanned(facts) == "x * torch.sigmoid(x)"
    assert facts["text"].encode()[facts["import_offset"] :].startswith(b"def f")


def test_an_expression_over_several_lines(tmp_path):
    facts = inline(tmp_path, "return (x\n    * torch.sigmoid(\n        x))")
    assert spanned(facts).splitlines()[0] == "x" and facts["span_problem"] == ""


def test_a_method_call_over_several_lines(tmp_path):
    facts = inline(tmp_path, "return x * (x\n    .sigmoid())")
    assert facts["span_problem"] == "" and facts["operations"][0]["callee"] == "Tensor.sigmoid"


def test_adjacent_statements(tmp_path):
    facts = inline(tmp_path, "s = torch.sigmoid(x)\nreturn x * s")
    assert facts["span_kind"] == "statements" and facts["kept_names"] == []
    assert spanned(facts) == "x * s" and spanned(facts, "first_statement") == "s = torch.sigmoid(x)"
    assert facts["operations"][1]["arguments"] == ["read:x", "op:0"]


@pytest.mark.parametrize(
    "body, kept",
    [
        ("s = torch.sigmoid(x)\ny = x * s\nreturn y, s", "s is also read in line 6"),
        ("s = torch.sigmoid(x)\nreturn x * s, s", "s is also read in line 5"),
        ("s = torch.sigmoid(x)\nf.last = s\nreturn x * s", "s is also read in line 5"),
        ("f.last = torch.sigmoid(x)\nreturn x * f.last", "f.last = torch.sigmoid(x)"),
        ("s = torch.sigmoid(x)\ny = x * s\ns.requires_grad\nreturn y", "s is also read in line 6"),
        ("return x * (s := torch.sigmoid(x))", "s is bound inside the expression"),
        ("s = torch.sigmoid(x)\ny = x * s\ns = 0\nreturn y", "s is also bound in line 6"),
    ],
)
def test_a_kept_inner_value_is_named(tmp_path, body, kept):
    facts = inline(tmp_path, body)
    assert kept in " ".join([*facts["kept_names"], facts["span_problem"]])


def test_statements_that_are_not_adjacent_are_no_span(tmp_path):
    facts = inline(tmp_path, "s = torch.sigmoid(x)\nx.add_(1)\nreturn x * s")
    assert "other statements" in facts["span_problem"]


MODULE = """
import torch
from torch import nn

class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.ones(3))
        self.act = nn.Sigmoid()
    def forward(self):
        return self.x * torch.sigmoid(self.x)
    def call(self, x):
        return x * self.act(x)

class Computed(nn.Module):
    @property
    def x(self):
        return torch.ones(3)
    def forward(self):
        return self.x * torch.sigmoid(self.x)

class Magic(nn.Module):
    def __getattr__(self, name):
        return torch.ones(3) if name == "x" else super().__getattr__(name)
    def forward(self):
        return self.x * torch.sigmoid(self.x)

class Plain:
    x = torch.ones(3)
    def forward(self):
        return self.x * torch.sigmoid(self.x)
"""


@pytest.mark.parametrize(
    "cls, kind",
    [
        ("M", "module_member"),
        ("Computed", "property"),
        ("Magic", "property"),
        ("Plain", "attribute"),
    ],
)
def test_only_plain_members_of_modules_read_twice_alike(tmp_path, cls, kind):
    module = load(tmp_path, MODULE)
    one = getattr(module, cls)()
    with Recorder() as record:
        one.forward()
    facts = source.collect_facts([record.site()], record.codes)[0]
    assert {r["text"]: r["kind"] for r in facts["reads"]}["self.x"] == kind


def test_one_instance_with_a_property_makes_it_a_property(tmp_path):
    text = MODULE[: MODULE.index("class Computed(")]
    text += "class Sub(M):\n    @property\n    def x(self): return torch.zeros(3)\n"
    text += "    def __init__(self): nn.Module.__init__(self)\n"
    module = load(tmp_path, text)
    one, other = module.M(), module.Sub()
    facts = facts_of_call(one.forward)
    assert {r["text"]: r["kind"] for r in facts["reads"]}["self.x"] == "property" and other


def test_a_module_call_is_named_with_its_hooks(tmp_path):
    module = load(tmp_path, MODULE[: MODULE.index("class Computed(")])
    one = module.M()
    facts = facts_of_call(lambda: one.call(tensor()))
    assert facts["operations"][0]["callee"] == "module:torch.nn.modules.activation.Sigmoid"
    assert facts["hook_notes"] == []
    one.act.register_forward_hook(lambda *a: None)
    facts = facts_of_call(lambda: one.call(tensor()))
    assert facts["hook_notes"] == ["Sigmoid has forward_hooks"]


def test_a_name_that_is_not_torchs_own_is_unknown(tmp_path):
    head = HEAD + "def sigmoid(x):\n    return torch.sigmoid(x)\n"
    facts = inline(tmp_path, "return x * sigmoid(x)", head)
    assert facts["operations"][0]["callee"] == "unknown:sigmoid"
    facts = inline(tmp_path, "return x * sigmoid(x)", HEAD + "sigmoid = torch.sigmoid\n")
    assert facts["operations"][0]["callee"] == "torch.sigmoid"


def test_an_exchanged_operator_of_torch_is_unknown(tmp_path, monkeypatch):
    own = torch.sigmoid
    monkeypatch.setattr(torch, "sigmoid", lambda x: own(x))
    facts = inline(tmp_path, "return x * torch.sigmoid(x)")
    assert facts["operations"][0]["callee"] == "unknown:torch.sigmoid"


def test_aliases_leave_out_names_that_the_function_binds(tmp_path):
    facts = inline(tmp_path, "F = 1\nreturn x * torch.sigmoid(x)")
    assert "F=torch.nn.functional" not in facts["module_aliases"]
    assert "torch=torch" in facts["module_aliases"]


def test_code_on_a_stack_is_running(tmp_path):
    text = (
        HEAD
        + "def train(x, boundary):\n    y = x * torch.sigmoid(x)\n    boundary()\n    return y\n"
    )
    module = load(tmp_path, text)
    seen = {}
    with Recorder() as record:

        def boundary():
            seen.update(source.collect_facts([record.site()], record.codes)[0])

        module.train(tensor(), boundary)
    assert seen["running_now"] and seen["source_problem"] == ""
    assert not source.collect_facts([record.site()], record.codes)[0]["running_now"]


def test_looking_for_generators_runs_no_code_of_the_users(tmp_path):
    class Answering:
        asked = 0

        @property
        def __class__(self):
            Answering.asked += 1
            return object

    one = Answering()
    module = load(tmp_path, "def g(x):\n    yield x\n")
    assert not source.is_running(module.g.__code__)
    assert Answering.asked == 0 and one is not None


def test_a_suspended_generator_is_running(tmp_path):
    module = load(tmp_path, HEAD + "def g(x):\n    yield x * torch.sigmoid(x)\n    yield 1\n")
    generator = module.g(tensor())
    facts = facts_of_call(lambda: next(generator))
    assert facts["is_generator"] and facts["running_now"]


def test_a_coroutine_says_so(tmp_path):
    module = load(tmp_path, HEAD + "async def g(x):\n    return x * torch.sigmoid(x)\n")

    def call():
        try:
            module.g(tensor()).send(None)
        except StopIteration as end:
            return end.value

    assert facts_of_call(call)["is_coroutine"]


def test_module_level_code_says_so(tmp_path):
    text = HEAD + "x = torch.ones(3)\ny = x * torch.sigmoid(x)\n"
    facts = facts_of_call(lambda: load(tmp_path, text))
    assert facts["is_module_level"] and facts["functions_found"] == 0


def test_nested_code_says_so(tmp_path):
    module = load(
        tmp_path,
        HEAD + "def make():\n    def f(x):\n        return x * torch.sigmoid(x)\n    return f\n",
    )
    f = module.make()
    facts = facts_of_call(lambda: f(tensor()))
    assert facts["is_nested"] and facts["qualname"] == "make.<locals>.f"


def test_closures_and_globals_are_not_locals(tmp_path):
    module = load(tmp_path, HEAD + "w = torch.ones(3)\ndef f():\n    return w * torch.sigmoid(w)\n")
    facts = facts_of_call(module.f)
    assert {r["text"]: r["kind"] for r in facts["reads"]}["w"] == "global"


@pytest.mark.parametrize("body", ["locals()", "eval('1')", "vars()", "import sys; sys._getframe()"])
def test_a_function_that_reads_its_frame_says_so(tmp_path, body):
    assert inline(tmp_path, body + "\nreturn x * torch.sigmoid(x)")["uses_frame_magic"]
    assert not inline(tmp_path, "return x * torch.sigmoid(x)")["uses_frame_magic"]


@pytest.mark.parametrize(
    "body, off",
    [
        ("return x * torch.sigmoid(x)  # opfuse: off", True),
        ("s = torch.sigmoid(x)  # opfuse: off\nreturn x * s", True),
        ("return x * torch.sigmoid(x)  # opfuse: on", False),
        ("y = 1  # opfuse: off\nreturn x * torch.sigmoid(x)", False),
    ],
)
def test_a_line_can_opt_out(tmp_path, body, off):
    assert inline(tmp_path, body)["opted_out"] is off


def test_a_changed_file_is_seen(tmp_path):
    module = load(tmp_path, HEAD + "def f(x):\n    return x * torch.sigmoid(x)\n")
    path = tmp_path / "victim.py"

    def change():
        path.write_text("# new\n" + path.read_text())

    facts = facts_of_call(lambda: module.f(tensor()), before=change)
    assert not facts["source_matches"]
    assert facts["source_problem"] == "its source was changed since it was imported"


@pytest.mark.parametrize(
    "new",
    ["return x  * torch.sigmoid(x)", "return x * torch.sigmoid(x) + 1", "return x * torch.tanh(x)"],
)
def test_any_change_inside_the_function_is_seen(tmp_path, new):
    module = load(tmp_path, HEAD + "def f(x):\n    return x * torch.sigmoid(x)\n")
    path = tmp_path / "victim.py"

    def change():
        path.write_text(path.read_text().replace("return x * torch.sigmoid(x)", new))

    assert not facts_of_call(lambda: module.f(tensor()), before=change)["source_matches"]


def test_a_missing_file_is_said(tmp_path):
    module = load(tmp_path, HEAD + "def f(x):\n    return x * torch.sigmoid(x)\n")
    facts = facts_of_call(lambda: module.f(tensor()), before=(tmp_path / "victim.py").unlink)
    assert facts["source_problem"] == "its source cannot be read: No such file or directory"


def test_generated_code_is_no_file():
    space = {}
    exec(
        compile("import torch\ndef f(x):\n    return x * torch.sigmoid(x)\n", "<gen>", "exec"),
        space,
    )
    assert "is not a file" in facts_of_call(lambda: space["f"](tensor()))["source_problem"]


def test_another_encoding_is_refused(tmp_path):
    text = (
        "# -*- coding: latin-1 -*-\nimport torch\ndef f(x): return x * torch.sigmoid(x)  # \xe9\n"
    )
    module = load(tmp_path, text.encode("latin-1"))
    facts = facts_of_call(lambda: module.f(tensor()))
    assert facts["source_problem"] == "its source is written in iso-8859-1, not in UTF-8"


def test_a_chain_in_two_functions_is_no_span(tmp_path):
    text = HEAD + "def gate(x):\n    return torch.sigmoid(x)\ndef f(x):\n    return x * gate(x)\n"
    module = load(tmp_path, text)
    facts = facts_of_call(lambda: module.f(tensor()))
    assert [o["callee"] for o in facts["operations"]][0] == "unknown:gate"


def test_scripted_and_compiled_code_says_so(tmp_path):
    module = load(tmp_path, HEAD + "def f(x):\n    return x * torch.sigmoid(x)\n")
    assert not facts_of_call(lambda: module.f(tensor()))["scripted_or_compiled"]
    torch.jit.script(module.f)
    assert facts_of_call(lambda: module.f(tensor()))["scripted_or_compiled"]
    module = load(tmp_path, HEAD + "def g(x):\n    return x * torch.sigmoid(x)\n", "other")
    torch.compile(module.g, backend="eager")(tensor())
    assert facts_of_call(lambda: module.g(tensor()))["scripted_or_compiled"]


def test_trouble_in_a_users_object_becomes_a_fact(tmp_path, monkeypatch):
    def broken(*args):
        raise RuntimeError("boom")

    monkeypatch.setattr(source, "find_span", broken)
    facts = inline(tmp_path, "return x * torch.sigmoid(x)")
    assert "RuntimeError: boom" in facts["source_problem"] and not facts["source_matches"]
    json.dumps(facts)


def test_without_columns_there_are_no_positions(tmp_path):
    (tmp_path / "m.py").write_text("import torch\ndef f(x): return x * torch.sigmoid(x)\n")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import m\nfrom source_helpers import facts_of_call, tensor\n"
        "f = facts_of_call(lambda: m.f(tensor())); print(f['has_positions'], f['source_matches'])"
    )
    here, python = __file__.rsplit("/", 1)[0], source.__file__.rsplit("/", 2)[0]
    command = [sys.executable, "-X", "no_debug_ranges", "-c", script, str(tmp_path), here, python]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def arguments_of(facts):
    return [argument for operation in facts["operations"] for argument in operation["arguments"]]


def test_arithmetic_of_numbers_is_the_number(tmp_path):
    module = load(
        tmp_path,
        """
        import math
        import torch

        class Own:
            pi = 3
            sqrt = staticmethod(math.sqrt)

        own = Own()

        def known(x):
            return x * torch.sigmoid(x * (math.sqrt(2 / math.pi) - 2**-3))

        def unknown(x):
            return x * torch.sigmoid(x * (own.sqrt(2) / own.pi))
        """,
    )
    x = torch.ones(2)
    value = math.sqrt(2 / math.pi) - 2**-3
    known = facts_of_call(lambda: module.known(x))
    assert f"const:{value!r}" in arguments_of(known)
    assert "math" in {read["text"] for read in known["reads"]}  # a name that could be bound anew
    unknown = facts_of_call(lambda: module.unknown(x))
    assert f"const:{math.sqrt(2) / 3!r}" not in arguments_of(unknown)
    assert "expr:1:own.sqrt(2)" in arguments_of(unknown)  # a call that nobody knows
