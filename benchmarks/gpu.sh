#!/bin/sh
# On a machine with an NVIDIA GPU: runs what only a GPU can show, and says what could not be run.
#
#   benchmarks/gpu.sh [BUNDLE SRC REF]
#
#   BUNDLE SRC REF  a bundle built with --int8, and test lines with their references, to compare
#                   backends on; without them the small demonstration is built (some minutes)
#   PYTHON          an interpreter with '.[trt,train,dev]' [default: python]
#   OUT             where the logs go [default: gpu-results]
#
# 1. what is here              doctor
# 2. the tests marked gpu      parity of whole searches, threads, memory, damaged plans
# 3. engines                   built for this GPU, proved from the builder's log
# 4. the comparison            latency and quality: ONNX Runtime on the CPU and on the GPU, TensorRT
#
# Exits with 0 when all of it ran and passed, 1 when something failed, 2 for wrong arguments, 3 when
# nothing failed and something could not be run.
set -u

PYTHON=${PYTHON:-python}
OUT=${OUT:-gpu-results}
cd "$(dirname "$0")/.." || exit 1
mkdir -p "$OUT" || exit 1
failed=""
not_run=""

say() { printf '%s\n' "$*"; }

# step NAME COMMAND...: runs it, keeps what it prints in OUT/NAME.log.
step() {
    name=$1
    shift
    say "== $name: $*"
    "$@" >"$OUT/$name.log" 2>&1
    code=$?
    tail -n 40 "$OUT/$name.log"
    if [ "$code" -ne 0 ]; then
        failed="$failed $name"
        say "== $name FAILED with exit code $code; all of its output: $OUT/$name.log"
    fi
    return "$code"
}

skip() {
    not_run="$not_run
  $1: $2"
    say "== $1 is NOT RUN: $2"
}

# why MODULE:FUNCTION: nothing if it can run here, else the reason, on one line.
why() {
    "$PYTHON" - "$1" <<'END'
import importlib, sys
module, _, name = sys.argv[1].partition(":")
try:
    getattr(importlib.import_module(module), name)()
except Exception as error:
    print(" ".join(str(error).split()) or type(error).__name__)
END
}

bundle=${1:-}
src=${2:-}
ref=${3:-}
if [ -n "$bundle" ] && { [ -z "$src" ] || [ -z "$ref" ]; }; then
    say "expected BUNDLE SRC REF, or nothing; found: $*"
    exit 2
fi

step doctor "$PYTHON" -m runtime doctor
trt=$(why runtime.tensorrt_check:check_tensorrt)
cuda=$(why runtime.placement:check_cuda)
tests=$("$PYTHON" -c 'import pytest, torch, onnx' 2>&1 | tail -n 1)

compare() {
    backends="--backend onnxruntime"
    [ -z "$cuda" ] && backends="$backends --backend onnxruntime-cuda"
    [ -z "$trt" ] && backends="$backends --backend tensorrt"
    for beam in 1 4; do
        # shellcheck disable=SC2086 # the backends are several words
        step "compare-beam-$beam" "$PYTHON" -m benchmarks compare --bundle "$bundle" \
            --src "$src" --ref "$ref" --beam-size "$beam" $backends
    done
}

[ -n "$trt" ] && skip "TensorRT" "$trt"
[ -n "$cuda" ] && skip "ONNX Runtime CUDA" "$cuda"
if [ -n "$trt" ] && [ -n "$cuda" ]; then
    skip "tests, engines and comparison" "nothing here runs on a GPU"
else
    if [ -n "$tests" ]; then
        skip "the tests marked gpu" "$tests (pip install -e '.[train,dev]')"
    else
        # -rs: tests that are skipped are listed with their reasons.
        step gpu-tests "$PYTHON" -m pytest -m gpu -rs -s -o addopts=--import-mode=importlib
    fi
    if [ -z "$bundle" ] && step demo "$PYTHON" -m export build --int8 --work-dir "$OUT/demo"; then
        bundle=$OUT/demo/bundle
        src=$OUT/demo/corpus/test.src
        ref=$OUT/demo/corpus/test.tgt
    fi
    if [ -z "$bundle" ]; then
        skip "engines and comparison" "there is no bundle"
    else
        if [ -z "$trt" ]; then step engines "$PYTHON" -m export inspect "$bundle"; fi
        compare
    fi
fi

say ""
say "Logs: $OUT"
[ -n "$not_run" ] && say "NOT RUN:$not_run"
if [ -n "$failed" ]; then
    say "FAILED:$failed"
    exit 1
fi
[ -n "$not_run" ] && exit 3
say "All of it ran and passed."
