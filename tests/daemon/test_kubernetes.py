# SPDX-License-Identifier: Apache-2.0
"""The Containerfile and conf/kubernetes/ agree with each other and with the daemon. tests/containers/ runs the result."""

import json
import re
import shutil
import subprocess
import sys

import pytest

import harness

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")

FOLDER = harness.SOURCE / "conf/kubernetes"
CONTAINERFILE = (harness.SOURCE / "Containerfile").read_text()
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}
CONFIG = yaml.safe_load(FILES["configmap"]["data"]["kvcache.yaml"])
POD = FILES["daemonset"]["spec"]["template"]["spec"]
DAEMON = POD["containers"][0]


def test_every_file_is_one_object_of_its_kind():
    assert {name: (f["apiVersion"], f["kind"]) for name, f in FILES.items()} == {
        "configmap": ("v1", "ConfigMap"), "daemonset": ("apps/v1", "DaemonSet"), "engine": ("v1", "Pod"),
        "networkpolicy": ("networking.k8s.io/v1", "NetworkPolicy"), "podmonitor": ("monitoring.coreos.com/v1", "PodMonitor"),
        "prometheusrule": ("monitoring.coreos.com/v1", "PrometheusRule")}
    for name, f in FILES.items():
        assert f["metadata"]["name"] == ("engine" if name == "engine" else "kvcache")
    labels = FILES["daemonset"]["spec"]["template"]["metadata"]["labels"]
    for selector in (FILES["daemonset"]["spec"]["selector"], FILES["podmonitor"]["spec"]["selector"], FILES["networkpolicy"]["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert {f["metadata"].get("namespace") for n, f in FILES.items() if n != "engine"} == {"kvcache"}


def test_the_configuration_is_one_that_the_daemon_takes(tmp_path, directory):
    path = tmp_path / "kvcache.yaml"
    path.write_text(FILES["configmap"]["data"]["kvcache.yaml"])
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o440)
    # Replaces values of the cluster by this machine's directories, memory and disk.
    here = {"listen.socket": directory / "s", "store.path": directory / "store", "http.token_file": token, "memory.pool": "16MiB",
            "store.limit": "64MiB"}
    command = [str(harness.DAEMON), "--config", str(path), "--check-config"]
    said = subprocess.run(command + [x for k, v in here.items() for x in ("--set", f"{k}={v}")], capture_output=True, text=True,
                          timeout=60 * harness.slow())
    assert (said.returncode, said.stdout) == (0, "configuration ok\n"), said.stderr
    for key in here:
        section, name = key.split(".")
        assert name in CONFIG[section], "the file gives each of these itself"


def test_addresses_paths_and_users_agree():
    port = int(CONFIG["listen"]["http"].rsplit(":", 1)[1])
    assert f"EXPOSE {port}\n" in CONTAINERFILE
    assert DAEMON["ports"] == [{"name": "http", "containerPort": port}]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert DAEMON[probe]["httpGet"] == {"path": path, "port": "http"}
    endpoint, = FILES["podmonitor"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")

    uid = int(re.search(r"^USER (\d+):\1$", CONTAINERFILE, re.M)[1])
    assert f"--uid {uid} " in CONTAINERFILE and f"--gid {uid} " in CONTAINERFILE
    assert (DAEMON["securityContext"]["runAsUser"], DAEMON["securityContext"]["runAsGroup"]) == (uid, uid)
    assert POD["securityContext"]["fsGroup"] == uid
    engine = FILES["engine"]["spec"]
    assert engine["securityContext"]["supplementalGroups"] == [uid] and engine["securityContext"]["runAsUser"] not in (0, uid)
    prepare = POD["initContainers"][0]
    assert f"{uid}:{uid}" in prepare["command"][2] and prepare["image"] == DAEMON["image"]

    version = re.search(r"version : '([\d.]+)'", (harness.SOURCE / "meson.build").read_text())[1]
    assert DAEMON["image"] == f"kvcache:{version}"


def test_mounts_match_the_configuration():
    mounts = {m["name"]: m for m in DAEMON["volumeMounts"]}
    volumes = {v["name"]: v for v in POD["volumes"]}
    assert mounts.keys() == volumes.keys() and {m["name"] for m in POD["initContainers"][0]["volumeMounts"]} <= mounts.keys()
    socket = CONFIG["listen"]["socket"]
    assert socket.rsplit("/", 1)[0] == mounts["run"]["mountPath"] == volumes["run"]["hostPath"]["path"]
    assert CONFIG["store"]["path"] == mounts["store"]["mountPath"] == volumes["store"]["hostPath"]["path"]
    assert DAEMON["args"] == ["--config", mounts["config"]["mountPath"] + "/kvcache.yaml"]
    assert volumes["config"]["configMap"]["name"] == FILES["configmap"]["metadata"]["name"]
    credentials = FILES["podmonitor"]["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"]
    assert CONFIG["http"]["token_file"] == f"{mounts['token']['mountPath']}/{credentials['key']}"
    assert volumes["token"]["secret"] == {"secretName": credentials["name"], "defaultMode": 0o440}

    engine = FILES["engine"]["spec"]
    assert engine["containers"][0]["env"] == [{"name": "KVCACHE_SOCKET", "value": socket}]
    mount, = engine["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == socket.rsplit("/", 1)[0] and mount["readOnly"] is True
    assert engine["volumes"][0]["hostPath"]["path"] == volumes["run"]["hostPath"]["path"]


def test_the_pod_has_only_the_rights_it_needs():
    security = DAEMON["securityContext"]
    assert security["runAsNonRoot"] is True and security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "Localhost", "localhostProfile": "kvcache/seccomp.json"}
    assert not {"hostPID", "hostIPC", "hostNetwork"} & POD.keys() and POD["automountServiceAccountToken"] is False
    # In a user namespace of its own, the daemon would not recognize its clients.
    assert POD.get("hostUsers", True) is True
    # The grace period allows for writing accepted chunks, and for waiting for the devices.
    defaults = {k: int(re.search(rf"^ROW\(TIME, {k}, .*\"(\d+)s\"", (harness.SOURCE / "daemon/config/config.def").read_text(), re.M)[1])
                for k in ("limits, drain", "io, hang")}
    assert POD["terminationGracePeriodSeconds"] > sum(defaults.values())


def test_the_seccomp_profile_is_complete_and_has_io_uring():
    profile = json.loads((FOLDER / "seccomp.json").read_text())
    # The runtime accepts these members in a profile file; it would ignore conditions like those of Docker's profiles.
    assert profile.keys() == {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = set()
    for rule in profile["syscalls"]:
        assert {"names", "action"} <= rule.keys() <= {"names", "action", "args", "errnoRet"}
        if rule["action"] == "SCMP_ACT_ALLOW":
            allowed |= set(rule["names"])
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "sendmsg", "recvmsg", "execve"} <= allowed
    assert not allowed & {"mount", "setns", "unshare", "ptrace", "bpf", "kexec_load", "init_module", "keyctl", "userfaultfd", "clone3"}
    unit = (harness.SOURCE / "systemd/kvcache.service.in").read_text()
    for name in re.findall(r"^SystemCallFilter=(io_uring_setup .*)$", unit, re.M)[0].split():
        assert name in allowed, f"{name} is allowed by the unit"


def test_the_rules_are_those_for_prometheus():
    rules = yaml.safe_load((harness.SOURCE / "conf/prometheus/alerts.yaml").read_text())
    assert FILES["prometheusrule"]["spec"] == rules, "run the commands at the head of prometheusrule.yaml"


def test_only_prometheus_may_scrape():
    policy = FILES["networkpolicy"]["spec"]
    rule, = policy["ingress"]
    assert policy["policyTypes"] == ["Ingress"] and rule["ports"] == [{"protocol": "TCP", "port": DAEMON["ports"][0]["name"]}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def objects():
    """Returns the objects that `kubectl apply -k conf` would send."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    made = subprocess.run(["kubectl", "kustomize", str(harness.SOURCE / "conf")], capture_output=True, text=True, timeout=60 * harness.slow())
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def test_the_kustomization_names_each_file():
    named = yaml.safe_load((harness.SOURCE / "conf/kustomization.yaml").read_text())
    assert set(named["resources"]) == {f"kubernetes/{name}.yaml" for name in FILES if name != "engine"}
    generated, = named["configMapGenerator"]
    assert all((harness.SOURCE / "conf" / file).is_file() for file in generated["files"])
    assert named["namespace"] == FILES["daemonset"]["metadata"]["namespace"]


def test_the_kustomization_has_all_objects_and_the_dashboard():
    made = {(o["kind"], o["metadata"]["name"]): o for o in objects()}
    assert made.keys() == {(f["kind"], f["metadata"]["name"]) for name, f in FILES.items() if name != "engine"} | {("ConfigMap", "kvcache-dashboard")}
    dashboard = made["ConfigMap", "kvcache-dashboard"]
    assert dashboard["metadata"]["labels"] == {"grafana_dashboard": "1"}
    # The server refuses an annotation of more, in which `kubectl apply` keeps the object.
    assert len(json.dumps(dashboard)) < 256 << 10
    assert json.loads(dashboard["data"]["kvcache.json"]) == json.loads((harness.SOURCE / "conf/grafana/kvcache.json").read_text())
    for o in made.values():
        assert o["metadata"]["namespace"] == "kvcache"


def test_the_objects_fit_the_schemas_of_kubernetes():
    sys.path.append(str(harness.BUILD / "tools/python"))
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for o in FILES.values():
        if not o["apiVersion"].startswith("monitoring.coreos.com/"):
            validate.validate(o, validate.latest_version(), strict=True)


def test_the_guide_explains_the_files():
    page = (FOLDER / "README.md").read_text()
    for path in FOLDER.iterdir():
        if path.name != "README.md":
            assert f"({path.name})" in page, f"{path.name} is not explained"
    for word in ("fsGroup", "initContainers", "startupProbe", "defaultMode", "supplementalGroups", "terminationGracePeriodSeconds"):
        assert f"`{word}" in page
