#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes values.schema.json, whose part `config` comes from the tables of the daemon's configuration keys.

    python3 conf/helm/schema.py

Helm reads `off` and `on` of a values file as booleans, which the daemon refuses for most keys, and a large number as a float. The
schema therefore asks for text where the daemon reads a size, a time or a word: such a mistake fails `helm install`, and no pod. Ranges are
checked by the daemon alone.
"""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "daemon/config"
ROW = re.compile(r'^ROW\((\w+), (\w+), (\w+), \w+, "([^"]*)", ([^"]*?), (NULL|"[^"]*"), ([\w| ]+),$', re.M)

TEXT = {"type": "string"}
LABELS = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 253}
DIRECTORY = {"type": "string", "pattern": "^(/[A-Za-z0-9_.-]+)+$"}
NUMBER = r"[0-9]+(\.[0-9]+)?"
# The mounts of the DaemonSet, which are not values.
FIXED = {("listen", "socket"): {"type": "string", "pattern": "^/run/kvcache/[^/]+$"},
         ("listen", "http"): {"type": "string", "pattern": ":[0-9]+$"},
         ("store", "path"): {"const": "/var/lib/kvcache"},
         ("http", "token_file"): {"const": "/etc/kvcache-http/token"}}


def closed(properties, required=()):
    """Returns the schema of an object without other members."""
    return {"type": "object", "additionalProperties": False, "properties": properties,
            **({"required": sorted(required)} if required else {})}


def schema_of(kind, words, special):
    """Returns the schema of a key's values. `special` has the words that it takes besides: auto, off."""
    either = "".join(f"|{word}" for word in special)
    if kind == "BYTES":
        return {"type": "string", "pattern": f"^({NUMBER}(B|[KMGTP]iB|[kKMGTP]B)?{either})$"}
    if kind == "TIME":
        return {"type": "string", "pattern": f"^({NUMBER}(ms|s|min|h|d){either})$"}
    if kind == "COUNT":
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": special}]} if special else {"type": "integer", "minimum": 0}
    if kind == "SWITCH":
        return {"anyOf": [{"type": "boolean"}, {"enum": words}]}
    if kind == "CHOICE":
        return {"enum": words}
    if kind in ("NAMES", "PATHS"):
        return {"anyOf": [{"type": ["string", "integer"]}, {"type": "array", "items": {"type": ["string", "integer"]}}]}
    if kind == "MODE":
        return {"type": "string", "pattern": "^0[0-7]{3}$"}
    return TEXT


def keys_of(table):
    """Returns the schemas of a table's keys by section."""
    sections = {}
    for kind, section, key, default, _, words, flags in ROW.findall((TABLES / table).read_text()):
        special = [word for word, flag in (("auto", "AUTO"), ("off", "OFF")) if flag in re.split(r"\W+", flags) or default == word]
        schema = FIXED.get((section, key)) or schema_of(kind, words.strip('"').split("|"), special)
        sections.setdefault(section, {})[key] = schema
    return sections


def config():
    """Returns the schema of the daemon's configuration."""
    sections = {name: closed(keys, [key for at, key in FIXED if at == name]) for name, keys in keys_of("config.def").items()}
    sections["tenants"] = {"type": "array", "items": closed(keys_of("tenant.def")["tenants"], ["name"])}
    return closed(sections, {name for name, _ in FIXED})


def schema():
    part = {"enabled": {"type": "boolean"}, "labels": LABELS}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **closed({
            "global": {"type": "object"},
            "image": closed({"repository": {**TEXT, "minLength": 1}, "tag": TEXT, "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                             "pullSecrets": {"type": "array", "items": NAME}}, ["repository"]),
            "config": config(),
            "hostPaths": closed({"run": DIRECTORY, "store": DIRECTORY}, ["run", "store"]),
            "tokenSecret": NAME,
            "resources": {"type": "object"},
            "nodeSelector": LABELS,
            "tolerations": {"type": "array", "items": {"type": "object"}},
            "priorityClassName": {"anyOf": [NAME, {"const": ""}]},
            "seccompProfile": {"type": "string", "pattern": "^([A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*)?$"},
            "podMonitor": closed({**part, "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}}),
            "prometheusRule": closed(part),
            "dashboard": closed(part),
            "networkPolicy": closed({"enabled": {"type": "boolean"},
                                     "namespaces": {"type": "array", "minItems": 1, "items": NAME}}),
        }, ["config", "hostPaths", "image", "tokenSecret"]),
    }


def text():
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "values.schema.json").write_text(text())
