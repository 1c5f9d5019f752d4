"""A bundle whose graphs are empty files, run by a FakeBackend: the command line without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, Logits, copying_logits
from support.tiny_tokenizer import tiny_tokenizer

from runtime.backend import Backend
from runtime.bundle import Bundle, finish_manifest, graph_file_name, write_bundle
from runtime.errors import BackendError, EngineError, UnavailableError
from runtime.manifest import GraphSpec, Manifest, ModelSpec, Precision, Role, TextSpec
from runtime.registry import BACKENDS, Entry

MAX_SOURCE = 48


def write_fake_bundle(
    path: Path,
    *,
    precisions: tuple[Precision, ...] = ("fp32",),
    normalizer_version: int = 1,
    vocab_size: int | None = None,
    search_defaults: dict[str, Any] | None = None,
) -> Path:
    """Everything but graphs that run."""
    roles: tuple[Role, ...] = ("encoder", "decoder_step")
    tokenizer = tiny_tokenizer()
    manifest = Manifest(
        model=ModelSpec(
            encoder_layers=1,
            decoder_layers=1,
            num_heads=1,
            head_dim=4,
            vocab_size=vocab_size or tokenizer.size,
            max_source=MAX_SOURCE,
            max_target=MAX_SOURCE,
        ),
        special_ids=SPECIAL_IDS,
        text=TextSpec(
            source_tokenizer="tokenizer.model",
            target_tokenizer="tokenizer.model",
            normalizer_version=normalizer_version,
        ),
        graphs=tuple(
            GraphSpec(
                role=role,
                precision=precision,
                variant="portable",
                files=(graph_file_name(role, precision),),
                inputs=(),
                outputs=(),
                opset=20,
            )
            for role in roles
            for precision in precisions
        ),
        files={},
        search_defaults=search_defaults or {},
    )
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_bytes(tokenizer.model_proto)
        for graph in manifest.graphs:
            (directory / graph.files[0]).write_bytes(b"")
        finish_manifest(directory, manifest)
    return path


def make_backend(
    bundle: Bundle, *, precision: str, threads: int | None, logits: Logits | None = None
) -> Backend:
    """Repeats its input, unless other logits are given."""
    size = bundle.manifest.model.vocab_size
    return FakeBackend(
        logits or copying_logits(size), size, max_source=MAX_SOURCE, max_target=MAX_SOURCE
    )


def slow_backend(bundle: Bundle, *, precision: str, threads: int | None) -> Backend:
    """Copies as well, but a source that holds a given word takes for ever."""
    import time

    plain = copying_logits(bundle.manifest.model.vocab_size)
    stuck = tuple(tiny_tokenizer().encode_source("number"))

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        if source == stuck and EOS in source:
            time.sleep(60)
        return plain(source, prefix)

    return make_backend(bundle, precision=precision, threads=threads, logits=logits)


def failing_backend(bundle: Bundle, *, precision: str, threads: int | None) -> Backend:
    """Copies as well, but fails on a given source, once the sources before it have had time."""
    import time

    plain = copying_logits(bundle.manifest.model.vocab_size)
    bad = tuple(tiny_tokenizer().encode_source("number"))

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        if source == bad:
            time.sleep(1)
            raise BackendError("this source fails")
        return plain(source, prefix)

    return make_backend(bundle, precision=precision, threads=threads, logits=logits)


def broken_backend(bundle: Bundle, *, precision: str, threads: int | None) -> Backend:
    raise BackendError("this backend is broken")


def engine_backend(bundle: Bundle, *, precision: str, threads: int | None, build: bool) -> Backend:
    """Has no engine that fits, and builds one where it may."""
    if not build:
        raise EngineError("no engine fits")
    return make_backend(bundle, precision=precision, threads=threads)


def broken_engine_backend(
    bundle: Bundle, *, precision: str, threads: int | None, build: bool
) -> Backend:
    raise EngineError("this engine can't be built")


def lacking_check() -> None:
    """The check of a backend that this machine lacks something for."""
    raise UnavailableError("a fake GPU is needed; there is none", short="no fake GPU")


def fake_entry(factory: str = "make_backend") -> Entry:
    return Entry(
        factory=f"support.fake_bundle:{factory}",
        package="numpy",
        extra="cpu",
        precisions=("int8", "fp32"),
    )


def main() -> int:
    """`python -m support.fake_bundle FACTORY ARGS`: leanseq with the fake in ORT's place."""
    import sys

    from runtime.cli import cli
    from runtime.console import run

    BACKENDS["onnxruntime"] = fake_entry(sys.argv[1])
    return run(cli, sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
