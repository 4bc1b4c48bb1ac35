#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The engines' own code over a real daemon, on the CPU: environments with the real packages from the package index.
#
#     run.sh BUILD [FOLDER]
#
# Environments are made in FOLDER (default: BUILD/engines) and kept there. PyTorch and what it needs are 3 GB; TORCH_SITE names a
# site-packages with PyTorch to use instead. Of vLLM only the Python files are unpacked. Skips, with 77 and a reason, where
# there is no package index. The last line is "N passed, N failed, N skipped".
set -u
build=$(cd "$1" && pwd) || exit 1
here=$(cd "$(dirname "$0")" && pwd)
folder=${2:-$build/engines}
mkdir -p "$folder" || exit 1
passed=0 failed=0

skip() {
        echo "engines: skipped, $1"
        echo "0 passed, 0 failed, 1 skipped"
        exit 77
}
python3 -c 'import venv, ensurepip' 2>/dev/null || skip "python3-venv is not installed"
[ -f "$build/client/lib/libkvcache.so" ] || skip "$build has no libkvcache.so"

# What the scheduler's side imports, and no more.
needs="aiohttp annotated-doc attrs blake3 cachetools cbor2 cloudpickle compressed-tensors depyf dill einops fastapi filelock gguf
        ijson interegular jsonschema lark loguru mcp model-hosting-container-standards msgspec numpy openai openai-harmony orjson
        oss-harmony partial-json-parser pillow prometheus-fastapi-instrumentator prometheus_client psutil py-cpuinfo pybase64 pydantic
        python-json-logger pyyaml pyzmq regex requests sentencepiece setproctitle six tiktoken tqdm transformers typing_extensions
        urllib3 uvicorn uvloop watchfiles"
# Without what they need, which is imported nowhere here.
alone="apache-tvm-ffi distro frozendict jiter llguidance lm-format-enforcer nvtx opentelemetry-api opentelemetry-exporter-otlp
        opentelemetry-sdk opentelemetry-semantic-conventions-ai outlines-core xgrammar"

# make VERSION: $folder/VERSION with Python's files of this vLLM.
make_environment() {
        env=$folder/vllm-$1
        [ -f "$env/made" ] && return 0
        rm -rf "$env"
        python3 -m venv "$env" || return 1
        "$env/bin/pip" download -q --no-deps -d "$env/wheel" "vllm==$1" || return 77
        site=$(echo "$env"/lib/python3*/site-packages)
        "$env/bin/python" - "$env/wheel" "$site" <<'END' || return 1
import glob, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.endswith((".py", ".json", "METADATA", "WHEEL")):
            wheel.extract(name, sys.argv[2])
END
        rm -rf "$env/wheel"
        if [ -n "${TORCH_SITE:-}" ]; then
                echo "$TORCH_SITE" >"$site/torch.pth"
        else
                "$env/bin/pip" install -q "torch==$2" || return 77
        fi
        # shellcheck disable=SC2086 # a list
        "$env/bin/pip" install -q $needs || return 1
        # shellcheck disable=SC2086
        "$env/bin/pip" install -q --no-deps $alone || return 1
        touch "$env/made"
}

for pair in 0.26.0:2.11.0 0.33.0:2.14.0; do
        version=${pair%:*}
        make_environment "$version" "${pair#*:}"
        case $? in
        0) ;;
        77) skip "the package index does not give vLLM $version or its PyTorch" ;;
        *) echo "engines: the environment for vLLM $version could not be made"; failed=$((failed + 1)); continue ;;
        esac
        log=$folder/vllm-$version.log
        KVCACHE_BUILD=$build KVCACHE_LIBRARY=$build/client/lib/libkvcache.so timeout 600 \
                "$folder/vllm-$version/bin/python" "$here/vllm_check.py" >"$log" 2>&1 || tail -n 40 "$log"
        grep '^vLLM ' "$log"
        # shellcheck disable=SC2046 # two numbers, or none
        set -- $(sed -n 's/^vLLM: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
        passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
