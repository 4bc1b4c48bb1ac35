# SPDX-License-Identifier: Apache-2.0
"""plan, kvcache and iosize over the files in conf/: documented results, forms of output, options, bad input."""

import itertools
import json
import os
import re
import shlex

import pytest

from kvbench import (DEPLOYMENTS, FAILED, MODELS, OK, ROOT, USAGE, clean, figures, read_csv, run, size_text, yaml_text)

DEEPSEEK = {"model_name": "DEEPSEEK_R1", "num_layers": 61, "num_query_heads": 128, "query_head_dimension": 128,
            "embedding_dimension": 7168, "rope_mla_dimension": 64, "mla_latent_vector_dimension": 512,
            "num_model_params": 671_000_000_000}
LLAMA = {"model_name": "LLAMA3.1_8B", "num_layers": 32, "num_query_heads_with_mha": 32, "query_head_dimension": 128,
         "gqa_num_queries_in_group": 4, "num_model_params": 8_000_000_000}
KV_HEADS = {"num_query_heads": 64, "num_kv_heads": 8, "query_head_dimension": 64, "num_model_params": 1}


def model(name):
    return MODELS / f"{name}.yaml"


def deployment(name):
    return DEPLOYMENTS / f"{name}.yaml"


def conf(model_name, deployment_name):
    return ["--model", model(model_name), "--model_config", deployment(deployment_name)]


def read(path):
    """Our own files are flat enough: keys of two levels with scalars."""
    result, section = {}, None
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        key, value = (part.strip() for part in line.split(":", 1))
        if not value:
            section = result.setdefault(key, {})
        else:
            (section if line.startswith(" ") else result)[key] = int(value) if value.isdigit() else value
    return result


def flags(text):
    """Returns the arguments of the command that a plan prints."""
    return dict(re.findall(r"^    --(\w+) (.*?)(?: \\)?$", text, re.M))


def ok(*arguments, cwd=None):
    result = clean(run(*arguments, cwd=cwd))
    assert result.returncode == OK, result.stderr
    return result.stdout


def refused(*arguments, status=FAILED, cwd=None):
    """Checks that the command fails with one clear message: no output, and one line on stderr (two where --help is recommended)."""
    result = clean(run(*arguments, cwd=cwd))
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    assert not result.stdout
    assert result.stderr.startswith("kvcache-bench: ") and result.stderr.count("\n") == (2 if status == USAGE else 1)
    return result.stderr


# --- documented results ---


def test_documented_results():
    """The documented examples of KVBench give the documented results."""
    for deployment_name, overrides, batch, block in (
            ("block-tp1-pp16", [], 5958, 589824), ("layer-tp1-pp16", [], 23829, 147456),
            ("block-tp1-pp8", ["--pp", 32, "--num_requests", 100], 119141, 294912)):
        text = ok("plan", *conf("deepseek_r1", deployment_name), "--backend", "GDS", "--source", "gpu",
                  "--etcd-endpoints", "http://localhost:2379", "--isl", 10000, "--page_size", 256, *overrides)
        assert flags(text) == {"backend": "GDS", "max_batch_size": str(batch), "max_block_size": str(block),
                               "start_batch_size": str(batch), "start_block_size": str(block),
                               "target_seg_type": "VRAM", "total_buffer_size": str(batch * block)}
    assert ok("kvcache", *conf("deepseek_r1", "block-tp1-pp8"), "--isl", 10000, "--page_size", 256,
              "--num_requests", 1) == ("Model                  : DEEPSEEK_R1\n"
                                       "Input Sequence Length  : 10000\n"
                                       "Batch Size             : 298\n"
                                       "IO Size                : 1.12 MB\n")
    assert ok("iosize", *conf("deepseek_r1", "block-tp1-pp8")) == "IO Size per GPU: 4608\n"


# --- every model in every deployment ---


def test_all_files_are_there():
    assert {p.stem for p in MODELS.glob("*.yaml")} == {"deepseek_r1", "llama_3_1_8b", "llama_3_1_70b", "gpt_oss_20b",
                                                      "gpt_oss_120b", "qwen3_8b", "qwen3_235b_a22b"}
    assert {p.stem for p in DEPLOYMENTS.glob("*.yaml")} == {
        f"{pattern}-tp{tp}-pp{pp}" for pattern in ("block", "layer")
        for tp, pps in ((1, (1, 2, 4, 8, 16)), (8, (2, 4, 8, 16, 32))) for pp in pps}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda p: p.stem)
@pytest.mark.parametrize("overrides", [{}, {"tp_size": 3, "pp_size": 7, "isl": 999, "num_requests": 13, "page_size": 5},
                                       {"pp_size": 200, "isl": 131072, "page_size": 64}], ids=("as-is", "odd", "long"))
def test_figures(path, overrides):
    words = []
    for key, value in overrides.items():
        words += [f"--{key.removesuffix('_size') if key != 'page_size' else key}", value]
    got = json.loads(ok("kvcache", "--model", path, "--model_configs", DEPLOYMENTS / "*.yaml", "--format", "json", *words))
    assert [g["config_file"] for g in got] == sorted(str(p) for p in DEPLOYMENTS.glob("*.yaml"))
    for g, file in zip(got, sorted(DEPLOYMENTS.glob("*.yaml"))):
        config = read(file)
        for section in config.values():
            section.update({k: v for k, v in overrides.items() if k in section})
        want = figures(read(path), config)
        assert (g["kv_bytes_per_token"], g["io_size_per_token"], g["io_size"], g["batch_size"], g["total_buffer_size"]) == (
            want["kv_per_token"], want["io_size_1tok"], want["io_size"], want["batch_size"], want["total_buffer_size"])
        assert g["io_size_text"] == size_text(want["io_size"])


# --- forms of output ---

PLAN = """\
================================================================================
Model Config: {config}
ISL: 1000 tokens
Page Size: 16
Requests: 10
TP: 1
PP: 8
================================================================================
nixlbench \\
    {parameters}

"""
COMPUTED = ["--max_batch_size 4766", "--max_block_size 73728", "--start_batch_size 4766", "--start_block_size 73728"]
TOTAL = "--total_buffer_size 351387648"


def plan_text(*parameters):
    return PLAN.format(config=deployment("block-tp1-pp8"), parameters=" \\\n    ".join(parameters))


@pytest.mark.parametrize("arguments, before, middle, after", [
    (["--backend", "POSIX"], ["--backend POSIX"], ["--op_type READ"], []),
    (["--backend", "POSIX", "--source", "memory"], ["--backend POSIX"], [], []),
    (["--backend", "posix", "--source", "memory"], ["--backend posix"], [], []),
    (["--backend", "GDS"], ["--backend GDS"], ["--op_type READ"], ["--target_seg_type VRAM"]),
    (["--backend", "GDS_MT", "--source", "gpu"], ["--backend GDS_MT"], [], ["--target_seg_type VRAM"]),
    (["--backend", "UCX", "--source", "memory"], [], [], []),
    (["--backend", "UCX", "--source", "gpu", "--destination", "gpu"], ["--initiator_seg_type VRAM"], [],
     ["--target_seg_type VRAM"]),
    (["--backend", "OBJ", "--destination", "gpu"], ["--backend OBJ", "--initiator_seg_type VRAM"], ["--op_type READ"], []),
    (["--backend", "POSIX", "--source", "memory", "--benchmark_group", "g"], ["--benchmark_group g", "--backend POSIX"],
     [], []),
])
def test_plan_text(arguments, before, middle, after):
    text = ok("plan", *conf("deepseek_r1", "block-tp1-pp8"), *arguments)
    assert text == plan_text(*before, *COMPUTED[:2], *middle, *COMPUTED[2:], *after, TOTAL)


def test_plan_text_of_2025_06():
    words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--target", "nixlbench-2025.06", "--backend", "GDS"]
    assert ok(*words, "--source", "gpu") == plan_text("--backend GDS", *COMPUTED, "--target_seg_type VRAM")
    assert ok(*words, "--source", "memory") == plan_text("--backend GDS", *COMPUTED)
    assert ok(*words, "--source", "gpu", "--gds_filepath", "/mnt/x") == plan_text(
        "--backend GDS", "--gds_filepath /mnt/x", *COMPUTED, "--target_seg_type VRAM")
    plan, = json.loads(ok(*words, "--source", "gpu", "--format", "json"))
    assert plan["total_buffer_size"] == 8 << 30 and "num_files" not in plan and plan["gds_filepath"] == ""


def test_what_2025_06_did_not_have_is_said():
    words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--target", "nixlbench-2025.06", "--source", "gpu"]
    result = clean(run(*words, "--num_files", 3, "--total_buffer_size", 4096))
    assert result.returncode == OK and result.stderr == "kvcache-bench: warning: --num_files is not an option of nixlbench of 2025-06\n"
    assert result.stdout == plan_text("--backend GDS", *COMPUTED, "--target_seg_type VRAM", "--total_buffer_size 4096")


def test_plan_for_kvcache_bench_is_a_command_of_its_own():
    """The printed command, run as a plan, gives the same plan."""
    words = [*conf("llama_3_1_8b", "layer-tp8-pp4"), "--isl", 4096, "--source", "memory", "--num_threads", 4,
             "--filepath", "/a b/it's"]
    text = ok("plan", *words, "--target", "kvcache-bench")
    command = text.split("=" * 80 + "\n")[-1].strip()
    assert command.startswith("kvcache-bench profile \\\n    --model ")
    printed = shlex.split(command.replace("\\\n", ""))
    assert printed[:2] == ["kvcache-bench", "profile"]
    again = json.loads(ok("plan", *printed[2:], "--target", "kvcache-bench", "--format", "json"))
    assert again == json.loads(ok("plan", *words, "--target", "kvcache-bench", "--format", "json"))
    assert again[0]["backend"] == "KVCACHE" and again[0]["num_threads"] == 4 and again[0]["filepath"] == "/a b/it's"


def test_plan_json():
    plan, = json.loads(ok("plan", *conf("qwen3_8b", "layer-tp1-pp2"), "--backend", "HF3FS", "--source", "memory", "--format",
                          "json", "--enable_pt", "--storage_enable_direct", "true", "--num_iter", "7"))
    assert list(plan)[:6] == ["backend", "check_consistency", "device_list", "enable_pt", "progress_threads",
                              "etcd_endpoints"]
    assert list(plan)[-2:] == ["recreate_xfer", "config_file"] and len(plan) == 47
    assert plan["enable_pt"] is True and plan["storage_enable_direct"] is True and plan["check_consistency"] is False
    assert plan["num_iter"] == 7 and plan["max_block_size"] == plan["start_block_size"] == 32768


def test_plan_csv():
    text = ok("plan", "--model", model("gpt_oss_20b"), "--model_configs", DEPLOYMENTS / "layer-tp1-pp1*.yaml",
              "--backend", "POSIX", "--format", "csv")
    rows = read_csv(text)
    assert text.splitlines()[0].split(",")[:2] == ["backend", "check_consistency"]
    assert text.splitlines()[0].endswith("model_system_access_pattern,model_system_source,model_system_destination")
    assert [os.path.basename(r["config_file"]) for r in rows] == ["layer-tp1-pp1.yaml", "layer-tp1-pp16.yaml"]
    assert all(r["model"] == "GPT_OSS_20B" and r["check_consistency"] == "False" for r in rows)
    assert [r["model_strategy_pp_size"] for r in rows] == ["1", "16"]


def test_csv_quotes(tmp_path):
    config = tmp_path / 'a "b", c.yaml'
    config.write_text("system:\n  hardware: 'H100, \"SXM\"'\n")
    row, = read_csv(ok("plan", "--model", model("qwen3_8b"), "--model_config", config, "--backend", "POSIX", "--format",
                       "csv"))
    assert row["config_file"] == str(config) and row["model_system_hardware"] == 'H100, "SXM"'
    row, = read_csv(ok("kvcache", "--model", model("qwen3_8b"), "--model_config", config, "--format", "csv"))
    assert row["config_file"] == str(config) and row["model"] == "QWEN3_8B"


def test_json_option_is_format_json_in_an_object():
    words = ["kvcache", *conf("qwen3_8b", "block-tp1-pp1")]
    assert json.loads(ok(*words, "--json")) == {"configurations": json.loads(ok(*words, "--format", "json"))}
    assert json.loads(ok(*words, "--json", "--format", "json")) == json.loads(ok(*words, "--json"))
    assert json.loads(ok("--json", "iosize", *words[1:]))["configurations"][0]["io_size_per_token"] == 36 * 8 * 128 * 2
    assert json.loads(ok("plan", *words[1:], "--json"))["configurations"][0]["config_file"]
    result = run(*words, "--json", "--format", "csv")
    assert result.returncode == USAGE and "--json" in json.loads(result.stderr)["error"]["message"]


def test_models_and_deployments_by_name(tmp_path):
    named = ok("iosize", "--model", "llama_3_1_8b", "--model_config", "block-tp1-pp16", cwd=tmp_path)
    assert named == ok("iosize", *conf("llama_3_1_8b", "block-tp1-pp16"))
    assert named == ok("iosize", "--model", "llama_3_1_8b.yaml", "--model_configs", "block-tp1-pp16", cwd=tmp_path)
    several = json.loads(ok("iosize", "--model", "llama_3_1_8b", "--model_configs", "layer-tp8-*", "--json", cwd=tmp_path))
    assert len(several["configurations"]) == len(list(DEPLOYMENTS.glob("layer-tp8-*.yaml"))) > 1

    # An existing file of this name has precedence.
    (tmp_path / "llama_3_1_8b").write_text((MODELS / "qwen3_8b.yaml").read_text())
    assert ok("iosize", "--model", "llama_3_1_8b", "--model_config", "layer-tp1-pp1", cwd=tmp_path) == ok(
        "iosize", *conf("qwen3_8b", "layer-tp1-pp1"))


def test_the_names_of_kvbench_s_examples(tmp_path):
    """Where the examples are not there, our files of those names are taken, and named."""
    def examples(*words):
        result = clean(run(*words, cwd=tmp_path))
        assert result.returncode == OK, result.stderr
        return result.stdout, result.stderr.splitlines()

    text, said = examples("iosize", "--model", "./examples/model_deepseek_r1.yaml", "--model_config", "./examples/block-tp1-pp8.yaml")
    assert text == ok("iosize", *conf("deepseek_r1", "block-tp1-pp8")) and len(said) == 2
    assert said[0] == f"kvcache-bench: ./examples/model_deepseek_r1.yaml: No such file or directory; using {model('deepseek_r1')}"
    assert said[1].endswith(f"using {deployment('block-tp1-pp8')}")
    text, said = examples("iosize", "--model", "model_qwen3_8b", "--model_configs", "/kvbench/examples/layer-tp1-*.yaml", "--json")
    assert len(json.loads(text)["configurations"]) == 5 and len(said) == 2
    text, said = examples("plan", "--model", "examples/model_gpt_oss_20b.yaml", "--model_configs", "./examples/block-tp8-pp2.yaml",
                          "./examples/block-tp8-pp4.yaml")
    assert text.count("nixlbench \\") == 2 and len(said) == 3
    # A file that exists goes first.
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/model_deepseek_r1.yaml").write_text(model("qwen3_8b").read_text())
    text, said = examples("iosize", "--model", "./examples/model_deepseek_r1.yaml", "--model_config", "block-tp1-pp8")
    assert text == ok("iosize", *conf("qwen3_8b", "block-tp1-pp8")) and said == []
    for name in ("./examples/model_deepsek_r1.yaml", "./example/model_deepseek_r1.yaml", "myexamples/model_deepseek_r1.yaml",
                 "./examples/models/deepseek_r1.yaml", "./examples/", "examples/model_", "model_"):
        error = refused("iosize", "--model", name, "--model_config", "block-tp1-pp8", cwd=tmp_path)
        assert ('did you mean "deepseek_r1"?' in error) == ("deepsek" in name), error


def test_the_ca_bundle_is_printed_where_it_is_given():
    """KVBench takes and drops it; plan's other forms are KVBench's without it."""
    words = ["plan", *conf("qwen3_8b", "block-tp1-pp1"), "--backend", "OBJ"]
    assert "ca_bundle" not in ok(*words) + ok(*words, "--format", "json") + ok(*words, "--format", "csv")
    assert flags(ok(*words, "--obj_ca_bundle", "/etc/ca.pem"))["obj_ca_bundle"] == "/etc/ca.pem"
    assert json.loads(ok(*words, "--obj-ca-bundle=/etc/ca.pem", "--format", "json"))[0]["obj_ca_bundle"] == "/etc/ca.pem"
    assert read_csv(ok(*words, "--obj_ca_bundle", "/etc/ca.pem", "--format", "csv"))[0]["obj_ca_bundle"] == "/etc/ca.pem"


def test_data_directory_from_the_environment(tmp_path, monkeypatch):
    for folder, file, name in (("models", MODELS / "qwen3_8b.yaml", "mine"), ("deployments", DEPLOYMENTS / "block-tp1-pp1.yaml", "d")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_text(file.read_text())
    monkeypatch.setenv("KVCACHE_DATA_DIR", str(tmp_path))
    assert ok("iosize", "--model", "mine", "--model_config", "d") == ok("iosize", *conf("qwen3_8b", "block-tp1-pp1"))
    error = refused("iosize", "--model", "qwen3_8b", "--model_config", "d")
    assert str(tmp_path / "models") in error and "did you mean" not in error


@pytest.mark.parametrize("words, folder, meant", [
    (["--model", "llama_3_1_8", "--model_config", "block-tp1-pp1"], "models", "llama_3_1_8b"),
    (["--model", "lama_3_1_70b.yaml", "--model_config", "block-tp1-pp1"], "models", "llama_3_1_70b"),
    (["--model", "qwen3_8b", "--model_config", "blok-tp1-pp16"], "deployments", "block-tp1-pp16"),
    (["--model", "nothing like it", "--model_config", "block-tp1-pp1"], "models", None)])
def test_a_name_that_is_not_found_lists_the_places(words, folder, meant):
    error = refused("iosize", *words)
    assert f"conf/{folder}" in error and words[words.index("--model" if folder == "models" else "--model_config") + 1] in error
    assert (f'did you mean "{meant}"?' in error) if meant else "did you mean" not in error


def test_numbers_as_python_writes_them():
    words = ["kvcache", *conf("qwen3_8b", "block-tp1-pp1"), "--isl"]
    for text in ("1_000", " 1000 ", "1_0_0_0", "0" * 60 + "1000"):
        assert ok(*words, text) == ok(*words, "1000")
    for text in ("_1", "1_", "1__0", "1 0", "", "9" * 60, "9007199254740993"):
        assert "whole number" in refused(*words, text, status=USAGE)


def test_a_path_is_not_searched(tmp_path):
    error = refused("iosize", "--model", tmp_path / "llama_3_1_8b", "--model_config", "block-tp1-pp1")
    assert "No such file" in error and "conf/models" not in error


TABLE = """\
Model          ISL    Num Requests    Batch Size  IO Size      TP    PP    Page Size  Access
-----------  -----  --------------  ------------  ---------  ----  ----  -----------  --------
DEEPSEEK_R1   1000              10          4766  72.0 KB       1     8           16  block
"""


def test_kvcache_table(tmp_path):
    assert ok("kvcache", *conf("deepseek_r1", "block-tp1-pp8"), "--format", "table") == TABLE
    config = tmp_path / "c.yaml"
    config.write_text("runtime:\n  isl: 1000.75\n  num_requests: 2.5\nsystem:\n  page_size: 16\n")
    assert ok("kvcache", "--model", model("deepseek_r1"), "--model_config", config, "--format", "table") == """\
Model                ISL    Num Requests    Batch Size  IO Size      TP    PP    Page Size  Access
-----------  -----------  --------------  ------------  ---------  ----  ----  -----------  --------
DEEPSEEK_R1  1000.750000        2.500000          9532  9.0 KB        1     1           16
"""


def test_several_configurations(tmp_path):
    text = ok("kvcache", "--model", model("deepseek_r1"), "--model_config", deployment("block-tp1-pp8"),
              "--model_configs", deployment("block-tp1-pp1*"), deployment("block-tp1-pp8"))
    assert re.findall(r"Batch Size +: (\d+)", text) == ["4766", "625", "9532"]
    assert re.findall(r"Model Config +: .*/(\S+)", text) == ["block-tp1-pp8.yaml", "block-tp1-pp1.yaml",
                                                            "block-tp1-pp16.yaml"]
    assert ok("iosize", "--model", model("deepseek_r1"), "--model_configs", deployment("block-tp1-pp[18]")) == (
        f"{deployment('block-tp1-pp1')}: IO Size per GPU: 35136\n{deployment('block-tp1-pp8')}: IO Size per GPU: 4608\n")


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_the_others_are_still_printed(form, tmp_path):
    (tmp_path / "b.yaml").write_text("strategy:\n  pp_size: 0\n")
    for name in "ac":
        (tmp_path / f"{name}.yaml").write_text("system:\n  page_size: 16\n")
    result = clean(run("plan", "--model", model("deepseek_r1"), "--model_configs", "*.yaml", "--backend", "POSIX",
                       "--format", form, cwd=tmp_path))
    assert result.returncode == FAILED and "b.yaml:2:12: strategy.pp_size" in result.stderr
    files = {"text": lambda t: re.findall("Model Config: (.*)", t), "csv": lambda t: [r["config_file"] for r in read_csv(t)],
             "json": lambda t: [p["config_file"] for p in json.loads(t)]}[form](result.stdout)
    assert files == ["a.yaml", "c.yaml"]


def test_a_configuration_that_is_not_there_is_left_out():
    result = clean(run("plan", "--model", model("deepseek_r1"), "--model_config", "nope.yaml", "--model_configs",
                       deployment("block-tp1-pp8"), "--backend", "POSIX", "--source", "memory"))
    assert result.returncode == OK and "warning: nope.yaml" in result.stderr
    assert result.stdout == plan_text("--backend POSIX", *COMPUTED, TOTAL)


@pytest.mark.parametrize("size, text", [
    (1, "1.0 B"), (1023, "1023.0 B"), (1024, "1.0 KB"), (1029, "1.0 KB"), (1030, "1.01 KB"), (1152, "1.12 KB"),
    (73728, "72.0 KB"), (1179648, "1.12 MB"), (1048576, "1.0 MB"), (1073741823, "1024.0 MB"), (2**30, "1.0 GB"),
    (5 * 2**40, "5.0 TB"), (2**50, "1024.0 TB")])
def test_size_text(size, text, tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(f"model_name: any\nfamily: generic_latent\nnum_layers: 1\nlatent_dimension: {size}\n")
    (tmp_path / "config.yaml").write_text("runtime:\n  isl: 1\n")
    out = ok("kvcache", "--model", file, "--model_config", tmp_path / "config.yaml")
    assert out.splitlines()[-1] == f"IO Size                : {text}" and size_text(size) == text


# --- options ---


def test_spellings():
    words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--backend", "POSIX"]
    want = ok(*words, "--page_size", "32", "--num_requests", "7", "--etcd_endpoints", "http://h:1", "--enable_vmm", "true")
    for spelled in itertools.product("_-", repeat=2):
        a, b = spelled
        assert ok("plan", "--model", model("deepseek_r1"), f"--model{a}config={deployment('block-tp1-pp8')}", "--backend",
                  "POSIX", f"--page{a}size=32", f"--num{b}requests", "7", f"--etcd{b}endpoint", "http://h:1",
                  f"--enable{a}vmm") == want
    assert ok(*words, "--isl", " 1_0 ") == ok(*words, "--isl", "10")
    assert ok(*words, "--access_pattern", "") == ok(*words)
    # An argument that looks like an option's name is an argument.
    assert "--device_list '--a_b'" not in ok(*words) and "--device_list --a_b" in ok(*words, "--device_list", "--a_b")


def test_flags_take_a_truth_value_or_none():
    words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--backend", "POSIX"]
    for name in ("check_consistency", "enable_pt", "enable_vmm", "recreate_xfer", "storage_enable_direct",
                 "obj_use_virtual_addressing"):
        want = ok(*words, f"--{name}")
        assert f"--{name} True" in want
        for yes in ("true", "1", "yes", "On"):
            assert ok(*words, f"--{name}", yes) == ok(*words, f"--{name}={yes}") == want
        for no in ("false", "0", "no", "off"):
            assert ok(*words, f"--{name}", no) == ok(*words, f"--{name}={no}") == ok(*words)
        assert "not one of true, false" in refused(*words, f"--{name}=maybe", status=USAGE)


@pytest.mark.parametrize("arguments, warning", [
    (["--op_type", "WRITE"], "--op_type WRITE"), (["--target_seg_type", "VRAM"], "--target_seg_type VRAM"),
    (["--max_batch_size", "3"], "--max_batch_size 3"), (["--total_buffer_size", "3"], "--total_buffer_size 3"),
    (["--format", "yaml"], "--format: 'yaml'")])
def test_what_is_overruled_is_said(arguments, warning):
    words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--backend", "POSIX"]
    result = clean(run(*words, *arguments))
    assert result.returncode == OK and result.stdout == ok(*words)
    assert "warning" in result.stderr and warning in result.stderr and result.stderr.count("\n") == 1


def test_the_file_may_name_the_source(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("system:\n  source: memory\n  destination: gpu\n")
    words = ["plan", "--model", model("qwen3_8b"), "--model_config", config, "--backend", "UCX"]
    assert flags(ok(*words))["target_seg_type"] == "VRAM"
    assert "target_seg_type" not in flags(ok(*words, "--destination", "memory"))
    config.write_text("system:\n  source: tape\n")
    assert "system.source: 'tape'" in refused(*words)


def test_no_backend_is_one_that_stores():
    for source, backend in (("file", "POSIX"), ("memory", "POSIX"), ("gpu", "GDS")):
        words = ["plan", *conf("deepseek_r1", "block-tp1-pp8"), "--source", source]
        assert ok(*words) == ok(*words, "--backend", backend)


@pytest.mark.parametrize("arguments, part", [
    (["--backend", "AZURE_BLOB"], "--backend AZURE_BLOB: nixlbench supports only"), (["--backend", "KVCACHE"], "--target kvcache-bench"),
    (["--backend", "POSIX", "--source", "gpu"], "--source gpu: POSIX"),
    (["--backend", "GDS", "--source", "memory"], "--source memory: GDS"),
    (["--backend", "UCX"], "--source file: UCX"),
    (["--backend", "UCX", "--source", "gpu", "--destination", "file"], "--destination file: UCX"),
    (["--backend", "OBJ", "--source", "gpu", "--destination", "memory"], "--destination memory: OBJ"),
    (["--backend", "OBJ", "--source", "file", "--destination", "file"], "--destination file: OBJ"),
    (["--backend", "UCX", "--source", "memory", "--target", "kvcache-bench"], "kvcache-bench profile supports only"),
    (["--target", "kvcache-bench", "--source", "file", "--destination", "file"], "--destination file: KVCACHE"),
    (["--target", "kvcache-bench", "--source", "memory", "--destination", "gpu"], "--destination gpu: KVCACHE"),
    (["--tp", "100000", "--backend", "POSIX"], "comes to 0 bytes"),
    (["--isl", "9007199254740992", "--backend", "POSIX"], "2^53"),
    (["--page_size", "9007199254740992", "--backend", "POSIX"], "2^53"),
    (["--num_requests", "9007199254740992", "--isl", "1000000", "--backend", "POSIX"], "2^53"),
])
def test_what_cannot_be_is_said(arguments, part):
    error = refused("plan", *conf("llama_3_1_8b", "block-tp1-pp8"), *arguments)
    assert part in error and str(deployment("block-tp1-pp8")) in error


@pytest.mark.parametrize("arguments", [
    [], ["--model", "x"], ["--model_config", "x"], ["--model", "x", "--model_config"], ["--model", "x", "y"],
    ["--model", "x", "--model_config", "y", "z"], ["--no_such_option"], ["--format", "xml"]])
@pytest.mark.parametrize("command", ["plan", "kvcache", "iosize"])
def test_wrong_usage(command, arguments):
    if command == "plan" and arguments == ["--format", "xml"]:
        arguments = []
    assert "--help" in refused(command, *arguments, status=USAGE).splitlines()[-1]


@pytest.mark.parametrize("name", ["pp", "tp", "isl", "osl", "num_requests", "page_size"])
@pytest.mark.parametrize("value", ["0", "-1", "-2", "abc", "1.5", "", " ", "1e3", "0x10", "1__0", "_1", "1_", "9007199254740993",
                                   "99999999999999999999999999999999", "１"])
def test_wrong_overrides(name, value):
    error = refused("kvcache", *conf("deepseek_r1", "block-tp1-pp8"), f"--{name}", value, status=USAGE)
    assert f"--{name}: " in error and "whole number from 1" in error


@pytest.mark.parametrize("arguments", [["--num_iter", "x"], ["--num_iter", "-1"], ["--num_threads", "1.5"], ["--source", "tape"],
                                       ["--destination", ""], ["--target", "fio"], ["--access_pattern", "x" * 64]])
def test_wrong_values(arguments):
    assert arguments[0] in refused("plan", *conf("deepseek_r1", "block-tp1-pp8"), *arguments, status=USAGE)


@pytest.mark.parametrize("command", ["plan", "kvcache", "iosize"])
def test_help(command):
    text = ok(command, "--help")
    assert text.startswith(f"usage: kvcache-bench {command}") and all(len(line) <= 100 for line in text.splitlines())
    for name in ("--model FILE", "--model_config FILE", "--model_configs GLOB", "--pp N", "--access_pattern HOW"):
        assert name in text
    assert ("--obj_bucket_name NAME" in text) == (command == "plan")
    assert f"\n  {command} " in ok("--help")


def test_debug_shows_the_figures():
    result = clean(run("--debug", "kvcache", *conf("deepseek_r1", "block-tp1-pp8")))
    assert result.stdout == ok("kvcache", *conf("deepseek_r1", "block-tp1-pp8"))
    for number in ("35136", "576", "35136000", "73728", "4766"):
        assert re.search(rf"\b{number}\b", result.stderr)


# --- model files ---


def with_model(tmp_path, content):
    file = tmp_path / "model.yaml"
    file.write_bytes(content if isinstance(content, bytes) else
                     (content if isinstance(content, str) else yaml_text(content)).encode())
    return ["iosize", "--model", file, "--model_config", deployment("layer-tp1-pp1")]


@pytest.mark.parametrize("change", [
    {"model_name": "my-DeepSeek_R1-tuned"}, {"model_name": None, "model": "DEEPSEEK_R1"}, {"model_name": "'DEEPSEEK_R1'"},
    {"num_layers": '"61"'}, {"num_model_params": 2**52}, {"num_layers": "6_1"}, {"family": "deepseek_r1", "model_name": "x"}])
def test_model_variants(change, tmp_path):
    lines = "".join(f"{k}: {v}\n" for k, v in {**DEEPSEEK, **change}.items() if v is not None)
    assert ok(*with_model(tmp_path, lines)) == "IO Size per GPU: 576\n"


def test_families_in_order(tmp_path):
    """A name that contains several families belongs to the first."""
    assert ok(*with_model(tmp_path, {**LLAMA, "model_name": "qwen3-LLAMA3.1-deepseek_r1"})) == "IO Size per GPU: 2048\n"
    assert ok(*with_model(tmp_path, {**KV_HEADS, "num_layers": 7, "model_name": "My_GPT_OSS"})) == "IO Size per GPU: 1024\n"


def test_generic_models(tmp_path):
    """Every shipped model, described without its family, comes to the same figures."""
    for path in MODELS.glob("*.yaml"):
        known = read(path)
        generic = {"model_name": "anything at all", "num_layers": known["num_layers"]}
        if "mla_latent_vector_dimension" in known:
            generic |= {"family": "generic_latent", "latent_dimension": known["mla_latent_vector_dimension"],
                        "rope_dimension": known["rope_mla_dimension"]}
        else:
            heads = known.get("num_kv_heads") or known["num_query_heads_with_mha"] // known["gqa_num_queries_in_group"]
            generic |= {"family": "generic", "num_kv_heads": heads, "head_dimension": known["query_head_dimension"]}
        words = ["--model_configs", DEPLOYMENTS / "*.yaml", "--format", "json", "--tp", 3]
        file = with_model(tmp_path, generic)[2]
        got, want = (json.loads(ok("kvcache", "--model", m, *words)) for m in (file, path))
        for plan in got + want:
            del plan["model"]
        assert got == want


def test_fractional_heads(tmp_path):
    """30 query heads in groups of 4 are 7.5 KV heads."""
    m = {**LLAMA, "num_query_heads_with_mha": 30, "num_layers": 5}
    words = with_model(tmp_path, m)
    assert ok(*words) == f"IO Size per GPU: {15 * 128}\n"
    words[0:1] = ["kvcache"]
    got, = json.loads(ok(*words, "--json", "--isl", 7))["configurations"]
    assert got["io_size"] == figures(m, {"system": {"page_size": 16}, "runtime": {"isl": 7, "num_requests": 10}})["io_size"]


@pytest.mark.parametrize("content, part", [
    ("", "is empty"), ("# only a comment\n", "is empty"), ("---\n", "is empty"), ("~\n", "is empty"),
    ("- a\n- b\n", "model.yaml:1:1: must be a mapping"), ("word\n", "must be a mapping"),
    ("model_name: [1\n", "model.yaml:"), ("a: b: c\n", "model.yaml:1:5"), ("\tx: 1\n", "model.yaml:1:1"),
    ("model_name: LLAMA3.1\n---\nmodel_name: QWEN3\n", "a second document"),
    (b"\x7fELF\x02\x01\x01\0\0\0\0", "not a text file"), (b"\xff\xfe\xff\xff\xff", "not a text file"), (b"a: \xff\n", "not a text file"),
    (b"model_name: \x1b[31mred\n", "not a text file"), ('model_name: "\\e[31mred"\n', "control character"),
    ('model_name: "a\\0b"\n', "NUL"), ('"a\\0b": 1\n', "a key must be plain text"), ("? [a]\n: 1\n", "a key must be plain text"),
    ("num_layers: 32\n", "model_name: is missing"), ("model_name:\nnum_layers: 1\n", "model_name: is missing"),
    ("model_name: ''\n", "model_name: is empty"), ("model_name: [a]\n", "model_name: is a list"),
    ("model_name: {a: b}\n", "model_name: is a mapping"), (f"model_name: {'x' * 5000}\n", "longer than"),
    ("model_name: MISTRAL_7B\nnum_layers: 32\n", "model.yaml:1:13: model_name: 'MISTRAL_7B' contains the name of no known family"),
    ("model_name: QWEN3\nmodel: QWEN3\n", "model.yaml:2:1: model and model_name are the same"),
    ("model_name: QWEN3\nfamily: nothing\n", "model.yaml:2:9: family: 'nothing' is not one of"),
    ("model_name: x\nfamily: [generic]\n", "family: is a list"),
    ("model_name: DEEPSEEK_R1\nnum_layers: 61\n", "num_query_heads: is missing"),
    ("model_name: x\nfamily: generic\nnum_layers: 1\nnum_kv_heads: 1\n", "head_dimension: is missing"),
    ("*nowhere\n", "model.yaml:1:1"), ("%YAML 9.9\n---\na: 1\n", "model.yaml:1:1"), ("x" * 300_000, "larger than"),
    ("".join(f"k{i}: 1\n" for i in range(65)), "more than 64 keys"), ("[" * 5000, "model.yaml:"),
    ("{" * 20000 + "\n", "model.yaml:"),
])
def test_wrong_model_files(content, part, tmp_path):
    error = refused(*with_model(tmp_path, content))
    assert part in error and "model.yaml" in error


@pytest.mark.parametrize("key", [k for k in DEEPSEEK if k != "model_name"])
@pytest.mark.parametrize("value, part", [
    (None, "is missing"), ("", "is missing"), ("null", "is missing"), ("~", "is missing"), ("0", "above 0"), ("-1", "above 0"),
    ("1.5", "a whole number"), ("1e3", "a whole number"), ("abc", "above 0"), ("[1]", "is a list"), ("{a: 1}", "is a mapping"),
    (".inf", "above 0"), (".nan", "above 0"), ("true", "above 0"), ("1 2", "above 0"), ("010", "octal"), ("0x10", "above 0"),
    ("9007199254740993", "2^53"), ("1" * 60, "2^53"), ("1" * 5000, "a shorter number"), ("1" * 400 + ".5", "a shorter number"),
])
def test_wrong_model_values(key, value, part, tmp_path):
    lines = [f"{k}: {v}\n" for k, v in DEEPSEEK.items() if k != key] + ([] if value is None else [f"{key}: {value}\n"])
    error = refused(*with_model(tmp_path, "".join(lines)))
    assert f"{key}: " in error and part in error
    assert part == "is missing" or re.search(rf"model\.yaml:8:{len(key) + 3}: ", error)


@pytest.mark.parametrize("line", ["vocab: 1000", "num_kv_heads: 8", "Num_layers: 61", "head_dimension: 1", "? nothing"])
def test_extra_model_keys(line, tmp_path):
    error = refused(*with_model(tmp_path, yaml_text(DEEPSEEK) + line + "\n"))
    assert "model.yaml:9:" in error and line.split(":")[0].removeprefix("? ") in error


def test_keys_that_come_twice(tmp_path):
    assert "model.yaml:9:1: num_layers: is given twice, first in line 2" in refused(
        *with_model(tmp_path, yaml_text(DEEPSEEK) + "num_layers: 61\n"))


@pytest.mark.parametrize("command", ["plan", "kvcache", "iosize"])
def test_files_that_are_none(command, tmp_path):
    for bad, part in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file"), ("/dev/null", "is empty"),
                      ("/dev/zero", "larger than"), ("", "No such file"), (model("qwen3_8b") / "x", "Not a directory")):
        assert part in refused(command, "--model", bad, "--model_config", deployment("block-tp1-pp1"))
        assert part in refused(command, "--model", model("qwen3_8b"), "--model_config", bad)
    secret = tmp_path / "secret.yaml"
    secret.write_text("x")
    secret.chmod(0)
    if os.geteuid() != 0:
        assert "Permission denied" in refused(command, "--model", secret, "--model_config", deployment("block-tp1-pp1"))
    result = clean(run(command, "--model", model("qwen3_8b"), "--model_configs", tmp_path / "none*"))
    assert result.returncode == FAILED and not result.stdout and "none*: no file of this name exists" in result.stderr


# --- deployment files ---


def with_deployment(tmp_path, content):
    file = tmp_path / "config.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return ["kvcache", "--model", model("deepseek_r1"), "--model_config", file]


SECTIONS = {"strategy": ("tp_size", "pp_size"), "runtime": ("num_requests", "isl", "osl"), "system": ("page_size",)}
NUMBERS = [(s, k) for s, keys in SECTIONS.items() for k in keys]
FRACTIONS = ("num_requests", "isl", "osl")


@pytest.mark.parametrize("section, key", NUMBERS)
@pytest.mark.parametrize("value, part", [
    ("", "has no value"), ("null", "has no value"), ("0", "above 0"), ("-1", "above 0"), ("-0.5", "above 0"), ("abc", "above 0"),
    ("[1]", "is a list"), ("{a: 1}", "is a mapping"), (".inf", "above 0"), (".nan", "above 0"), ("true", "above 0"), ("010", "octal"),
    ("1e400", "2^53"), ("1e-400", "above 0"), ("9007199254740993.5", "2^53"), ("1" * 5000, "a shorter number"), ("''", "above 0"),
    ("'1 2'", "above 0"), ("1.2.3", "above 0"), ("12abc", "above 0"), ("2026-01-01", "above 0")])
def test_wrong_numbers(section, key, value, part, tmp_path):
    error = refused(*with_deployment(tmp_path, f"# comment\n{section}:\n  {key}: {value}\n"))
    assert f"{section}.{key}: " in error
    assert part in error or (part == "2^53" and "above 0" in error)
    assert re.search(rf"config\.yaml:3:{len(key) + 5}: ", error) or value in ("", "1" * 5000)


@pytest.mark.parametrize("section, key", NUMBERS)
def test_fractions(section, key, tmp_path):
    words = with_deployment(tmp_path, f"{section}:\n  {key}: 7.50\n")
    if key in FRACTIONS:
        got, = json.loads(ok(*words, "--json"))["configurations"]
        assert got.get(key, 7.5) == 7.5
    else:
        assert f"{section}.{key}: '7.50' must be a whole number" in refused(*words)


def test_less_than_a_token(tmp_path):
    assert "runtime.isl: 0.5" in refused(*with_deployment(tmp_path, "runtime:\n  isl: 0.5\n"))


@pytest.mark.parametrize("written, shown, counts", [("'2000'", "2000", 2000), ("1000.75", "1000.75", 1000), ("2_000", "2000", 2000),
                                                  ("1000.0", "1000.0", 1000), ("+5", "5", 5), ("1.0e+3", "1.0e+3", 1000)])
def test_numbers_print_as_written(written, shown, counts, tmp_path):
    words = with_deployment(tmp_path, f"runtime:\n  isl: {written}\n")
    assert f"Input Sequence Length  : {shown}\nBatch Size             : {counts * 61}\n" in ok(*words)
    words[0] = "plan"
    assert f"ISL: {shown} tokens\n" in ok(*words)


@pytest.mark.parametrize("content, warnings", [
    ("strategy:\n", []), ("strategy: {}\nruntime:\n  isl: 1\n", []), ("system:\n  hardware:\n  access_pattern: ~\n", []),
    ("strategy: [1, 2]\n", ["config.yaml:1:11: warning: strategy is not a mapping of keys to values"]),
    ("runtime: 5\n", ["config.yaml:1:10: warning: runtime is not a mapping of keys to values"]),
    ("extra:\n  a: 1\nstrategy:\n  nonsense: 12\n", ["config.yaml:1:1: warning: extra is an unknown section",
                                                    "config.yaml:4:3: warning: strategy.nonsense is an unknown key"]),
])
def test_what_is_not_used_is_a_warning(content, warnings, tmp_path):
    result = clean(run(*with_deployment(tmp_path, content)))
    assert result.returncode == OK and "Batch Size             : 61\n" in result.stdout
    assert result.stderr.count("\n") == len(warnings) and all(w in result.stderr for w in warnings)


@pytest.mark.parametrize("content, part", [
    ("", "is empty"), ("# nothing\n", "is empty"), ("- a\n", "config.yaml:1:1: must be a mapping"), ("strategy:\n  tp_size: [1\n", "config.yaml:"),
    (b"\0\1\2\3" * 100, "config.yaml"), ("strategy:\n  tp_size: 1\n  tp_size: 2\n", "config.yaml:3:3: tp_size: is given twice"),
    ("strategy:\n  tp_size: 1\nstrategy:\n  pp_size: 1\n", "config.yaml:3:1: strategy: is given twice"),
    ("strategy:\n  kvcache_quant_mode: FP8\n", "strategy.kvcache_quant_mode: 'FP8' is not one of fp8, int8, fp16, bfloat16"),
    ("strategy:\n  kvcache_quant_mode:\n", "strategy.kvcache_quant_mode: has no value"),
    ("strategy:\n  kvcache_quant_mode: [fp8]\n", "strategy.kvcache_quant_mode: is a list"),
    ("system:\n  hardware: {a: 1}\n", "system.hardware: is a mapping"), (f"system:\n  hardware: {'x' * 64}\n", "longer than 63"),
    ("a: &a [*a]\nb: *c\n", "config.yaml:2:4"), ("x" * 300_000, "larger than 256 KiB")])
def test_wrong_deployments(content, part, tmp_path):
    error = refused(*with_deployment(tmp_path, content))
    assert part in error and "config.yaml" in error


@pytest.mark.parametrize("value, shown", [
    (r'"a: warning: b\nc"', r"'a: warning: b\nc'"), (r'"\e[31mred\a"', r"'\x1b[31mred\x07'"),
    (r'"\u009b31m\u202eabc"', r"'\xc2\x9b31m\xe2\x80\xaeabc'"), (r'"1\t2\x7f"', r"'1\t2\x7f'"),
    ('"' + "\u00e4" * 40 + '"', "'" + "\u00e4" * 22 + "...'"), (r'"' + r"\n" * 60 + '"', "'" + r"\n" * 22 + "...'")])
def test_a_value_in_a_message_is_one_short_line(value, shown, tmp_path):
    error = refused(*with_deployment(tmp_path, f"runtime:\n  isl: {value}\n"))
    assert f"config.yaml:2:8: runtime.isl: {shown} must be" in error


def test_a_name_of_a_file_in_a_message_is_one_line(tmp_path):
    file = tmp_path / "a\n\x1b[1mb.yaml"
    file.write_text("runtime: {isl: none}\n")
    for options in (["--model_config", file], ["--model_configs", tmp_path / "*.yaml"]):
        assert r"a\n\x1b[1mb.yaml:1:16: " in refused("kvcache", "--model", model("qwen3_8b"), *options)
    file.write_text("runtime: {isl: 1}\n")
    for command in (["plan", "--source", "gpu", "--backend", "POSIX"], ["profile", "--source", "gpu"]):
        assert r"a\n\x1b[1mb.yaml: " in refused(*command, "--model", model("qwen3_8b"), "--model_config", file)


def test_aliases_do_not_multiply(tmp_path):
    """Nine levels of nine aliases each: a thousand million nodes, if they were copied."""
    lines = ["a0: &a0 x"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    result = clean(run(*with_deployment(tmp_path, "\n".join(lines) + "\nruntime: {isl: 1}\n")))
    assert result.returncode == OK and result.stderr.count("unknown section") == 10


def test_the_precision_is_that_of_the_kv_cache(tmp_path):
    (tmp_path / "m.yaml").write_text(yaml_text(LLAMA))
    for weights, cache, size in (("fp8", "fp16", 4096), ("fp16", "fp8", 2048), ("fp4", "bfloat16", 4096), ("x", "int8", 2048)):
        file = tmp_path / "c.yaml"
        file.write_text(f"strategy:\n  model_quant_mode: {weights}\n  kvcache_quant_mode: {cache}\n")
        assert ok("iosize", "--model", tmp_path / "m.yaml", "--model_config", file) == f"IO Size per GPU: {size}\n"


def test_only_block_is_block(tmp_path):
    for pattern, size in (("block", 35136), ("Block", 576), ("layer", 576), ("anything", 576)):
        assert ok("iosize", *conf("deepseek_r1", "layer-tp1-pp1"), "--access_pattern", pattern) == f"IO Size per GPU: {size}\n"


def test_readme_examples_work(tmp_path):
    """Each YAML example in the guide is a valid model or deployment."""
    text = (ROOT / "client" / "bench" / "kvbench" / "README.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(examples) >= 3
    for i, example in enumerate(examples):
        file = tmp_path / f"{i}.yaml"
        file.write_text(example)
        if "model_name:" in example:
            assert "Batch Size" in ok("kvcache", "--model", file, "--model_config", deployment("block-tp1-pp8"))
        else:
            result = clean(run("kvcache", "--model", model("qwen3_8b"), "--model_config", file))
            assert result.returncode == OK and not result.stderr
