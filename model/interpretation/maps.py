"""What a Transformer attends to, for one sentence and one translation of it, by teacher forcing.

Step t of the decoder reads the start token and the first t tokens, and writes token t. Its row of
the cross-attention says which source tokens it looked at while it did so.

Letters: S source tokens (EOS counted), T decoder steps, L layers of a stack, H heads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.config import ModelConfig
from model.errors import ModelError
from model.transformer import Transformer, banned_mask
from runtime.backend import FloatArray
from runtime.errors import OptionError

_Kind = Literal["cross", "encoder", "decoder"]


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Softmax weights, float32, of every layer and head: each row sums to 1.

    src_ids: [S], EOS last. input_ids: [T], what each step reads, the start token first. output_ids:
    [T], what each step writes. probabilities: float32 [T], of output_ids, as the search sees them:
    ids that are never predicted have no share. cross: [L,H,T,S]; encoder: [L,H,S,S]; decoder:
    [L,H,T,T], rows and columns by step, a column standing for what that step reads.
    """

    src_ids: tuple[int, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    probabilities: FloatArray
    cross: FloatArray
    encoder: FloatArray
    decoder: FloatArray


class AttentionReader:
    """Passes pairs through a model and keeps its softmax weights. Thread-safe.

    It shares the model's weights, but not its modules, and listens to what the attention's dropout
    is given: that comes from any score function, and neither training nor an exported graph knows
    of it. Raises ModelError for a model on a GPU, whose attention keeps no weights.
    """

    def __init__(self, model: Transformer) -> None:
        device = next(model.parameters()).device
        if device.type != "cpu":
            raise ModelError(
                f"the model is on {device}, whose fused attention keeps no weights; move it to the "
                "CPU: model.to('cpu')"
            )
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._model: Transformer = copy.deepcopy(model, shared).eval()
        self._lock = Lock()
        self._found: dict[_Kind, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
        for layer in self._model.encoder.layers:
            self._listen(layer.self_attention, "encoder")  # type: ignore[arg-type]
        for layer in self._model.decoder.layers:
            self._listen(layer.self_attention, "decoder")  # type: ignore[arg-type]
            self._listen(layer.cross_attention, "cross")  # type: ignore[arg-type]

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    def read(self, src_ids: Sequence[int], output_ids: Sequence[int]) -> AttentionMaps:
        """src_ids: EOS last; output_ids: without the start token, EOS last where the sentence has
        ended. Raises OptionError for none, or more than the model has positions for."""
        input_ids = (self.config.special_ids.decoder_start_id, *output_ids[:-1])
        hidden, found = self._force(src_ids, input_ids)
        return AttentionMaps(
            src_ids=tuple(src_ids),
            input_ids=input_ids,
            output_ids=tuple(output_ids),
            probabilities=self._probabilities(hidden, output_ids),
            cross=found["cross"],
            encoder=found["encoder"],
            decoder=found["decoder"],
        )

    def read_cross(self, src_ids: Sequence[int], input_ids: Sequence[int]) -> FloatArray:
        """float32 [L,H,T,S]: the cross-attention of steps that read input_ids [T], the start token
        first. Raises OptionError as read does."""
        return self._force(src_ids, input_ids)[1]["cross"]

    @torch.inference_mode()
    def _force(
        self, src_ids: Sequence[int], input_ids: Sequence[int]
    ) -> tuple[Tensor, dict[_Kind, FloatArray]]:
        """Teacher forcing: the decoder's output [1,T,D], and all weights, [L,H,Tq,Tk] a kind."""
        check_length("source", len(src_ids), self.config.max_source)
        check_length("target", len(input_ids), self.config.max_target)
        source = torch.tensor([list(src_ids)])  # [1,S]
        mask = torch.ones_like(source, dtype=torch.bool)
        with self._lock:
            try:
                cross = self._model.encode(source, mask)
                hidden = self._model.decoder(torch.tensor([list(input_ids)]), cross, mask)
                return hidden, {
                    kind: torch.cat(weights).numpy() for kind, weights in self._found.items()
                }
            finally:
                for weights in self._found.values():
                    weights.clear()

    @torch.inference_mode()
    def _probabilities(self, hidden: Tensor, output_ids: Sequence[int]) -> FloatArray:
        """hidden [1,T,D], output_ids [T] -> float32 [T]."""
        logits = self._model.project_output(hidden[0])  # [T,V]
        logits = logits.masked_fill(banned_mask(self.config), float("-inf"))
        ids = torch.tensor(list(output_ids)).unsqueeze(1)  # [T,1]
        probabilities: FloatArray = logits.softmax(dim=-1).gather(1, ids).squeeze(1).numpy()
        return probabilities

    def _listen(self, attention: MultiHeadAttention, kind: _Kind) -> None:
        def keep(_: nn.Module, arguments: tuple[Tensor]) -> None:
            self._found[kind].append(arguments[0])  # [1,H,Tq,Tk]

        attention.dropout.register_forward_pre_hook(keep)


def check_length(side: str, found: int, limit: int) -> None:
    """side: source or target. found: its tokens, EOS counted. limit: of the model. Raises
    OptionError."""
    if not 1 <= found <= limit:
        raise OptionError(
            f"the {side} has {found} tokens, its end counted; this model reads 1 to {limit}: give "
            "a text that fits"
        )
