#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The engines' own code over a real daemon, on the CPU: environments with the real packages from the package index. vLLM, SGLang
# and LMCache in two versions each, and llama.cpp, which is built from the sources that llama-cpp-python has.
#
#     run.sh BUILD [FOLDER]
#
# Environments are made in FOLDER (default: BUILD/engines) and kept there: 7.5 GB, of which PyTorch, which all of them share, is 5;
# TORCH_SITE names a site-packages with PyTorch to use instead. Of vLLM only the Python files are unpacked. Each step has a time
# limit, and what is half made is made anew by the next run. Skips, with 77 and a reason, where there is no package index or no
# room. The last line is "N passed, N failed, N skipped".
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

# pip ENVIRONMENT ARGUMENT...: its pip, within limits. No cache: what is unpacked is there once.
pip() {
        python=$1
        shift
        timeout 900 "$python/bin/pip" --no-cache-dir --retries 3 --timeout 60 --disable-pip-version-check "$@"
}

# Both versions of vLLM import on this PyTorch: one for all, in $torch.
make_torch() {
        torch=${TORCH_SITE:-$folder/torch}
        [ -n "${TORCH_SITE:-}" ] || [ -f "$torch/made" ] && return 0
        free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }')
        [ "$free" -ge 14 ] || skip "$folder has $free GiB free, and PyTorch is unpacked in 14"
        rm -rf "$torch" "$folder/pip"
        python3 -m venv "$folder/pip" || return 1
        # --target has pip unpack to a temporary folder first, which is to be on the same file system.
        mkdir -p "$folder/tmp" && TMPDIR=$folder/tmp pip "$folder/pip" install -q --no-warn-conflicts --target "$torch" "torch==$1"
        r=$?
        rm -rf "$folder/tmp" "$folder/pip"
        [ $r -eq 0 ] || return 77
        touch "$torch/made"
}

# make_environment VERSION: $folder/vllm-VERSION, with the Python files of this vLLM.
make_environment() {
        env=$folder/vllm-$1
        [ -f "$env/made" ] && return 0
        rm -rf "$env"
        python3 -m venv "$env" || return 1
        pip "$env" download -q --no-deps -d "$env/wheel" "vllm==$1" || return 77
        site=$(echo "$env"/lib/python3*/site-packages)
        "$env/bin/python" - "$env/wheel" "$site" <<'END' || return 1
import glob, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if name.endswith((".py", ".json", "METADATA", "WHEEL")):
            wheel.extract(name, sys.argv[2])
END
        rm -rf "$env/wheel"
        echo "$torch" >"$site/torch.pth"
        # shellcheck disable=SC2086 # a list
        pip "$env" install -q --no-warn-conflicts $needs || return 1
        # shellcheck disable=SC2086
        pip "$env" install -q --no-warn-conflicts --no-deps $alone || return 1
        touch "$env/made"
}

make_torch 2.11.0
case $? in
0) ;;
77) skip "the package index does not give PyTorch 2.11.0" ;;
*) echo "engines: PyTorch could not be unpacked" && echo "0 passed, 1 failed, 0 skipped" && exit 1 ;;
esac

# run_check ENGINE PREFIX VERSION: PREFIX_check.py in the environment $folder/PREFIX-VERSION; adds its figures to $passed and $failed.
run_check() {
        log=$folder/$2-$3.log
        KVCACHE_BUILD=$build KVCACHE_LIBRARY=$build/client/lib/libkvcache.so timeout 600 \
                "$folder/$2-$3/bin/python" "$here/$2_check.py" >"$log" 2>&1 || tail -n 40 "$log"
        grep "^$1 " "$log"
        # shellcheck disable=SC2046 # two numbers, or none
        set -- $(sed -n "s/^$1: \([0-9]*\) passed, \([0-9]*\) failed\$/\1 \2/p" "$log")
        passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
}

for version in 0.26.0 0.33.0; do
        make_environment "$version"
        case $? in
        0) ;;
        77) skip "the package index does not give vLLM $version" ;;
        *) echo "engines: the environment for vLLM $version could not be made"; failed=$((failed + 1)); continue ;;
        esac
        run_check vLLM vllm "$version"
done

# What SGLang's cache controller and host pools import, and no more; its kernels are not needed without a GPU. 0.5.23 asks for a newer
# PyTorch, which these parts do without.
sglang_needs="aiohttp dill einops fastapi ipython loguru msgspec openai orjson partial-json-parser pillow prometheus_client psutil
        pybase64 pydantic python-multipart pyzmq requests sentencepiece setproctitle uvicorn uvloop"
sglang_alone="apache-tvm-ffi compressed-tensors gguf torchvision==0.26.0 xgrammar"

# make_sglang VERSION TRANSFORMERS: $folder/sglang-VERSION.
make_sglang() {
        env=$folder/sglang-$1
        [ -f "$env/made" ] && return 0
        rm -rf "$env"
        python3 -m venv "$env" || return 1
        pip "$env" download -q --no-deps -d "$env/wheel" "sglang==$1" || return 77
        echo "$torch" >"$(echo "$env"/lib/python3*/site-packages)/torch.pth"
        pip "$env" install -q --no-warn-conflicts --no-deps "$env"/wheel/*.whl || return 1
        rm -rf "$env/wheel"
        # shellcheck disable=SC2086 # a list
        pip "$env" install -q --no-warn-conflicts $sglang_needs "transformers==$2" || return 1
        # shellcheck disable=SC2086
        pip "$env" install -q --no-warn-conflicts --no-deps $sglang_alone || return 1
        touch "$env/made"
}

skipped=0
for version in 0.5.17:5.12.1 0.5.23:5.19.0; do
        transformers=${version#*:} version=${version%:*}
        make_sglang "$version" "$transformers"
        case $? in
        0) ;;
        77) echo "engines: SGLang $version skipped, the package index does not give it"; skipped=$((skipped + 1)); continue ;;
        *) echo "engines: the environment for SGLang $version could not be made"; failed=$((failed + 1)); continue ;;
        esac
        run_check SGLang sglang "$version"
done

# What LMCache's adapters, its objects and its benchmark import, and no more.
lmcache_needs="aiofiles aiohttp blake3 cachetools cryptography fastapi httpx msgspec numba numpy<=2.2.6 openai opentelemetry-api
        opentelemetry-exporter-otlp opentelemetry-exporter-prometheus opentelemetry-sdk prometheus_client<0.25 protobuf<7 psutil
        py-cpuinfo pyyaml pyzmq redis requests setuptools<81 sortedcontainers tqdm transformers uvicorn xxhash"

# make_lmcache VERSION: $folder/lmcache-VERSION.
make_lmcache() {
        env=$folder/lmcache-$1
        [ -f "$env/made" ] && return 0
        rm -rf "$env"
        python3 -m venv "$env" || return 1
        pip "$env" download -q --no-deps --only-binary :all: -d "$env/wheel" "lmcache==$1" || return 77
        echo "$torch" >"$(echo "$env"/lib/python3*/site-packages)/torch.pth"
        pip "$env" install -q --no-warn-conflicts --no-deps "$env"/wheel/*.whl nvtx || return 1
        rm -rf "$env/wheel"
        # shellcheck disable=SC2086 # a list
        pip "$env" install -q --no-warn-conflicts $lmcache_needs || return 1
        touch "$env/made"
}

for version in 0.5.0 0.5.6; do
        make_lmcache "$version"
        case $? in
        0) ;;
        77) echo "engines: LMCache $version skipped, the package index does not give it"; skipped=$((skipped + 1)); continue ;;
        *) echo "engines: the environment for LMCache $version could not be made"; failed=$((failed + 1)); continue ;;
        esac
        log=$folder/lmcache-$version.log
        KVCACHE_BUILD=$build KVCACHE_LIBRARY=$build/client/lib/libkvcache.so timeout 600 \
                "$folder/lmcache-$version/bin/python" "$here/lmcache_check.py" >"$log" 2>&1 || tail -n 40 "$log"
        grep -a '^LMCache ' "$log"
        # shellcheck disable=SC2046 # two numbers, or none
        set -- $(sed -n 's/^LMCache: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
        passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
done

# make_llama VERSION: llama.cpp, from the sources that llama-cpp-python of this version has, in $folder/llama-VERSION.
make_llama() {
        llama=$folder/llama-$1
        [ -f "$llama/made" ] && return 0
        rm -rf "$llama"
        python3 -m venv "$llama" || return 1
        # pip prepares its metadata too, for which it fetches what that takes.
        pip "$llama" download -q --no-deps --no-binary :all: -d "$llama/sdist" "llama-cpp-python==$1" || return 77
        pip "$llama" install -q gguf || return 77
        mkdir "$llama/source" && tar -xzf "$llama"/sdist/*.tar.gz -C "$llama/source" --strip-components=3 \
                --wildcards '*/vendor/llama.cpp/*' || return 1
        # Quick to build rather than quick, and the same on every machine.
        cmake -S "$llama/source" -B "$llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 \
                -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF \
                -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF \
                -DBUILD_SHARED_LIBS=ON >"$llama/build.log" 2>&1 || return 1
        timeout 1800 ninja -j2 -C "$llama/build" llama >>"$llama/build.log" 2>&1 || return 1
        rm -rf "$llama/sdist"
        touch "$llama/made"
}

# The example for llama.cpp with the real library.
check_llama() {
        cc -O2 -Wall -I"$llama/source/include" -I"$llama/source/ggml/include" -I"$here/../../client" \
                "$here/../../client/examples/llama-prefix.c" -o "$llama/llama-prefix" -L"$llama/build/bin" -lllama \
                -L"$build/client/lib" -lkvcache -lmd -Wl,-rpath,"$llama/build/bin:$build/client/lib" || return 1
        KVCACHE_BUILD=$build timeout 600 "$llama/bin/python" "$here/llama_check.py" "$llama/llama-prefix" >"$folder/llama.log" 2>&1 ||
                tail -n 40 "$folder/llama.log"
        grep '^llama.cpp: [a-z_]* ' "$folder/llama.log"
        # shellcheck disable=SC2046 # two numbers, or none
        set -- $(sed -n 's/^llama.cpp: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$folder/llama.log")
        passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
}

if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null || ! command -v c++ >/dev/null; then
        echo "engines: llama.cpp skipped, it takes cmake, ninja and a C++ compiler to build it"
        skipped=$((skipped + 1))
else
        make_llama 0.3.36
        case $? in
        0) check_llama || failed=$((failed + 1)) ;;
        77)
                echo "engines: llama.cpp skipped, the package index does not give llama-cpp-python 0.3.36 or gguf"
                skipped=$((skipped + 1))
                ;;
        *)
                echo "engines: llama.cpp could not be built"
                tail -n 20 "$llama/build.log"
                failed=$((failed + 1))
                ;;
        esac
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
