"""A loop of Accelerate: prepared model, optimizer and loader; `accelerate launch` runs it too."""

import sys

import torch
from accelerate import Accelerator
from model import Gated, Sequences

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = Gated()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Sequences(16 * 400), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, batch in enumerate(loader):
    if step == int(sys.argv[1]):
        break
    loss = model(**batch)["loss"]
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if step % 20 == 0:
        accelerator.print(f"{loss.item():.6f}")
