"""Writes a synthetic Kineto trace of any size, for measuring readers of trace files.

    python bench/trace/make_trace.py FILE MEGABYTES

The mixture of rows, their keys and their lengths are those of traces of EfficientNet training with
shapes, stacks and memory. As in real files the same few thousand argument lists come back.
"""

import random
import sys

OPERATORS = [
    "aten::" + name
    for name in (
        "empty conv2d convolution _convolution mkldnn_convolution batch_norm "
        "_batch_norm_impl_index "
        "native_batch_norm silu_ silu sigmoid mul mul_ add_ add mean view reshape as_strided addmm "
        "linear t transpose copy_ to _to_copy convolution_backward zero_ fill_ detach resize_"
    ).split()
] + ["autograd::engine::evaluate_function: ConvolutionBackward0", "SwishImplementationBackward"]
FRAMES = (
    [f"torch/nn/modules/module.py({line}): _call_impl" for line in (1194, 1501)]
    + [f"nn.Module: Conv2dStaticSamePadding_{i}" for i in range(120)]
    + [f"efficientnet_pytorch/model.py({line}): forward" for line in range(80, 330, 7)]
    + [f'torch/autograd/function.py({line}): apply \\"x\\"' for line in range(20)]
)
KERNELS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, "
    "float, at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int, "
    "at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3>)",
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float)",
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "Memset (Device)",
] + [f"void cutlass_kernel_{i}<cutlass::gemm::GemmShape<{64 << i % 3}, 64, 32>>" for i in range(30)]


def dims(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        side = rng.choice((112, 56, 28, 14, 7))
        return f"[32, {rng.choice((16, 24, 40, 96, 112, 240, 672, 1152))}, {side}, {side}]"
    if kind < 0.7:
        return f"[{rng.choice((32, 64))}, {rng.choice((1000, 1280))}]"
    return f"[{rng.choice((16, 32, 96))}]" if kind < 0.85 else "[]"


def argument_lists(rng: random.Random, count: int) -> list[str]:
    lists = []
    for _ in range(count):
        size = rng.randint(1, 6)
        values = ", ".join(rng.choice(('""', '"False"', '"[1, 1]"', '"1"')) for _ in range(size))
        shapes = ", ".join(dims(rng) for _ in range(size))
        types = ", ".join(
            f'"{rng.choice(("float", "float", "", "Scalar", "ScalarList", "bool"))}"'
            for _ in range(size)
        )
        lists.append(
            f'"Concrete Inputs": [{values}], "Input Dims": [{shapes}], "Input type": [{types}]'
        )
    return lists


def main() -> None:
    path, size = sys.argv[1], int(sys.argv[2]) * 1_000_000
    rng = random.Random(1)
    lists, draw = argument_lists(rng, 3000), rng.random
    time, n, link, written = 1719931193543.123, 0, 1000, 0
    with open(path, "w", buffering=1 << 22) as out:
        written += out.write(
            '{\n  "schemaVersion": 1,\n  "record_shapes": 1,\n  "traceEvents": [\n'
        )
        while written < size:
            kind = draw()
            time += draw() * 3
            n += 1
            ts = f"{time:.3f}"
            if kind < 0.42:
                thread = rng.choice((48213, 48213, 48213, 48377))
                text = (
                    f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{rng.choice(OPERATORS)}", '
                    f'"pid": 48213, "tid": {thread},\n    "ts": {ts}, "dur": {draw() * 50:.3f},'
                    f'\n    "args": {{\n      "External id": {n},"Record function id": 0, '
                    f'{rng.choice(lists)}, "Ev Idx": {n}\n    }}\n  }},\n'
                )
            elif kind < 0.70:
                text = (
                    f'  {{\n    "ph": "X", "cat": "python_function", '
                    f'"name": "{rng.choice(FRAMES)}", '
                    f'"pid": 48213, "tid": 48213,\n    "ts": {ts}, "dur": {draw() * 500:.3f},\n'
                    f'    "args": {{\n      "Python parent id": {max(0, n - 7)}, '
                    f'"Python id": {n}, "Ev Idx": {n}\n    }}\n  }},\n'
                )
            elif kind < 0.80:
                link += 1
                text = (
                    f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", '
                    f'"pid": 48213, "tid": 48213,\n    "ts": {ts}, "dur": {draw() * 9:.3f},\n'
                    f'    "args": {{\n      "External id": {n}, "cbid": 211, '
                    f'"correlation": {link}\n    }}\n  }},\n  {{\n    "ph": "s", '
                    f'"id": {link}, "pid": 48213, "tid": 48213, "ts": {ts},\n'
                    f'    "cat": "ac2g", "name": "ac2g"\n  }},\n'
                )
            elif kind < 0.92:
                text = (
                    f'  {{\n    "ph": "X", "cat": "kernel", '
                    f'"name": "{rng.choice(KERNELS)}", "pid": 0, '
                    f'"tid": 7,\n    "ts": {ts}, "dur": {draw() * 200:.3f},\n    "args": {{\n'
                    f'      "External id": {n},\n      "queued": 0, "device": 0, "context": 1,\n'
                    f'      "stream": 7, "correlation": {link},\n'
                    f'      "registers per thread": {rng.randint(16, 128)},\n'
                    f'      "shared memory": {rng.choice((0, 1024, 49152))},\n'
                    f'      "blocks per SM": {draw() * 90:.6f},\n'
                    f'      "warps per SM": {draw() * 60:.6f},\n'
                    f'      "grid": [{rng.randint(1, 9000)}, 1, 1],\n      "block": [128, 1, 1],\n'
                    f'      "est. achieved occupancy %": {rng.randint(0, 100)}\n    }}\n  }},\n'
                    f'  {{\n    "ph": "f", "id": {link}, "pid": 0, "tid": 7, "ts": {ts},\n'
                    f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
                )
            else:
                text = (
                    f'  {{\n    "ph": "i", "cat": "cpu_instant_event", '
                    f'"s": "t", "name": "[memory]",\n'
                    f'    "pid": 48213, "tid": 48213, "ts": {ts},\n    "args": {{\n'
                    f'      "Total Reserved": {rng.getrandbits(34)}, '
                    f'"Total Allocated": {rng.getrandbits(33)}, "Bytes": {rng.getrandbits(24)}, '
                    f'"Addr": {rng.getrandbits(46)}, "Device Id": 0, "Device Type": 1, '
                    f'"Ev Idx": {n}\n    }}\n  }},\n'
                )
            written += out.write(text)
        out.write('  {\n    "ph": "M", "name": "process_name", "pid": 48213, "tid": 0\n  }\n]}\n')


if __name__ == "__main__":
    main()
