# SPDX-License-Identifier: Apache-2.0
"""The Helm chart of conf/helm/ renders the objects of the kustomization, and refuses values that would make a pod fail.

Helm's own engine renders it: the program `helm`, or the Python package helm-python-sdk, which contains the engine. tests/run.sh puts the package
below the build folder (tools/python)."""

import json
import re
import shutil
import subprocess
import sys

import pytest

import harness

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")

pytestmark = pytest.mark.documents
CHART = harness.SOURCE / "conf/helm"
TOOLS = harness.BUILD / "tools/python"
sys.path.insert(0, str(CHART))
import schema  # noqa: E402


class Refused(Exception):
    """Helm refuses the values."""


def render_by_program(values, name, namespace):
    run = subprocess.run(["helm", "template", name, str(CHART), "--namespace", namespace, "--values", "-"], input=json.dumps(values),
                         capture_output=True, text=True, timeout=60 * harness.slow())
    if run.returncode != 0:
        raise Refused(run.stderr)
    return [o for o in yaml.safe_load_all(run.stdout) if o]


def render_by_package(values, name, namespace):
    """Renders in a process of its own, because the package loads the runtime of Go into the interpreter."""
    program = ("import json, sys; sys.path.append(sys.argv[1]); import helm_python\n"
               "asked = json.load(sys.stdin)\n"
               "with helm_python.Chart.load(sys.argv[2]) as chart:\n"
               "    try:\n"
               "        chart.validate_schema(chart.merge_values(asked['values']))\n"
               "        made = chart.render(asked['values'], name=asked['name'], namespace=asked['namespace'])\n"
               "    except (helm_python.HelmValuesError, helm_python.HelmRenderError) as e:\n"
               "        sys.exit(f'refused: {e}')\n"
               "print(json.dumps(made))\n")
    run = subprocess.run([sys.executable, "-c", program, str(TOOLS), str(CHART)], capture_output=True, text=True, timeout=60 * harness.slow(),
                         input=json.dumps({"values": values, "name": name, "namespace": namespace}))
    if run.returncode == 1 and re.search(r"^refused: ", run.stderr, re.M):
        raise Refused(run.stderr)
    assert run.returncode == 0, run.stderr
    return [o for file, text in json.loads(run.stdout).items() if not file.endswith(".txt") for o in yaml.safe_load_all(text) if o]


def render(values=None, name="kvcache", namespace="kvcache"):
    """Returns the objects that Helm makes of the chart and the values, by kind and name."""
    if shutil.which("helm"):
        made = render_by_program(values or {}, name, namespace)
    elif (TOOLS / "helm_python").is_dir():
        made = render_by_package(values or {}, name, namespace)
    else:
        pytest.skip("neither helm nor the Python package helm-python-sdk is installed")
    return {(o["kind"], o["metadata"]["name"]): o for o in made}


def of_the_kustomization():
    """Returns the objects of the kustomization, without kubectl: test_kubernetes.py compares these with what kubectl renders."""
    conf = harness.SOURCE / "conf"
    named = yaml.safe_load((conf / "kustomization.yaml").read_text())
    made = [yaml.safe_load((conf / file).read_text()) for file in named["resources"]]
    for generated in named["configMapGenerator"]:
        made.append({"apiVersion": "v1", "kind": "ConfigMap",
                     "metadata": {"name": generated["name"], "namespace": named["namespace"], "labels": generated["options"]["labels"]},
                     "data": {(conf / file).name: (conf / file).read_text() for file in generated["files"]}})
    return {(o["kind"], o["metadata"]["name"]): o for o in made}


def plain(o):
    """Returns an object without the labels that only Helm needs, and with the texts in it parsed."""
    if isinstance(o, dict):
        own = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")
        o = {k: plain(v) for k, v in o.items() if k not in own}
        for key in ("kvcache.yaml", "kvcache.json"):
            if key in o:
                o[key] = yaml.safe_load(o[key])
        return o
    return [plain(x) for x in o] if isinstance(o, list) else o


def container(objects, name="kvcache"):
    return objects["DaemonSet", name]["spec"]["template"]["spec"]["containers"][0]


def test_the_chart_renders_the_objects_of_the_kustomization():
    chart, kustomization = render(), of_the_kustomization()
    assert chart.keys() == kustomization.keys()
    for key, expected in kustomization.items():
        made = plain(chart[key])
        if key == ("ConfigMap", "kvcache-dashboard"):
            assert made["metadata"]["labels"].pop("app.kubernetes.io/name") == "kvcache"
        if key[0] == "DaemonSet":
            for one in made["spec"]["template"]["spec"]["initContainers"] + made["spec"]["template"]["spec"]["containers"]:
                assert one.pop("imagePullPolicy") == "IfNotPresent", "the default of an image with a tag"
        assert made == plain(expected), key


def test_a_release_selects_its_own_pods():
    made = render(name="kvcache-a100", namespace="inference")
    assert {name.removesuffix("-dashboard") for _, name in made} == {"kvcache-a100"}
    assert {o["metadata"]["namespace"] for o in made.values()} == {"inference"}
    pods = made["DaemonSet", "kvcache-a100"]["spec"]["template"]
    assert pods["metadata"]["labels"]["app.kubernetes.io/instance"] == "kvcache-a100"
    for selector in (made["DaemonSet", "kvcache-a100"]["spec"]["selector"], made["PodMonitor", "kvcache-a100"]["spec"]["selector"],
                     made["NetworkPolicy", "kvcache-a100"]["spec"]["podSelector"]):
        assert selector["matchLabels"] == pods["metadata"]["labels"]
    assert {v["name"]: v for v in pods["spec"]["volumes"]}["config"]["configMap"] == {"name": "kvcache-a100"}


def test_values_reach_the_objects():
    made = render({"image": {"repository": "registry.example.org/kvcache", "tag": "0.2.0-1", "pullSecrets": ["pull"]},
                   "config": {"listen": {"http": "0.0.0.0:9800"}, "store": {"limit": "2TiB"}, "limits": {"keys": 2097152}, "io": {"gds": "off"}},
                   "hostPaths": {"store": "/mnt/nvme0/kvcache"}, "tokenSecret": "token", "seccompProfile": "", "nodeSelector": None,
                   "priorityClassName": "system-node-critical", "podMonitor": {"labels": {"release": "prometheus"}},
                   "networkPolicy": {"namespaces": ["monitoring", "observability"]}})
    pod = made["DaemonSet", "kvcache"]["spec"]["template"]["spec"]
    assert {c["image"] for c in pod["initContainers"] + pod["containers"]} == {"registry.example.org/kvcache:0.2.0-1"}
    assert pod["imagePullSecrets"] == [{"name": "pull"}] and pod["priorityClassName"] == "system-node-critical" and "nodeSelector" not in pod
    assert container(made)["ports"] == [{"name": "http", "containerPort": 9800}]
    assert container(made)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["store"]["hostPath"]["path"] == "/mnt/nvme0/kvcache" and volumes["token"]["secret"]["secretName"] == "token"
    text = made["ConfigMap", "kvcache"]["data"]["kvcache.yaml"]
    assert re.search(r"^  keys: 2097152$", text, re.M), "a number of a value is not written as a float"
    assert yaml.safe_load(text)["store"] == {"path": "/var/lib/kvcache", "limit": "2TiB"} and yaml.safe_load(text)["io"] == {"gds": "off"}
    assert made["PodMonitor", "kvcache"]["metadata"]["labels"]["release"] == "prometheus"
    assert [f["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            for f in made["NetworkPolicy", "kvcache"]["spec"]["ingress"][0]["from"]] == ["monitoring", "observability"]


def test_each_part_of_the_monitoring_can_be_left_out():
    off = {"enabled": False}
    made = render({"podMonitor": off, "prometheusRule": off, "dashboard": off, "networkPolicy": off})
    assert {kind for kind, _ in made} == {"ConfigMap", "DaemonSet"} and len(made) == 2


BAD = {
    "a key that the daemon does not have": ({"config": {"store": {"limt": "1TiB"}}}, "limt"),
    "a section that it does not have": ({"config": {"stroe": {}}}, "stroe"),
    "a size without a unit of the daemon": ({"config": {"store": {"limit": "1Ti"}}}, "limit"),
    "a size as a number, which Helm may write as a float": ({"config": {"memory": {"pool": 8589934592}}}, "pool"),
    "off without quotes": ({"config": {"listen": {"idle": False}}}, "idle"),
    "a socket that is not in the mounted directory": ({"config": {"listen": {"socket": "/tmp/s"}}}, "socket"),
    "a store elsewhere": ({"config": {"store": {"path": "/data"}}}, "path"),
    "a value that the chart does not have": ({"hostPath": {}}, "hostPath"),
    "a path with a quote and an object behind it": ({"hostPaths": {"store": '/x"}\n- name: root'}}, "store"),
    "a path that leads upward": ({"hostPaths": {"store": "store"}}, "store"),
    "the profile of another folder": ({"seccompProfile": "../../etc/x"}, "seccompProfile"),
    "a secret's name with a line break": ({"tokenSecret": "a\nb: c"}, "tokenSecret"),
    "a policy that admits every namespace": ({"networkPolicy": {"namespaces": []}}, "namespaces"),
    "an interval that is none": ({"podMonitor": {"interval": "30"}}, "interval"),
}


@pytest.mark.parametrize("case", BAD)
def test_values_that_would_fail_on_the_nodes_are_refused(case):
    values, name = BAD[case]
    with pytest.raises(Refused, match=name):
        render(values)


def test_text_of_values_stays_text():
    hostile = {"image": {"repository": 'x"\n  evil: {{ fail "now" }}'}, "podMonitor": {"labels": {"a": "b\nkind: Pod"}},
               "config": {"remote": {"prefix": "a: b\n- {{ .Values }}\n# c"}}}
    made = render(hostile)
    assert container(made)["image"] == hostile["image"]["repository"] + ":0.2.0"
    assert made["PodMonitor", "kvcache"]["metadata"]["labels"]["a"] == "b\nkind: Pod"
    assert yaml.safe_load(made["ConfigMap", "kvcache"]["data"]["kvcache.yaml"])["remote"]["prefix"] == hostile["config"]["remote"]["prefix"]


def test_the_rendered_configuration_is_one_that_the_daemon_takes(tmp_path, directory):
    made = render({"config": {"io": {"gds": "off"}, "listen": {"idle": "off", "mode": "0660"}, "store": {"limit": "64MiB", "error_budget": 8},
                              "namespaces": {"expire": "7d"}, "limits": {"keys": 2097152, "leases": 1000000},
                              "tenants": [{"name": "research", "users": [1000, 1001], "stored_bytes": "32MiB"}]}})
    path = tmp_path / "kvcache.yaml"
    path.write_text(made["ConfigMap", "kvcache"]["data"]["kvcache.yaml"])
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o440)
    here = {"listen.socket": directory / "s", "store.path": directory / "store", "http.token_file": tmp_path / "token", "memory.pool": "16MiB"}
    run = subprocess.run([str(harness.DAEMON), "--config", str(path), "--check-config", *(x for k, v in here.items() for x in ("--set", f"{k}={v}"))],
                         capture_output=True, text=True, timeout=60 * harness.slow())
    assert (run.returncode, run.stdout) == (0, "configuration ok\n"), run.stderr


def test_the_schema_is_made_of_the_tables_of_keys():
    assert (CHART / "values.schema.json").read_text() == schema.text(), "run python3 conf/helm/schema.py"
    tables = {f: (harness.SOURCE / "daemon/config" / f).read_text().count("\nROW(") for f in ("config.def", "tenant.def")}
    assert {f: sum(len(keys) for keys in schema.keys_of(f).values()) for f in tables} == tables


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r"version : '([\d.]+)'", (harness.SOURCE / "meson.build").read_text())[1]
    assert (chart["name"], chart["version"], chart["appVersion"]) == ("kvcache", version, version)


def test_files_of_the_chart_are_those_of_the_folders():
    for link, file in (("kvcache.json", "grafana/kvcache.json"), ("alerts.yaml", "prometheus/alerts.yaml")):
        assert (CHART / "files" / link).resolve() == (harness.SOURCE / "conf" / file).resolve()


def test_rendered_objects_fit_the_schemas_of_kubernetes():
    sys.path.append(str(TOOLS))
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for values in ({}, {"seccompProfile": "", "priorityClassName": "x", "image": {"pullSecrets": ["a"]}, "tolerations": []}):
        for o in render(values).values():
            if not o["apiVersion"].startswith("monitoring.coreos.com/"):
                validate.validate(o, validate.latest_version(), strict=True)
