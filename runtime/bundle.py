"""A bundle on disk: opened, checked, read; written as a whole. Only this module knows its files.

manifest.json              what it is; a SHA-256 for every other file
source.model, target.model SentencePiece models (one file where they are the same)
ROLE.PRECISION.onnx        the graphs; ROLE.PRECISION.cpu_static.onnx those for CPUs alone
engines/                   TensorRT engines (runtime.engines.store): no part of its identity either
report.json                what was measured on it: not part of its identity, may be rewritten
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from runtime.directory import recover, replace_directory, write_text_atomically
from runtime.errors import BundleError
from runtime.manifest import FileSpec, GraphSpec, Manifest, Precision, Role, canonical_json

MANIFEST_NAME = "manifest.json"
REPORT_NAME = "report.json"
TOKENIZER_NAME = "tokenizer.model"
ENGINES_NAME = "engines"
_BUNDLE_FILES = (
    MANIFEST_NAME,
    REPORT_NAME,
    f".{REPORT_NAME}.tmp-*",
    "*.model",
    "*.onnx",
    "*.onnx.data",
)


def graph_file_name(role: Role, precision: Precision, variant: str = "portable") -> str:
    """encoder.fp32.onnx; decoder_step.int8.cpu_static.onnx."""
    middle = "" if variant == "portable" else f".{variant}"
    return f"{role}.{precision}{middle}.onnx"


def weights_file_name(precision: Precision, variant: str) -> str:
    """Of the weights that several graphs refer to: weights.int8.cpu_static.onnx.data."""
    return f"weights.{precision}.{variant}.onnx.data"


class Bundle:
    """An opened bundle. Files are checked against their hashes when they are first asked for."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._verified: set[str] = set()

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Raises BundleError when there is no bundle at `path`, or its manifest can't be read."""
        path = Path(path)
        recover(path)
        if not path.is_dir():
            found = "is a file" if path.exists() else "does not exist"
            raise BundleError(
                f"{path} {found}; expected a bundle: a directory made by `python -m export build`"
            )
        manifest_path = path / MANIFEST_NAME
        try:
            values = json.loads(manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BundleError(
                f"{path} holds no {MANIFEST_NAME}; expected a bundle, made by "
                "`python -m export build`"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise BundleError(f"{manifest_path} can't be read ({error}); rebuild it") from error
        return cls(path, Manifest.from_json(values))

    @property
    def bundle_id(self) -> str:
        return self.manifest.bundle_id

    def file(self, name: str) -> Path:
        """The path of a file of the bundle, once its content has been found to be what was built.

        Raises BundleError when it is missing, truncated or altered.
        """
        spec = self.manifest.files[name]
        path = self.path / name
        if name in self._verified:
            return path
        try:
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise BundleError(f"{path} leads outside the bundle; don't use this bundle")
            size = path.stat().st_size
            if size != spec.size:
                raise BundleError(
                    f"{path} has {size:,} bytes, expected {spec.size:,}: it is truncated or "
                    "altered; copy or build the bundle again"
                )
            digest = sha256_of(path)
        except OSError as error:
            raise BundleError(
                f"{path} can't be read ({error.strerror}); copy or build the bundle again"
            ) from error
        if digest != spec.sha256:
            raise BundleError(
                f"{path} has SHA-256 {digest[:12]}..., expected {spec.sha256[:12]}...: it was "
                "altered; copy or build the bundle again"
            )
        self._verified.add(name)
        return path

    def verify(self) -> None:
        """Checks every file. Raises BundleError for the first that is not as it was built."""
        for name in self.manifest.files:
            self.file(name)

    def tokenizer_protos(self) -> tuple[bytes, bytes]:
        """The serialized SentencePiece models of source and target."""
        text = self.manifest.text
        source = self.file(text.source_tokenizer).read_bytes()
        if text.target_tokenizer == text.source_tokenizer:
            return source, source
        return source, self.file(text.target_tokenizer).read_bytes()

    def precisions(self) -> tuple[Precision, ...]:
        """Precisions for which both graphs are there, in the manifest's order."""
        have = {(graph.role, graph.precision) for graph in self.manifest.graphs}
        ordered = dict.fromkeys(graph.precision for graph in self.manifest.graphs)
        return tuple(p for p in ordered if {("encoder", p), ("decoder_step", p)} <= have)

    def graph(self, role: Role, precision: Precision, variant: str = "portable") -> GraphSpec:
        """Raises BundleError, naming what there is, when the bundle holds no such graph."""
        for graph in self.manifest.graphs:
            if (graph.role, graph.precision, graph.variant) == (role, precision, variant):
                return graph
        have = ", ".join(self.precisions()) or "none"
        raise BundleError(
            f"{self.path} holds no {variant} {role} graph in {precision}; it has: {have}. Build it "
            "with `python -m export build`, adding --int8 for INT8"
        )

    def cpu_graph(self, role: Role, precision: Precision) -> GraphSpec:
        """The graph that a CPU loads: the variant made for CPUs where there is one."""
        for graph in self.graphs_of(precision):
            if (graph.role, graph.variant) == (role, "cpu_static"):
                return graph
        return self.graph(role, precision)

    def graphs_of(self, precision: Precision) -> tuple[GraphSpec, ...]:
        """All graphs in that precision, of any variant."""
        return tuple(graph for graph in self.manifest.graphs if graph.precision == precision)

    def graph_size(self, graph: GraphSpec) -> int:
        """Bytes of its files."""
        return sum(self.manifest.files[name].size for name in graph.files)

    def graph_path(self, graph: GraphSpec) -> Path:
        """The path of the ONNX file, after checking it and its external data."""
        for name in graph.files[1:]:
            self.file(name)
        return self.file(graph.files[0])

    def precision_size(self, precision: Precision) -> int:
        """Bytes of what one precision needs: the graphs that a CPU loads, and the tokenizers."""
        text = self.manifest.text
        names = {text.source_tokenizer, text.target_tokenizer}
        for role in sorted({graph.role for graph in self.graphs_of(precision)}):
            names |= set(self.cpu_graph(role, precision).files)
        return sum(self.manifest.files[name].size for name in names)

    def size(self) -> int:
        """Bytes of all files that the manifest lists, and of the manifest."""
        listed = sum(file.size for file in self.manifest.files.values())
        return listed + (self.path / MANIFEST_NAME).stat().st_size

    def read_report(self) -> dict[str, Any] | None:
        """What was measured on this very bundle; None where nothing was, or it was edited since."""
        try:
            report = json.loads((self.path / REPORT_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(report, dict) or report.get("bundle_id") != self.bundle_id:
            return None
        return report if report.pop("sha256", None) == _sha256_of_json(report) else None

    def write_report(self, report: dict[str, Any]) -> None:
        """Replaces report.json; adds the bundle's id, by which it is recognised, and a hash."""
        values = json.loads(json.dumps({**report, "bundle_id": self.bundle_id}))
        values["sha256"] = _sha256_of_json(values)
        text = json.dumps(values, indent=2, sort_keys=True)
        write_text_atomically(self.path / REPORT_NAME, text + "\n")


def check_replaceable(path: Path) -> None:
    """Raises BundleError if `path` is a directory that holds more than a bundle does, whole or not:
    replacing it would remove somebody's files."""
    for file in sorted(path.iterdir()) if path.is_dir() else ():
        ours = _holds_engines(file) if file.is_dir() else _is_bundle_file(file)
        if not ours:
            raise BundleError(
                f"{path} holds {file.name}, which is no part of a bundle and would be lost; write "
                "the bundle to a new or empty directory, or over another bundle"
            )


def _is_bundle_file(file: Path) -> bool:
    return any(file.match(pattern) for pattern in _BUNDLE_FILES)


def _holds_engines(directory: Path) -> bool:
    """Whether it is `engines` and holds engines only: directories ROLE.PRECISION.TARGET.LIBRARY,
    and what their writers leave, whose names start with a dot."""
    if directory.name != ENGINES_NAME or directory.is_symlink():
        return False
    roles = get_args(Role)
    return all(
        entry.name.lstrip(".").split(".")[0] in roles
        and (entry.is_dir() or entry.name.startswith("."))
        for entry in directory.iterdir()
    )


@contextmanager
def write_bundle(path: Path, *, locked: bool = False) -> Iterator[Path]:
    """Gives a temporary directory to fill; at the end it must hold what `finish_manifest` made.

    Raises BundleError as check_replaceable does, and where a file can't be written.
    """
    check_replaceable(path)
    try:
        with replace_directory(path, locked=locked) as temporary:
            yield temporary
            if not (temporary / MANIFEST_NAME).is_file():
                raise BundleError(f"{path}: nothing was written, since no manifest was finished")
    except OSError as error:
        raise BundleError(
            f"the bundle can't be written to {path} ({error.strerror or error}); free some space, "
            "or choose another directory"
        ) from error


def finish_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Hashes every file in `directory`, puts them into the manifest, writes and returns it."""
    files = {
        file.relative_to(directory).as_posix(): FileSpec(
            sha256=sha256_of(file), size=file.stat().st_size
        )
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.name not in (MANIFEST_NAME, REPORT_NAME)
    }
    values = {**manifest.to_json(), "files": {n: vars(spec) for n, spec in files.items()}}
    finished = Manifest.from_json(json.loads(canonical_json(values)))
    text = json.dumps(finished.to_json(), indent=1, sort_keys=True, ensure_ascii=False)
    (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8", newline="\n")
    return finished


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(values: Any) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
