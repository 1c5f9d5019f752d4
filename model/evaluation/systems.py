"""What translates: the eager model of a checkpoint, or the graphs of a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.samples import Samples
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.translator import Translator


@dataclass(frozen=True, kw_only=True)
class System:
    """An open translator. source: what it was made from, such as "checkpoint 3f2a91c0". samples:
    the sentences that the checkpoint carries."""

    translator: Translator
    source: str
    samples: Samples | None = None

    def describe(self, options: SearchOptions) -> dict[str, Any]:
        """What a number that it gave is told with."""
        found = self.translator.capabilities
        return {
            "source": self.source,
            "backend": found.name,
            "device": found.device,
            "precision": found.precision,
            "threads": found.detail.get("threads"),
            "search": options.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class SystemChoice:
    """Exactly one of a checkpoint and a bundle; backend and precision: of the bundle, its
    favourites if not given. threads: None leaves them to the backend."""

    checkpoint: Path | None = None
    bundle: Path | None = None
    backend: str | None = None
    precision: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.bundle is None):
            raise OptionError("give one of --checkpoint and --bundle")
        for name in ("backend", "precision"):
            if self.checkpoint is not None and getattr(self, name) is not None:
                raise OptionError(
                    f"--{name} belongs to --bundle; a checkpoint is run by PyTorch in fp32"
                )

    @contextmanager
    def open(self) -> Iterator[System]:
        """Raises what opening them raises: CheckpointError, BundleError, BackendError, ..."""
        if self.checkpoint is not None:
            from model.checkpoint import load_checkpoint
            from model.translation import open_translator

            checkpoint = load_checkpoint(self.checkpoint)
            with open_translator(checkpoint, threads=self.threads) as translator:
                source = f"checkpoint {checkpoint.sha256[:12]}"
                yield System(translator=translator, source=source, samples=checkpoint.samples)
            return
        assert self.bundle is not None
        bundle = Bundle.open(self.bundle)
        with Translator.open(
            bundle,
            backend=self.backend or "auto",
            precision=self.precision,
            threads=self.threads,
        ) as translator:
            yield System(translator=translator, source=f"bundle {bundle.bundle_id[:12]}")
