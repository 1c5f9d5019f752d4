"""How bundle-schema-1/ was made: `PYTHONPATH=. python tests/golden/make.py DIRECTORY`.

The committed bundle is never made again: tests/runtime/test_golden_bundle.py opens it for ever, to
see that later versions still read what this one wrote. A new schema gets a bundle of its own.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from export.bundling import BundleRecipe, make_bundle
from model.checkpoint import load_checkpoint, save_checkpoint
from model.config import ModelConfig, StackConfig
from model.tokenizer_training import train_tokenizer
from model.transformer import Transformer
from runtime.bundle import MANIFEST_NAME, Bundle, finish_manifest
from runtime.directory import lock_directory
from runtime.search import pad_sources
from runtime.tokenizer import Tokenizer

UNITS = {"days": "Tagen", "weeks": "Wochen", "months": "Monaten", "years": "Jahren"}
PAIRS = [
    pair
    for number in range(2, 100)
    for unit, translated in UNITS.items()
    for pair in (
        (f"in {number} {unit}", f"in {number} {translated}"),
        (f"{number} {unit} ago", f"vor {number} {translated}"),
    )
]
UPDATES = 1500


def train_model(tokenizer: Tokenizer) -> Transformer:
    """One layer each, d_model 16, taught all of PAIRS."""
    torch.manual_seed(1)
    stack = StackConfig(num_layers=1, num_heads=2, ffn_dim=32)
    config = ModelConfig(
        src_vocab_size=tokenizer.size,
        tgt_vocab_size=tokenizer.size,
        d_model=16,
        head_dim=8,
        encoder=stack,
        decoder=stack,
        dropout=0.0,
        max_source=32,
        max_target=32,
    )
    model = Transformer(config)
    pad, start = config.special_ids.pad_id, config.special_ids.decoder_start_id
    sources, targets = zip(*PAIRS, strict=True)
    src_ids, src_mask = (
        torch.from_numpy(array).clone()
        for array in pad_sources([tokenizer.encode_source(text) for text in sources], pad)
    )
    target_ids, _ = pad_sources([tokenizer.encode_target(text) for text in targets], pad)
    wanted = torch.from_numpy(target_ids).long()
    given = F.pad(wanted, (1, 0), value=start)[:, :-1]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, UPDATES)
    for update in range(UPDATES):
        rows = torch.randperm(len(PAIRS))[:128]
        logits = model(src_ids[rows], src_mask[rows], given[rows])
        loss = F.cross_entropy(logits.flatten(0, 1), wanted[rows].flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 100 == 0:
            print(f"update {update}: loss {loss.item():.4f}", file=sys.stderr)
    return model


def keep_what_a_cpu_runs(directory: Path) -> None:
    """Drops the FP16 graphs, to stay small, and finishes the manifest again."""
    manifest = Bundle.open(directory).manifest
    kept = tuple(g for g in manifest.graphs if g.precision in ("fp32", "int8"))
    for graph in manifest.graphs:
        if graph not in kept:
            (directory / graph.files[0]).unlink()
    (directory / MANIFEST_NAME).unlink()
    finish_manifest(directory, dataclasses.replace(manifest, graphs=kept, files={}, raw={}))


def main(out: Path) -> None:
    """Writes the bundle to `out`."""
    proto = train_tokenizer(PAIRS, 300)
    model = train_model(Tokenizer(proto)).eval()
    with tempfile.TemporaryDirectory() as directory:
        checkpoint_path = Path(directory) / "checkpoint"
        save_checkpoint(checkpoint_path, model=model, tokenizer_proto=proto)
        recipe = BundleRecipe(
            int8=True,
            calibration_lines=tuple(source for source, _ in PAIRS[::8]),
            method="minmax",
            percentile=99.99,
        )
        with lock_directory(out):
            make_bundle(load_checkpoint(checkpoint_path), recipe, out)
    keep_what_a_cpu_runs(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
