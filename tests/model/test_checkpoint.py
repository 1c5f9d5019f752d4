from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from support.tiny_model import random_transformer, write_random_checkpoint
from support.tiny_tokenizer import tiny_tokenizer, train_proto

from model import redo
from model.checkpoint import (
    is_checkpoint,
    load_checkpoint,
    random_model,
    save_checkpoint,
)
from model.errors import CheckpointError, ConfigError

FILES = ("config.json", "model.safetensors", "tokenizer.model", "manifest.json")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_random_checkpoint(tmp_path / "checkpoint")


def rehash(path: Path) -> None:
    hashes = {n: hashlib.sha256((path / n).read_bytes()).hexdigest() for n in FILES[:3]}
    (path / "manifest.json").write_text(json.dumps({"files": hashes}))


def edit_config(path: Path, **changes: object) -> None:
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | changes))
    rehash(path)


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_what_is_saved_is_loaded(tmp_path: Path, tying: str) -> None:
    model = random_transformer(tying=tying, positions="learned")
    proto = tiny_tokenizer().model_proto
    sha256 = save_checkpoint(
        tmp_path / "c", model=model, tokenizer_proto=proto, metadata={"updates": 7}
    )
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.sha256 == sha256
    assert loaded.config == model.config
    assert loaded.metadata == {"updates": 7}
    assert loaded.tokenizer_proto == proto
    assert not loaded.model.training
    for (name, got), (_, want) in zip(
        loaded.model.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(got, want), name
    tables = {
        p.data_ptr() for n, p in loaded.model.state_dict().items() if "tokens" in n or n == "output"
    }
    assert len(tables) == (1 if tying == "all" else 2)


def test_tied_weights_are_stored_once(path: Path) -> None:
    names = load_file(path / "model.safetensors").keys()
    assert [n for n in names if "tokens" in n] == ["encoder.embedding.tokens.weight"]


def test_equal_content_gives_equal_bytes(path: Path, tmp_path: Path) -> None:
    other = write_random_checkpoint(tmp_path / "other")
    for name in FILES:
        assert (path / name).read_bytes() == (other / name).read_bytes()


def test_who_may_read_one_file_may_read_all(path: Path) -> None:
    modes = {file.name: file.stat().st_mode for file in path.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_loading_leaves_the_random_state_alone(path: Path) -> None:
    torch.manual_seed(1)
    load_checkpoint(path)
    random_model("tiny", 3)
    got = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(got, torch.rand(1))


def test_absent(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*nowhere"):
        load_checkpoint(tmp_path / "nowhere")
    assert not is_checkpoint(tmp_path / "nowhere")


def test_a_file_is_not_a_directory(path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file; expected a checkpoint's directory"):
        load_checkpoint(path / "config.json")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"it lacks {name}; give the directory"):
        load_checkpoint(path)


def test_unfinished_training_is_named(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "training").mkdir()
    with pytest.raises(CheckpointError, match="go on with --resume"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_damage_is_found(path: Path, name: str, damage: str) -> None:
    content = bytearray((path / name).read_bytes())
    if damage == "truncate":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} \(\d+ bytes\) is truncated or altered"):
        load_checkpoint(path)


def test_a_damaged_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"files')
    with pytest.raises(CheckpointError, match=r"manifest.json is truncated or altered"):
        load_checkpoint(path)
    (path / "manifest.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"holds list; expected a JSON object"):
        load_checkpoint(path)
    (path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config.json .* is truncated or altered"):
        load_checkpoint(path)


def test_another_schema(path: Path) -> None:
    edit_config(path, schema=2, leanseq="9.9")
    with pytest.raises(CheckpointError, match=r"has schema 2, written by leanseq '9.9'"):
        load_checkpoint(path)


def test_a_config_that_cannot_be(path: Path) -> None:
    edit_config(path, model={"d_model": 32})
    with pytest.raises(CheckpointError, match="model config lacks src_vocab_size"):
        load_checkpoint(path)


def test_weights_that_do_not_fit(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    name = "decoder.layers.0.ffn.in_proj.weight"

    def write(changed: dict[str, torch.Tensor]) -> None:
        save_file(changed, path / "model.safetensors")
        rehash(path)

    write({n: w for n, w in weights.items() if n != name})
    with pytest.raises(CheckpointError, match=f"lacks 1 tensors: {name}"):
        load_checkpoint(path)
    write(weights | {"extra": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="has the unknown 1 tensors: extra"):
        load_checkpoint(path)
    write(weights | {name: torch.zeros(3, 4)})
    with pytest.raises(CheckpointError, match=r"has shape \[3, 4\], expected \[64, 32\]"):
        load_checkpoint(path)
    write(weights | {name: weights[name] * float("nan")})
    with pytest.raises(CheckpointError, match="values that are not finite"):
        load_checkpoint(path)


def test_no_safetensors_file(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\x80\x04]q\x00.")
    rehash(path)
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        load_checkpoint(path)


def test_a_tokenizer_of_another_training(path: Path) -> None:
    (path / "tokenizer.model").write_bytes(train_proto(vocab_size=300))
    rehash(path)
    with pytest.raises(CheckpointError, match="has 300 pieces, the model"):
        load_checkpoint(path)
    (path / "tokenizer.model").write_bytes(b"nonsense")
    rehash(path)
    with pytest.raises(CheckpointError, match="empty or damaged"):
        load_checkpoint(path)


def test_a_kill_before_the_write_counts_leaves_the_old(path: Path, monkeypatch) -> None:
    before = load_checkpoint(path).sha256

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            write_random_checkpoint(path, seed=1)
    assert load_checkpoint(path).sha256 == before


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_kill_after_the_write_counts_is_completed(path: Path, monkeypatch, moved: int) -> None:
    left, replace = [moved], Path.replace

    def killed(self: Path, target: Path) -> Path:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_random_checkpoint(path, seed=1)
    assert (path / redo.PENDING).is_dir()
    assert is_checkpoint(path)
    loaded = load_checkpoint(path)
    want = random_transformer(1)
    assert torch.equal(
        loaded.model.encoder.embedding.tokens.weight, want.encoder.embedding.tokens.weight
    )
    assert not (path / redo.PENDING).exists()


def test_leftovers_of_a_kill_are_removed_and_other_files_stay(path: Path) -> None:
    (path / ".writing-abc").mkdir()
    (path / "notes.txt").write_text("mine")
    write_random_checkpoint(path, seed=1)
    names = {p.name for p in path.iterdir()} - {".lock"}
    assert names == {*FILES, "notes.txt"}


def test_two_writers_wait_for_each_other(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(redo, "LOCK_SECONDS", 0.05)
    with (
        FileLock(str(path / redo.LOCK)),
        pytest.raises(CheckpointError, match="has been locked by another process"),
    ):
        write_random_checkpoint(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to .*file/c: Not a directory"):
        write_random_checkpoint(tmp_path / "file" / "c")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
def test_a_disk_that_is_full_leaves_the_old(path: Path, monkeypatch, error: Exception) -> None:
    before = load_checkpoint(path).sha256

    def full(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(CheckpointError, match=r"cannot write to .* No space left on device"):
            write_random_checkpoint(path, seed=1)
    assert load_checkpoint(path).sha256 == before
    assert not list(path.glob(".writing-*"))


def test_a_write_that_cannot_be_completed(path: Path, monkeypatch) -> None:
    (path / redo.PENDING).mkdir()
    (path / redo.PENDING / "x").write_text("")

    def refused(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(CheckpointError, match="cannot be completed: Permission denied"):
        load_checkpoint(path)


def test_a_file_that_cannot_be_read(path: Path, monkeypatch) -> None:
    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CheckpointError, match=r"cannot read .*config.json: Permission denied"):
        load_checkpoint(path)


def test_random_models_repeat() -> None:
    first, second, third = (random_model("tiny", s, vocab_size=100) for s in (5, 5, 6))
    name = "encoder.layers.0.ffn.in_proj.weight"
    assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], third.state_dict()[name])
    assert not first.training
    assert random_model("tiny").config.tgt_vocab_size == 4000
    with pytest.raises(ConfigError, match="unknown preset 'huge'; expected one of tiny"):
        random_model("huge")


def test_looking_for_a_checkpoint_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it lacks config.json"):
        load_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []
