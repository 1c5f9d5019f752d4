"""An ONNX graph that picks rows of many tensors at once, for tensors that lie on a GPU.

ONNX Runtime has no call for this, and `runtime` imports no onnx: the few messages of the file are
written here, in protobuf's wire format (onnx.proto has the numbers of the fields).

    rows int32 [R], NAME [B, ...], ... -> kept.NAME [R, ...], ...
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.manifest import TensorSpec

_IR_VERSION, _OPSET = 10, 20  # as the graphs of a bundle
_ELEM_TYPES = {"float32": 1, "int32": 6, "bool": 9, "float16": 10}  # TensorProto.DataType
_ROWS = TensorSpec(name="rows", dtype="int32", dims=("R",))


def row_graph_inputs(tensors: Sequence[TensorSpec]) -> list[str]:
    """`rows`, then the tensors."""
    return [_ROWS.name, *(tensor.name for tensor in tensors)]


def row_graph_outputs(tensors: Sequence[TensorSpec]) -> list[str]:
    """The tensors' rows, in the same order."""
    return [f"kept.{tensor.name}" for tensor in tensors]


def row_graph(tensors: Sequence[TensorSpec]) -> bytes:
    """The model file for tensors of these types and dims."""
    graph = _field(2, "rows")
    for tensor, kept in zip(tensors, row_graph_outputs(tensors), strict=True):
        # Gather's axis is 0 by default.
        node = _field(1, tensor.name) + _field(1, _ROWS.name) + _field(2, kept)
        graph += _field(1, node + _field(3, kept) + _field(4, "Gather"))
    for tensor in (_ROWS, *tensors):
        graph += _field(11, _value_info(tensor.name, tensor.dtype, tensor.dims))
    for tensor, kept in zip(tensors, row_graph_outputs(tensors), strict=True):
        graph += _field(12, _value_info(kept, tensor.dtype, (*_ROWS.dims, *tensor.dims[1:])))
    opset = _field(1, "") + _field(2, _OPSET)
    return _field(1, _IR_VERSION) + _field(2, "leanseq") + _field(7, graph) + _field(8, opset)


def _value_info(name: str, dtype: str, dims: Sequence[str | int]) -> bytes:
    # A number is a dim_value, field 1, a text a dim_param, field 2.
    shape = b"".join(_field(1, _field(1 if isinstance(dim, int) else 2, dim)) for dim in dims)
    tensor_type = _field(1, _ELEM_TYPES[dtype]) + _field(2, shape)
    return _field(1, name) + _field(2, _field(1, tensor_type))


def _field(number: int, value: int | str | bytes) -> bytes:
    """One field: a number as a varint, all else behind its length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
