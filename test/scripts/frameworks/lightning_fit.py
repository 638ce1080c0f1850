"""Lightning's Trainer."""

import sys
import tempfile
import warnings

import lightning
import torch
from model import Gated, Sequences

warnings.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Gated()

    def training_step(self, batch, index):
        loss = self.net(**batch)["loss"]
        if index % 20 == 0:
            print(f"{loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_steps=int(sys.argv[1]), accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Sequences(16 * 400), batch_size=16))
