"""What tests of operators do with arguments and results."""

import torch


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def tensors(arguments):
    return {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}


def trained(arguments):
    return {k: v for k, v in tensors(arguments).items() if v.requires_grad}


def differentiable(results):
    """The results that have a gradient: statistics that are handed on have none."""
    return [r for r in results if r.requires_grad]


def cotangents(results):
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in results
    ]


def run(function, arguments):
    """Results and gradients by name."""
    results = as_tuple(function(**arguments))
    wanted = trained(arguments)
    through = differentiable(results)
    grads = torch.autograd.grad(through, list(wanted.values()), cotangents(through))
    return {
        **{f"result {i}": r.detach() for i, r in enumerate(results)},
        **{f"gradient of {name}": g for name, g in zip(wanted, grads)},
    }


def raised(arguments):
    def raise_one(v):
        if not isinstance(v, torch.Tensor) or v.dtype == torch.bool:
            return v
        return v.detach().double().requires_grad_(v.requires_grad)

    return {k: raise_one(v) for k, v in arguments.items()}
