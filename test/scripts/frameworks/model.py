"""A small model that spells SiLU as two operators, and sequences for it."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, 4)

    def forward(self, input_ids, labels=None):
        x = self.up(self.embed(input_ids))
        x = x * torch.sigmoid(x)
        logits = self.down(x.mean(1))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Sequences(torch.utils.data.Dataset):
    """`length` tokens a sample, or one of `lengths` for each batch of `batch` samples."""

    def __init__(self, samples, lengths=(32,), batch=16):
        generator = torch.Generator().manual_seed(0)
        self.rows = []
        for index in range(samples):
            length = lengths[index // batch % len(lengths)]
            row = torch.randint(0, 64, (length,), generator=generator)
            self.rows.append({"input_ids": row, "labels": int(row.sum()) % 4})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]
