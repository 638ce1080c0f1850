"""A test double for libopfuse_torch.so, put in place before the agent arms.

It stands on PYTHONPATH behind the shim, which runs it as the user's own sitecustomize: so chaining
is used by every test. The double finds one chain by its text, edits it by its text, believes every
proof, and decides the A/B after a fixed number of pairs. OPFUSE_DOUBLE holds its JSON settings.
"""

import json
import os
import sys
from pathlib import Path

SETTINGS = {
    "chain": "x * torch.sigmoid(x)",
    "qualname": "Inline.forward",
    "outcome": "tuned",
    "pairs": 3,
    "refuse_validations": 0,
    "reject_proof": "",
    "declined": "",
    "hash_by_rank": False,
    **json.loads(os.environ.get("OPFUSE_DOUBLE", "{}")),
}


class SessionDouble:
    """The methods of the session, with the answers' real field names."""

    def __init__(self):
        self.calls = []
        self.records = 0
        self.recording = False
        self.validated = set()  # each step may be compared with several originals
        self.samples = []

    def call(self, method, **request):
        self.calls.append(method)
        log = os.environ.get("OPFUSE_DOUBLE_LOG")
        if log:
            with open(log, "a") as file:
                file.write(json.dumps([os.getpid(), method]) + "\n")
        return getattr(self, method)(**request)

    def record_start(self, values):
        assert not self.recording
        self.recording = True
        return {}

    def record_stop(self):
        assert self.recording
        self.recording = False
        self.records += 1
        declined = SETTINGS["declined"]
        return {"record": self.records, "seconds": 0.001, "calls": 110, "events": 120,
                "losses": {}, "declined": [declined] if declined else [],
                "with_values": not declined, "codes": self.codes()}  # fmt: skip

    def codes(self):
        code = self.code()
        return [{"code": 0, "pointer": id(code), "lasti": [0]}] if code else []

    def record_abandon(self):
        self.recording = False
        return {}

    def set_positions(self, record, codes):
        for code in codes:
            assert code["qualname"] == SETTINGS["qualname"] and len(code["positions"][0]) == 5
        return {}

    def set_labels(self, record, storages):
        assert all(isinstance(pointer, int) and ":" in text for pointer, text in storages)
        return {}

    def code(self):
        """The code that stands for the chain, if its module was imported."""
        owner, _, name = SETTINGS["qualname"].partition(".")
        found = getattr(getattr(sys.modules.get("models"), owner, None), name, None)
        return getattr(found, "__code__", None)

    def find(self, record):
        code = self.code()
        return {"operators": 100, "near_misses": [], "sites": [self.site(code)] if code else []}

    def site(self, code):
        before, chain, _ = Path(code.co_filename).read_text().partition(SETTINGS["chain"])
        line, begin = before.count("\n") + 1, len(before) - before.rindex("\n") - 1
        inner = chain.index("torch.sigmoid")

        def operation(op, column):
            position = {"file": code.co_filename, "function": code.co_name, "line": line,
                        "code": 0, "end_line": line, "column": column,
                        "end_column": begin + len(chain)}  # fmt: skip
            return {"op": op, "stack": [position]}

        operations = [operation("aten.sigmoid", begin + inner), operation("aten.mul.Tensor", begin)]
        return {"id": 0, "rule": "silu", "calls": 1, "file": code.co_filename, "line": line,
                "stack": operations[0]["stack"], "operations": operations, "refusals": [],
                "now": "sigmoid, mul", "becomes": "F.silu(x)", "function_class": ""}  # fmt: skip

    def plan(self, record, facts, packages, own_operators=False):
        code = self.code()
        (fact,) = facts
        assert fact["source_matches"] and fact["span_kind"] == "expression", fact
        return self.plan_of(code)

    def plan_of(self, code):
        text = Path(code.co_filename).read_text()
        edited = text.replace(SETTINGS["chain"], "_opfuse_silu(x)", 1)
        memory = {"file": code.co_filename, "module": "models", "qualname": SETTINGS["qualname"],
                  "text": edited, "source_text": edited.replace("_opfuse_silu", "F.silu"),
                  "global_name": "_opfuse_silu",
                  "python_target": "torch.nn.functional.silu"}  # fmt: skip
        site = {**self.site(code), "status": "planned", "refusal": None}
        return {"plan": {"version": 1}, "hash": plan_hash(),
                "memory": [memory], "diffs": [], "sites": [site]}  # fmt: skip

    def prove(self, record, seconds):
        reason = SETTINGS["reject_proof"]
        site = {"site": 0, "accepted": not reason, "reason": reason, "captured_calls": 1,
                "generated_cases": 10}  # fmt: skip
        return {"sites": [site], "step": {"accepted": True, "reason": ""}}

    def load_plan(self, path):
        return self.plan_of(self.code())

    def validate(self, after, before=None, ignore_shapes=False):
        self.validated.add(after)
        accepted = len(self.validated) > SETTINGS["refuse_validations"]
        reason = "" if accepted else "aten.relu at models.py:1"
        return {"accepted": accepted, "operators_equal": 98, "sites_replaced": 1,
                "backward_replaced": 1, "reason": reason}  # fmt: skip

    def ab_open(self, seed):
        return {}

    def ab_next(self):
        done = len(self.samples) >= 2 * SETTINGS["pairs"]
        return {"replaced": len(self.samples) % 2 == 1, "phase": "done" if done else "choosing",
                "outcome": SETTINGS["outcome"] if done else "running"}  # fmt: skip

    def ab_add(self, **sample):
        assert sample["wall"] > 0 and sample["signature"]
        self.samples.append(sample)
        return {}

    def ab_discard(self):
        return {}

    def ab_state(self):
        done = len(self.samples) >= 2 * SETTINGS["pairs"]
        ratio = {"ratio": 1.25, "low": 1.2, "high": 1.3, "pairs": len(self.samples) // 2}
        return {"phase": "done" if done else "choosing", "choosing": ratio, "headline_wall": ratio,
                "outcome": SETTINGS["outcome"] if done else "running", "headline_cpu": ratio,
                "signatures": sorted({sample["signature"] for sample in self.samples}),
                "counted_steps": len(self.samples)}  # fmt: skip

    def write_record(self, record, ofr, trace):
        return {}

    def release_values(self, record):
        return {}

    def forget(self, record):
        return {}


def plan_hash():
    rank = os.environ.get("RANK", "0") if SETTINGS["hash_by_rank"] else "0"
    return "0123456789abcde" + rank


def put_in_place():
    import importlib.util

    folder = Path(os.environ["OPFUSE_PYTHON_DIR"]) / "opfuse"
    spec = importlib.util.spec_from_file_location("opfuse", folder / "__init__.py")
    package = sys.modules["opfuse"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    native = importlib.import_module("opfuse.native")
    native.load = lambda path, config: SessionDouble()


if os.environ.get("OPFUSE_PYTHON_DIR"):
    put_in_place()
