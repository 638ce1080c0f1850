#!/usr/bin/env python3
"""Write opfuse/graph/schemas/torch_<major>_<minor>.schemas from the installed torch.

One line an overload: the schema as PyTorch prints it, a tab, flags. Flags: composite (implicit, no
kernel of its own), random (nondeterministic_seeded), pointwise, writes=a,b (written although the
schema does not say so). Only aten operators that the dispatcher knows; sorted, so that a new torch
gives a readable diff.

    python tools/gen_schemas.py > opfuse/graph/schemas/torch_2_13.schemas
"""

import sys

import torch

# Kernels that write arguments which their schemas do not mark.
UNDECLARED_WRITES = {
    "aten::native_batch_norm": ["running_mean", "running_var"],
    "aten::native_batch_norm.out": ["running_mean", "running_var"],
    "aten::cudnn_batch_norm": ["running_mean", "running_var"],
    "aten::cudnn_batch_norm.out": ["running_mean", "running_var"],
    "aten::miopen_batch_norm": ["running_mean", "running_var"],
    "aten::miopen_batch_norm.out": ["running_mean", "running_var"],
    "aten::_batch_norm_impl_index": ["running_mean", "running_var"],
    "aten::batch_norm": ["running_mean", "running_var"],
    "aten::instance_norm": ["running_mean", "running_var"],
}
# A composite operator with one of these runs as a leaf.
OWN_KERNEL_KEYS = ("CPU", "AutogradCPU", "CompositeExplicitAutograd")


def qualified(schema: torch._C.FunctionSchema) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def flags(name: str, schema: torch._C.FunctionSchema) -> list[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    result = []
    own = any(has(name, key) for key in OWN_KERNEL_KEYS)
    if has(name, "CompositeImplicitAutograd") and not own:
        result.append("composite")
    tags = torch._C._get_operation_overload(schema.name, schema.overload_name)[2]
    if torch.Tag.nondeterministic_seeded in tags:
        result.append("random")
    if torch.Tag.pointwise in tags:
        result.append("pointwise")
    if name in UNDECLARED_WRITES:
        result.append("writes=" + ",".join(UNDECLARED_WRITES[name]))
    return result


def main() -> None:
    lines = {}
    for schema in torch._C._jit_get_all_schemas():
        name = qualified(schema)
        if schema.name.startswith("aten::") and torch._C._dispatch_has_kernel(name):
            lines[name] = "\t".join([str(schema), " ".join(flags(name, schema))]).rstrip()
    version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    sys.stdout.write(f"# aten schemas of torch {version}, made by tools/gen_schemas.py\n")
    sys.stdout.writelines(lines[name] + "\n" for name in sorted(lines))


if __name__ == "__main__":
    main()
