"""The models of the census in torch.compile's graphs: what opfuse.backend replaces in each, and
whether the model still trains as without it.

`python captured.py [MODEL…]` trains each for a few steps as it is, from weights that are moved by
one roundoff, and through `opfuse.backend.optimize`; from the same random numbers. It prints the
largest relative difference of the losses that the roundoff makes and that opfuse makes, and the
graphs and chains. Exit status 1 when opfuse's is more than twice the roundoff's, and 1e-5. Needs
what models.py needs.
"""

import copy
import sys

import torch
from models import MODELS

import opfuse.backend

STEPS = 4
LIMIT = 1e-5


def losses(network, loss_of, run) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    found = []
    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = loss_of(run)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def row(name: str) -> bool:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, loss_of = MODELS[name]()
    network.train()
    plain, moved = copy.deepcopy(network), copy.deepcopy(network)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1 + 2**-23 * (2 * torch.randint_like(parameter, 2) - 1))
    before = len(opfuse.backend.reports())
    expected = losses(plain, loss_of, plain)
    found = losses(network, loss_of, opfuse.backend.optimize(network, allow="E2"))
    worst, noise = (
        max(abs(a - b) / abs(a) for a, b in zip(expected, other))
        for other in (found, losses(moved, loss_of, moved))
    )
    reports = opfuse.backend.reports()[before:]
    chains: dict[str, int] = {}
    for report in reports:
        for rule, count in report.replaced().items():
            chains[rule] = chains.get(rule, 0) + count
    declined = [report.declined for report in reports if report.declined]
    said = ", ".join(f"{count} {rule}" for rule, count in sorted(chains.items())) or "nothing"
    print(f"{name:22} {noise:8.1e} {worst:8.1e}  {len(reports)} graphs: {said}", flush=True)
    for reason in declined:
        print(f"{'':22} declined: {reason}", flush=True)
    return worst <= max(LIMIT, 2 * noise)


def main() -> int:
    names = sys.argv[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"captured.py: expected a model of models.py, found {unknown[0]}", file=sys.stderr)
        return 2
    return 0 if all([row(name) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
