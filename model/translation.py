"""The eager model behind the same Translator that bundles have."""

from __future__ import annotations

from pathlib import Path

from model.checkpoint import Checkpoint, load_checkpoint
from model.eager import EagerBackend, special_token_ids
from model.search_defaults import search_defaults
from runtime.cores import check_threads
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator


def open_translator(
    checkpoint: Checkpoint | Path | str, *, threads: int | None = None
) -> Translator:
    """Translates with PyTorch, from a checkpoint or the directory that holds one.

    It searches with the checkpoint's defaults (model.search_defaults) where not told otherwise.
    threads: PyTorch's, for the whole process; None leaves them alone. Raises CheckpointError,
    OptionError.
    """
    check_threads(threads)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    return Translator(
        EagerBackend(checkpoint.model, threads),
        Tokenizer(checkpoint.tokenizer_proto),
        special_token_ids(checkpoint.config),
        defaults=search_defaults(checkpoint),
    )
