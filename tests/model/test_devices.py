from __future__ import annotations

import pytest
import torch

from model.devices import choose_device, has_fast_bf16
from runtime.errors import OptionError


def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("name", "gpus", "local_rank", "chosen"),
    [
        ("cpu", 2, 0, "cpu"),
        ("auto", 0, 0, "cpu"),
        ("auto", 0, 1, "cpu"),
        ("auto", 2, 0, "cuda:0"),
        ("auto", 2, 1, "cuda:1"),
        ("cuda", 1, 0, "cuda:0"),
    ],
)
def test_each_process_takes_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name, gpus: int, local_rank: int, chosen: str
) -> None:
    fake_gpus(monkeypatch, gpus)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert choose_device(name) == torch.device(chosen)


@pytest.mark.parametrize(("name", "gpus", "local_rank"), [("cuda", 0, 0), ("auto", 1, 1)])
def test_no_gpu_left(monkeypatch: pytest.MonkeyPatch, name, gpus: int, local_rank: int) -> None:
    fake_gpus(monkeypatch, gpus)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    with pytest.raises(OptionError, match=rf"process {local_rank + 1} .* finds {gpus} GPUs; expec"):
        choose_device(name)


def test_bf16_of_a_cpu_goes_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, fast in (({"avx512_bf16": True}, True), ({"avx2": True}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found, raising=False)
        assert has_fast_bf16(torch.device("cpu")) == fast
