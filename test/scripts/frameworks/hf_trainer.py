"""The Trainer of transformers, with batches of two lengths."""

import sys
import tempfile

import torch
from model import Gated, Sequences
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
steps = int(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=16, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(Gated(), arguments, train_dataset=Sequences(16 * 400, lengths=(24, 32)))
    print(f"{trainer.train().training_loss:.6f}")
