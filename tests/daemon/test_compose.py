# SPDX-License-Identifier: Apache-2.0
"""conf/compose.yaml is valid for Compose, and agrees with the image, the daemon and the adapter for vLLM.

The schema is that of the Compose specification, which the Python package check-jsonschema contains; tests/run.sh puts it below the build folder
(tools/python). No container is started."""

import copy
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

import harness

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")

pytestmark = pytest.mark.documents
FOLDER = harness.SOURCE / "conf"
TEXT = (FOLDER / "compose.yaml").read_text()
FILE = yaml.safe_load(TEXT)
DAEMON, ENGINE = FILE["services"]["kvcache"], FILE["services"]["vllm"]
CONTAINERFILE = (harness.SOURCE / "Containerfile").read_text()


def interpolated(text, given):
    """Replaces ${NAME:-DEFAULT} and ${NAME:?MESSAGE}, as Compose does."""
    def value(m):
        if m[1] not in given and m[2] == "?":
            raise KeyError(m[3])
        return given.get(m[1]) or m[3]
    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, text)


def validator():
    sys.path.append(str(harness.BUILD / "tools/python"))
    jsonschema = pytest.importorskip("jsonschema", reason="the Python package jsonschema is not installed")
    vendor = importlib.util.find_spec("check_jsonschema")
    if not vendor:
        pytest.skip("the Python package check-jsonschema is not installed")
    schema = json.loads((pathlib.Path(vendor.origin).parent / "builtin_schemas/vendor/compose-spec.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


def test_the_file_is_valid_for_compose():
    validate = validator()
    file = yaml.safe_load(interpolated(TEXT, {"MODEL": "m"}))
    assert [f"{e.json_path}: {e.message}" for e in validate.iter_errors(file)] == []
    for service, key, wrong in (("kvcache", "volume", []), ("kvcache", "ulimits", 5), ("vllm", "deploy", {"resources": {"gpus": 1}}),
                                ("kvcache", "healthcheck", {"tset": []})):
        bad = copy.deepcopy(file)
        bad["services"][service][key] = wrong
        assert list(validate.iter_errors(bad)), f"the schema takes {key}: {wrong}"


def test_a_model_has_to_be_named():
    assert "Qwen/Qwen3-8B" in interpolated(TEXT, {"MODEL": "Qwen/Qwen3-8B"})
    with pytest.raises(KeyError, match="name a model"):
        interpolated(TEXT, {})


def test_the_daemon_takes_its_command(directory):
    command = [interpolated(word, {"KVCACHE_LIMIT": "64MiB", "KVCACHE_POOL": "16MiB"}) for word in DAEMON["command"]]
    here = [f"--set=listen.socket={directory / 's'}", f"--set=store.path={directory / 'store'}", "--set=listen.http=off"]
    run = subprocess.run([str(harness.DAEMON), "--config", "/dev/null", "--check-config", *command, *here], capture_output=True, text=True,
                         timeout=60 * harness.slow())
    assert (run.returncode, run.stdout) == (0, "configuration ok\n"), run.stderr
    defaults = [interpolated(word, {}).partition("=")[2] for word in DAEMON["command"]]
    assert defaults == ["memory.pool=8GiB", "store.limit=64GiB"]


def test_the_image_and_its_user_are_those_of_the_containerfile():
    version = re.search(r"version : '([\d.]+)'", (harness.SOURCE / "meson.build").read_text())[1]
    assert DAEMON["image"] == f"kvcache:{version}"
    assert DAEMON["build"] == {"context": "..", "dockerfile": "Containerfile"}
    directories = dict(re.findall(r"^ENV (\w+_DIRECTORY)=(\S+)$", CONTAINERFILE, re.M))
    mounts = [interpolated(v, {}).split(":") for v in DAEMON["volumes"]]
    assert mounts == [["run", directories["RUNTIME_DIRECTORY"]], ["store", directories["STATE_DIRECTORY"]]]
    gid = re.search(r"groupadd --system --gid (\d+) ", CONTAINERFILE)[1]
    assert f"groupadd --gid {gid} kvcache" in ENGINE["build"]["dockerfile_inline"]
    assert re.search(r"^USER engine$", ENGINE["build"]["dockerfile_inline"], re.M), "root would be an admin"
    assert [interpolated(v, {}) for v in ENGINE["volumes"]][0] == f"run:{directories['RUNTIME_DIRECTORY']}:ro"
    assert {v.partition(":")[0] for s in (DAEMON, ENGINE) for v in map(lambda v: interpolated(v, {}), s["volumes"])} == FILE["volumes"].keys()


def test_the_daemon_has_only_the_rights_it_needs():
    assert DAEMON["read_only"] is True and DAEMON["cap_drop"] == ["ALL"] and DAEMON["ulimits"] == {"memlock": -1}
    profile, = [o.partition("=")[2] for o in DAEMON["security_opt"] if o.startswith("seccomp=")]
    assert json.loads((FOLDER / profile).read_text())["defaultAction"] == "SCMP_ACT_ERRNO"
    assert not {"privileged", "ports", "network_mode", "pid", "ipc", "user"} & DAEMON.keys()
    assert all(port.startswith("127.0.0.1:") for port in ENGINE["ports"])
    run = harness.ctl(*DAEMON["healthcheck"]["test"][2:], "--help")
    assert run.returncode == 0 and "--count" in run.stdout


def test_the_engine_names_the_adapter_that_its_image_installs():
    _, config = next(word for word in ENGINE["command"] if word.startswith("--kv-transfer-config=")).split("=", 1)
    extra = json.loads(config)["kv_connector_extra_config"]
    module = harness.SOURCE / "client/python" / (extra["spec_module_path"].replace(".", "/") + ".py")
    assert re.search(rf"^class {extra['spec_name']}\b", module.read_text(), re.M)
    guide = (harness.SOURCE / "client/python/kvcache/vllm/README.md").read_text()
    assert json.loads(config) in [json.loads(m) for m in re.findall(r"--kv-transfer-config '(\{.*?\})'", guide, re.S)]
    device, = ENGINE["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_engines_image_has_all_that_the_package_is_built_from(tmp_path):
    copied = re.findall(r"^COPY (.+) /src/?\S*$", ENGINE["build"]["dockerfile_inline"], re.M)
    assert "pip install --config-settings daemon=no /src/client/python" in ENGINE["build"]["dockerfile_inline"]
    for name in " ".join(copied).split():
        (tmp_path / name).symlink_to(harness.SOURCE / name)
    built = subprocess.run([sys.executable, "-c", "import build_backend; print(*build_backend.sources(), sep='\\n')"],
                           cwd=harness.SOURCE / "client/python", capture_output=True, text=True, check=True)
    assert built.stdout.split() and all((tmp_path / path).exists() for path in built.stdout.split())
