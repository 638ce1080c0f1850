"""The chain stands in the training loop, which is running at every step boundary."""

import torch
from harness import Watch, show
from torch import nn


def loop():  # row 43: still running
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch()
    for _ in range(8):
        x = model(torch.randn(4, 8))
        loss = (x * torch.sigmoid(x)).mean()
        loss.backward()
        optimizer.step()
        show(loss)
        watch.look()
    watch.write()


if __name__ == "__main__":
    loop()
