"""A bundle opens only as it was built; anything else is said in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.bundle import Bundle, finish_manifest, graph_file_name, write_bundle
from runtime.errors import BundleError
from runtime.manifest import (
    GraphSpec,
    Manifest,
    ModelSpec,
    SpecialTokenIds,
    TensorSpec,
    TextSpec,
)

ENCODER = graph_file_name("encoder", "fp32")


def manifest() -> Manifest:
    ids = TensorSpec(name="src_ids", dtype="int32", dims=("B", "S"))
    graphs = tuple(
        GraphSpec(
            role=role,
            precision="fp32",
            variant="portable",
            files=(graph_file_name(role, "fp32"),),
            inputs=(ids,),
            outputs=(TensorSpec(name="cross_k.0", dtype="float32", dims=("B", 4, "S", 32)),),
            opset=20,
        )
        for role in ("encoder", "decoder_step")
    )
    return Manifest(
        model=ModelSpec(
            encoder_layers=1,
            decoder_layers=1,
            num_heads=4,
            head_dim=32,
            vocab_size=64,
            max_source=256,
            max_target=None,
        ),
        special_ids=SpecialTokenIds(pad=0, unk=1, bos=2, eos=3, decoder_start=2, banned=(0, 1, 2)),
        text=TextSpec(
            source_tokenizer="tokenizer.model",
            target_tokenizer="tokenizer.model",
            normalizer_version=1,
        ),
        graphs=graphs,
        files={},
        search_defaults={"beam_size": 4},
        source={"checkpoint": "abc"},
    )


def write(path: Path, content: str = "graph") -> Path:
    spec = manifest()
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_text("pieces")
        for graph in spec.graphs:
            (directory / graph.files[0]).write_text(content)
        finish_manifest(directory, spec)
    return path


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = path / "manifest.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def test_round_trip(tmp_path: Path) -> None:
    bundle = Bundle.open(write(tmp_path / "bundle"))
    bundle.verify()
    assert bundle.precisions() == ("fp32",)
    assert bundle.graph("encoder", "fp32").inputs[0].dims == ("B", "S")
    assert bundle.graph_path(bundle.graph("encoder", "fp32")).name == ENCODER
    assert bundle.tokenizer_protos() == (b"pieces", b"pieces")
    assert bundle.manifest.special_ids.banned == (0, 1, 2)
    assert bundle.size() > len("pieces") + 2 * len("graph")


def test_two_writes_are_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()
    assert Bundle.open(one).bundle_id == Bundle.open(two).bundle_id
    other = write(tmp_path / "three", content="another")
    assert Bundle.open(other).bundle_id != Bundle.open(one).bundle_id


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist; expected a bundle"):
        Bundle.open(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="is a file; expected a bundle"):
        Bundle.open(tmp_path / "file")
    with pytest.raises(BundleError, match=r"holds no manifest\.json"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "\x00\x01", "[]", "3", '{"schema": "1.0"}', pytest.param("[" * 100_000, id="deep")],
)
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (write(tmp_path / "bundle") / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"can't be read|damaged|has schema None"):
        Bundle.open(tmp_path / "bundle")


@pytest.mark.parametrize("schema", ["2.0", "0.9", None, 3])
def test_other_schema_is_refused(tmp_path: Path, schema: Any) -> None:
    path = write(tmp_path / "bundle")
    edit_manifest(path, lambda values: values.update(schema=schema))
    with pytest.raises(BundleError, match=r"this leanseq reads 1\.x"):
        Bundle.open(path)


def test_later_minor_fields_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")

    def add(values: dict[str, Any]) -> None:
        values["schema"] = "1.7"
        values["later"] = {"a": 1}
        values["model"]["later"] = 2
        values["graphs"][0]["inputs"][0]["later"] = 3

    edit_manifest(path, add)
    bundle = Bundle.open(path)
    assert bundle.manifest.to_json()["later"] == {"a": 1}
    assert bundle.manifest.to_json()["model"]["later"] == 2
    bundle.verify()


def test_truncated_altered_and_missing_files(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")
    (path / ENCODER).write_text("grap")
    with pytest.raises(BundleError, match="has 4 bytes, expected 5: it is truncated or altered"):
        Bundle.open(path).file(ENCODER)
    (path / ENCODER).write_text("grapH")
    with pytest.raises(BundleError, match="it was altered"):
        Bundle.open(path).verify()
    (path / ENCODER).unlink()
    with pytest.raises(BundleError, match="can't be read"):
        Bundle.open(path).file(ENCODER)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_names_outside_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "bundle")
    edit_manifest(path, lambda v: v["files"].update({name: {"sha256": "", "size": 1}}))
    with pytest.raises(BundleError, match="lies outside the bundle"):
        Bundle.open(path)


def test_a_link_out_of_the_bundle_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")
    (tmp_path / "outside").write_text("graph")
    (path / ENCODER).unlink()
    (path / ENCODER).symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match="leads outside the bundle"):
        Bundle.open(path).file(ENCODER)


def _field(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _field("files", ENCODER, "size", value="5"),
        _field("files", ENCODER, "sha256", value=None),
        _field("model", "decoder_layers", value=1.5),
        _field("model", "num_heads", value=True),
        _field("model", "max_source", value=0),
        _field("model", "max_source", value=10**400),
        _field("special_ids", "eos", value=-1),
        _field("special_ids", "banned", value=["0"]),
        _field("text", "source_tokenizer", value=["tokenizer.model"]),
        _field("text", "normalizer_version", value=None),
        _field("graphs", 0, "files", value=ENCODER),
        _field("graphs", 0, "precision", value=32),
        _field("graphs", 0, "inputs", 0, "dims", value=[None]),
        _field("search_defaults", value=3),
    ],
)
def test_a_field_of_another_type_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = write(tmp_path / "bundle")
    edit_manifest(path, change)
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        Bundle.open(path)


@pytest.mark.parametrize("name", ["thesis.txt", "config.json", "src/main.py"])
def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "home"
    (path / name).parent.mkdir(parents=True)
    (path / name).write_text("years of work")
    with pytest.raises(BundleError, match="which is no part of a bundle and would be lost"):
        write(path)
    assert (path / name).read_text() == "years of work"


def test_a_bundle_is_replaced_whatever_became_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")
    (path / "manifest.json").write_text("{")
    (path / ".report.json.tmp-12").write_text("")
    (path / f"{ENCODER}.data").write_text("")
    Bundle.open(write(path)).verify()


def test_a_file_without_a_hash_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")
    edit_manifest(path, lambda values: values["files"].pop(ENCODER))
    with pytest.raises(BundleError, match="lists no hash for it"):
        Bundle.open(path)


def test_missing_precision_names_what_there_is(tmp_path: Path) -> None:
    bundle = Bundle.open(write(tmp_path / "bundle"))
    with pytest.raises(BundleError, match="no portable encoder graph in int8; it has: fp32"):
        bundle.graph("encoder", "int8")


def test_a_write_without_a_manifest_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no manifest was finished"), write_bundle(tmp_path / "b"):
        pass
    assert not (tmp_path / "b").exists()


def test_a_full_disk_leaves_the_old_bundle(tmp_path: Path) -> None:
    path = write(tmp_path / "bundle")
    with (
        pytest.raises(
            BundleError, match=r"can't be written to .*bundle \(No space left on device\)"
        ),
        write_bundle(path),
    ):
        Path("/dev/full").write_text("graph")
    Bundle.open(path).verify()
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == ["bundle"]


def test_report_belongs_to_one_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(write(tmp_path / "bundle"))
    assert bundle.read_report() is None
    bundle.write_report({"bleu": 40.0})
    report = bundle.read_report()
    assert report is not None
    assert report["bleu"] == 40.0
    whole = (bundle.path / "report.json").read_text()
    (bundle.path / "report.json").write_text(whole.replace("40.0", "41.0"))
    assert bundle.read_report() is None
    (bundle.path / "report.json").write_text('{"bundle_id": "another"}')
    assert bundle.read_report() is None
    (bundle.path / "report.json").write_text("{")
    assert bundle.read_report() is None
    bundle.verify()
