"""The search options that a checkpoint asks for, such as a length penalty that was chosen for it.

They stand in the checkpoint's metadata; whoever opens it searches with them where not told
otherwise, and bundles made from it take them over.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from model.errors import CheckpointError
from runtime.errors import OptionError
from runtime.options import SearchOptions

_log = logging.getLogger(__name__)

_KEY = "search_defaults"
_ALWAYS = ("beam_size", "length_penalty")


def search_defaults(checkpoint: Checkpoint) -> SearchOptions:
    """Raises CheckpointError where they are not options of this version."""
    try:
        return SearchOptions.from_json(checkpoint.metadata.get(_KEY, {}))
    except (OptionError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{_KEY} in the checkpoint's config.json can't be used ({error}); copy the checkpoint "
            "again, or train anew"
        ) from error


def write_search_defaults(path: Path, options: SearchOptions) -> str:
    """Writes the checkpoint again, with these options; returns its new sha256.

    Raises CheckpointError as load_checkpoint and save_checkpoint do.
    """
    checkpoint = load_checkpoint(path)
    sha256 = save_checkpoint(
        path,
        model=checkpoint.model,
        tokenizer_proto=checkpoint.tokenizer_proto,
        metadata={**checkpoint.metadata, _KEY: told(options)},
        samples=checkpoint.samples,
    )
    _log.info("%s: its search defaults are now %s", path, told(options))
    return sha256


def told(options: SearchOptions) -> dict[str, Any]:
    """Beam size and length penalty, and what else is not as usual."""
    usual = SearchOptions().to_json()
    return {
        name: value
        for name, value in options.to_json().items()
        if name in _ALWAYS or value != usual[name]
    }
