"""Graphs of a model, exported (and quantized) into a directory, and backends over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.calibrate import calibrate
from calibration.quantize import quantize_graph
from export.graphs import export_decoder_step, export_encoder, model_spec, special_token_ids
from export.half import convert_to_fp16
from model.eager import EagerBackend
from model.transformer import Transformer
from runtime.bundle import graph_file_name
from runtime.manifest import ModelSpec, Precision, Role, SpecialTokenIds
from runtime.onnxruntime_backend import Observer, OnnxRuntimeBackend

ROLES: tuple[Role, Role] = ("encoder", "decoder_step")


@dataclass(kw_only=True)
class Graphs:
    """A model and its graph files; backends are opened once a precision, with one thread."""

    model: Transformer
    directory: Path
    _opened: dict[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> ModelSpec:
        return model_spec(self.model.config)

    @property
    def special_ids(self) -> SpecialTokenIds:
        return special_token_ids(self.model.config)

    def path(self, role: Role, precision: Precision = "fp32") -> Path:
        return self.directory / graph_file_name(role, precision)

    def backend(self, precision: Precision = "fp32") -> OnnxRuntimeBackend:
        """The shared one; a test that closes needs `open`."""
        if precision not in self._opened:
            self._opened[precision] = self.open(precision)
        return self._opened[precision]

    def open(
        self,
        precision: Precision = "fp32",
        threads: int | None = 1,
        observer: Observer | None = None,
    ) -> OnnxRuntimeBackend:
        paths = (self.path("encoder", precision), self.path("decoder_step", precision))
        return OnnxRuntimeBackend(*paths, self.spec, self.special_ids, precision, threads, observer)

    def eager(self) -> EagerBackend:
        return EagerBackend(self.model)


def fp32_graphs(model: Transformer, directory: Path) -> Graphs:
    """Exports both graphs into the directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    graphs = Graphs(model=model, directory=directory)
    export_encoder(model, graphs.path("encoder"))
    export_decoder_step(model, graphs.path("decoder_step"))
    return graphs


def add_int8(graphs: Graphs, sources: Sequence[Sequence[int]]) -> None:
    """Adds the INT8 files, calibrated on sources: token ids, EOS included."""
    ranges = calibrate(
        graphs.path("encoder"),
        graphs.path("decoder_step"),
        graphs.spec,
        graphs.special_ids,
        sources,
        threads=1,
    )
    for role in ROLES:
        quantize_graph(graphs.path(role), graphs.path(role, "int8"), ranges)


def add_half(graphs: Graphs, full: Precision, half: Precision) -> None:
    """Adds the FP16 copies of the FP32 or INT8 files."""
    for role in ROLES:
        convert_to_fp16(graphs.path(role, full), graphs.path(role, half))
