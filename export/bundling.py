"""From a checkpoint and calibration sentences to the files of a bundle."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import calibration
import model
from calibration.calibrate import calibrate
from calibration.fused import count_fused_int8
from calibration.quantize import QuantizeReport, quantize_graph
from calibration.ranges import Ranges
from calibration.statistics import DEFAULT_SENTENCES, Method
from export.check import check_graph, matmul_names
from export.cpu_static.files import write_static_graphs
from export.errors import ExportError
from export.graphs import OPSET, export_decoder_step, export_encoder, model_spec, special_token_ids
from export.half import convert_to_fp16
from model.checkpoint import Checkpoint
from model.config import ModelConfig
from model.search_defaults import search_defaults, told
from runtime.bundle import TOKENIZER_NAME, finish_manifest, graph_file_name, write_bundle
from runtime.manifest import GraphSpec, Manifest, Precision, Role, TextSpec
from runtime.normalizer import NORMALIZER_VERSION, normalize_source
from runtime.tokenizer import Tokenizer
from runtime.version import __version__

logger = logging.getLogger(__name__)

ROLES: tuple[Role, Role] = ("encoder", "decoder_step")
PRODUCT_REASON = "it multiplies two activations"
_LIBRARIES = ("torch", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class BundleRecipe:
    """What decides the bytes of a bundle, besides the checkpoint and the libraries.

    calibration_lines: source sentences, for INT8 only. method: how ranges are taken from what they
    make the graphs compute (docs/decisions/0005-calibration.md). sentences: at most so many of the
    lines, evenly spread. int8_logits: None quantizes the logits of large vocabularies only.
    """

    int8: bool = False
    calibration_lines: tuple[str, ...] = ()
    method: Method
    percentile: float
    sentences: int = DEFAULT_SENTENCES
    int8_logits: bool | None = None

    def chosen_lines(self) -> list[str]:
        """The lines to calibrate on: those that are not empty, evenly spread."""
        lines = [line for line in self.calibration_lines if normalize_source(line)]
        if len(lines) <= self.sentences:
            return lines
        return [lines[i * len(lines) // self.sentences] for i in range(self.sentences)]

    def source(self, checkpoint_sha256: str) -> dict[str, Any]:
        """What the manifest says of where the bundle came from: equal values, equal bytes."""
        source: dict[str, Any] = {
            "checkpoint": checkpoint_sha256,
            "leanseq": __version__,
            "code": _code_sha256(),
            "libraries": {name: version(name).split("+")[0] for name in _LIBRARIES},
        }
        if self.int8:
            lines = self.chosen_lines()
            source["calibration"] = {
                "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
                "sentences": len(lines),
                "method": self.method,
                "percentile": self.percentile if self.method == "percentile" else None,
            }
            source["int8_logits"] = self.int8_logits
        return source


def make_bundle(checkpoint: Checkpoint, recipe: BundleRecipe, out: Path) -> None:
    """Writes the bundle of a checkpoint to `out`, whose lock the caller holds; all or nothing.

    FP32 and FP16 graphs always; INT8, and INT8 with FP16 between, where the recipe says so; of FP32
    and INT8 also the variant for CPUs, where the model's form allows it.
    Raises ExportError or CalibrationError, and leaves what was there, when a graph does not come
    out as the contract has it.
    """
    with write_bundle(out, locked=True) as directory:
        (directory / TOKENIZER_NAME).write_bytes(checkpoint.tokenizer_proto)
        _export_fp32(checkpoint, directory)
        precisions: dict[Precision, dict[Role, QuantizeReport | None]] = {
            "fp32": dict.fromkeys(ROLES),
            "fp16": dict.fromkeys(ROLES),
        }
        _convert(directory, "fp32", "fp16")
        if recipe.int8:
            ranges = _calibrate(checkpoint, recipe, directory)
            precisions["int8"] = _quantize(directory, ranges, recipe.int8_logits)
            precisions["int8_fp16"] = _quantize_for_gpus(directory, ranges, recipe.int8_logits)
        graphs = [
            _spec(checkpoint.config, directory, role, precision, report)
            for precision, by_role in precisions.items()
            for role, report in by_role.items()
        ]
        graphs += _static_fp32(checkpoint.config, directory)
        if recipe.int8:
            graphs += _static_int8(checkpoint.config, directory, ranges, recipe.int8_logits)
        manifest = finish_manifest(directory, _manifest(checkpoint, recipe, graphs))
    logger.info("bundle: %s written, id %s", out, manifest.bundle_id[:12])


def _export_fp32(checkpoint: Checkpoint, directory: Path) -> None:
    for role, export in (("encoder", export_encoder), ("decoder_step", export_decoder_step)):
        with _stage(f"export: {role} in fp32"):
            export(checkpoint.model, _path(directory, role, "fp32"))  # type: ignore[arg-type]


def _quantize(
    directory: Path, ranges: Ranges, int8_logits: bool | None
) -> dict[Role, QuantizeReport | None]:
    """Writes the INT8 graphs, and checks that ONNX Runtime runs them as such."""
    reports: dict[Role, QuantizeReport | None] = {}
    for role in ROLES:
        target = _path(directory, role, "int8")
        report = quantize_graph(
            _path(directory, role, "fp32"), target, ranges, quantize_logits=int8_logits
        )
        expected, fused = len(report.int8_matmuls), count_fused_int8(target)
        if fused != expected:
            raise ExportError(
                f"{role} in INT8: ONNX Runtime runs {fused} MatMuls in INT8, expected {expected}; "
                "this version of onnxruntime does not fuse what leanseq writes: install the one in "
                "constraints.txt"
            )
        logger.info(
            "quantize: %s: %d MatMuls in INT8, %d kept float, weights %.3f of FP32",
            role, expected, len(report.float_matmuls), report.size_ratio,
        )  # fmt: skip
        reports[role] = report
    return reports


def _quantize_for_gpus(
    directory: Path, ranges: Ranges, int8_logits: bool | None
) -> dict[Role, QuantizeReport | None]:
    """Writes the graphs in INT8 with FP16 between, for TensorRT.

    Logits stay float where nobody said otherwise: their table is the embedding's too, which an INT8
    copy would only stand beside (docs/decisions/0007-engines.md).
    """
    reports: dict[Role, QuantizeReport | None] = {}
    with _stage("quantize: int8 with fp16 between"), tempfile.TemporaryDirectory() as name:
        for role in ROLES:
            full = Path(name) / graph_file_name(role, "int8")
            reports[role] = quantize_graph(
                _path(directory, role, "fp32"), full, ranges, quantize_logits=int8_logits or False
            )
            convert_to_fp16(full, _path(directory, role, "int8_fp16"))
    return reports


def _static_fp32(config: ModelConfig, directory: Path) -> list[GraphSpec]:
    with _stage("cpu_static: fp32"):
        sources = {role: _path(directory, role, "fp32") for role in ROLES}
        return write_static_graphs(sources, directory, model_spec(config), "fp32", opset=OPSET)


def _static_int8(
    config: ModelConfig, directory: Path, ranges: Ranges, int8_logits: bool | None
) -> list[GraphSpec]:
    """The variant for CPUs, made of Q/DQ graphs whose logits are in INT8 whatever the vocabulary's
    size, unless somebody said otherwise: their table is the embedding's too there."""
    with _stage("cpu_static: int8"), tempfile.TemporaryDirectory() as name:
        reports: dict[Role, QuantizeReport] = {}
        sources = {role: Path(name) / graph_file_name(role, "int8") for role in ROLES}
        for role, path in sources.items():
            reports[role] = quantize_graph(
                _path(directory, role, "fp32"),
                path,
                ranges,
                quantize_logits=int8_logits is not False,
            )
        written = write_static_graphs(sources, directory, model_spec(config), "int8", opset=OPSET)
    return [
        dataclasses.replace(
            spec,
            int8_names=reports[spec.role].int8_matmuls,
            float_matmuls=reports[spec.role].float_matmuls,
        )
        for spec in written
    ]


def _calibrate(checkpoint: Checkpoint, recipe: BundleRecipe, directory: Path) -> Ranges:
    lines = recipe.chosen_lines()
    tokenizer = Tokenizer(checkpoint.tokenizer_proto)
    sources = [tokenizer.encode_source(line) for line in lines]
    with _stage(f"calibrate: beam searches over {len(lines)} sentences, {recipe.method}"):
        return calibrate(
            _path(directory, "encoder", "fp32"),
            _path(directory, "decoder_step", "fp32"),
            model_spec(checkpoint.config),
            special_token_ids(checkpoint.config),
            sources,
            method=recipe.method,
            percentile=recipe.percentile,
        )


def _convert(directory: Path, full: Precision, half: Precision) -> None:
    with _stage(f"convert: {full} to {half}"):
        for role in ROLES:
            convert_to_fp16(_path(directory, role, full), _path(directory, role, half))


def _spec(
    config: ModelConfig,
    directory: Path,
    role: Role,
    precision: Precision,
    report: QuantizeReport | None,
) -> GraphSpec:
    """Checks the graph against the contract, and that nothing quantized was lost on the way."""
    spec = check_graph(
        _path(directory, role, precision), role, precision, model_spec(config), opset=OPSET
    )
    expected = 0 if report is None else len(report.int8_matmuls)
    if spec.int8_matmuls != expected:
        raise ExportError(
            f"{role} in {precision} has {spec.int8_matmuls} quantized MatMuls, expected "
            f"{expected}: the conversion lost some, report this"
        )
    if report is None:
        return spec
    products = {
        name: PRODUCT_REASON
        for name in matmul_names(_path(directory, role, precision))
        if name not in report.int8_matmuls and name not in report.float_matmuls
    }
    return dataclasses.replace(
        spec, int8_names=report.int8_matmuls, float_matmuls={**report.float_matmuls, **products}
    )


def _manifest(checkpoint: Checkpoint, recipe: BundleRecipe, graphs: list[GraphSpec]) -> Manifest:
    return Manifest(
        model=model_spec(checkpoint.config),
        special_ids=special_token_ids(checkpoint.config),
        text=TextSpec(
            source_tokenizer=TOKENIZER_NAME,
            target_tokenizer=TOKENIZER_NAME,
            normalizer_version=NORMALIZER_VERSION,
        ),
        graphs=tuple(graphs),
        files={},
        search_defaults=told(search_defaults(checkpoint)),
        source=recipe.source(checkpoint.sha256),
    )


@functools.cache
def _code_sha256() -> str:
    """Of the sources that decide a bundle's bytes: a bundle of older code is not taken for new."""
    folders = {Path(__file__).parent, *map(Path, calibration.__path__), *map(Path, model.__path__)}
    folders.add(Path(__file__).parent / "cpu_static")
    files = [file for folder in folders for file in folder.glob("*.py")]
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        digest.update(f"{file.parent.name}/{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _path(directory: Path, role: Role, precision: Precision) -> Path:
    return directory / graph_file_name(role, precision)


@contextmanager
def _stage(what: str) -> Iterator[None]:
    start = time.perf_counter()
    logger.info("%s ...", what)
    yield
    logger.info("%s: %.1f s", what, time.perf_counter() - start)
