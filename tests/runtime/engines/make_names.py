"""Writes tensorrt_names.json: names of tensorrt's Python API, from public sources.

    pip download --no-deps tensorrt-stubs==10.13.0.35.1 && unzip tensorrt_stubs-*.whl
    python tests/runtime/engines/make_names.py tensorrt_bindings/tensorrt.pyi

tensorrt's own packages can't be had without NVIDIA's index, so there is no list made by importing
tensorrt 11. What there is: the type stubs of 10.13, made from its binary (PyPI, tensorrt-stubs), and
NVIDIA's list of what 11 removed (docs.nvidia.com/deeplearning/tensorrt/11.4.0/api/migration/
tensorrt-10x-to-11x-python-api-reference.html), of which REMOVED holds what could be read of it.
A name that is in the first, not in the second, and in tensorrt_rtx, whose bindings are made from
TensorRT 11's code, is taken to be in 11. Somebody with tensorrt 11 at hand finds out with

    python -c "import tensorrt; from runtime.engines.library import missing_names as m; print(m(tensorrt))"
"""  # noqa: E501

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

SOURCE = "tensorrt-stubs 10.13.0.35.1"
REMOVED = [
    "BuilderFlag.BF16",
    "BuilderFlag.DIRECT_IO",
    "BuilderFlag.FP16",
    "BuilderFlag.FP4",
    "BuilderFlag.FP8",
    "BuilderFlag.INT4",
    "BuilderFlag.INT8",
    "BuilderFlag.OBEY_PRECISION_CONSTRAINTS",
    "BuilderFlag.PREFER_PRECISION_CONSTRAINTS",
    "IBuilderConfig.clear_quantization_flag",
    "IBuilderConfig.get_calibration_profile",
    "IBuilderConfig.get_quantization_flag",
    "IBuilderConfig.int8_calibrator",
    "IBuilderConfig.quantization_flags",
    "IBuilderConfig.set_calibration_profile",
    "IBuilderConfig.set_quantization_flag",
    "ICudaEngine.device_memory_size",
]


def read_stubs(text: str) -> dict[str, list[str]]:
    """Class -> its public members. By regular expression: the stubs are not valid Python."""
    names: dict[str, set[str]] = {}
    current = ""
    for line in text.splitlines():
        if (found := re.match(r"class (\w+)", line)) is not None:
            current = found[1]
            names[current] = set()
        elif (
            found := re.match(r"    (?:def )?([A-Za-z]\w*)\s*[:(=]", line)
        ) is not None and current:
            names[current].add(found[1])
        elif line and not line.startswith((" ", "#", "@")):
            current = ""
    return {kind: sorted(members) for kind, members in sorted(names.items())}


def main(stubs: Path) -> None:
    table = {
        "source": SOURCE,
        "names": read_stubs(stubs.read_text(encoding="utf-8")),
        "removed_in_11": REMOVED,
    }
    out = Path(__file__).with_name("tensorrt_names.json")
    out.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
