# SPDX-License-Identifier: Apache-2.0
"""The changes to compiled files in packs of engines (tests/engines/site_pack.py, make_lmcache.py), on files that are made here."""

import pathlib
import struct
import subprocess
import sys
import zipfile

ENGINES = pathlib.Path(__file__).resolve().parents[1] / "engines"
sys.path.insert(0, str(ENGINES))

import make_lmcache  # noqa: E402
import make_sglang  # noqa: E402
import site_pack  # noqa: E402


def elf_of(sections):
    """Returns a 64-bit ELF file with these sections (name -> content) and no code."""
    sections = {**sections, b".shstrtab": b"\0" + b"\0".join([*sections, b".shstrtab"]) + b"\0"}
    body, rows = b"", b""
    for name, content in sections.items():
        at = sections[b".shstrtab"].index(b"\0" + name + b"\0") + 1
        rows += struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\2\1\1".ljust(40, b"\0") + struct.pack("<QIHHHHHH", 64 + len(body), 0, 64, 0, 0, 64, len(sections), len(sections) - 1)
    return head + body + rows


def fat_binary(*entries):
    """Returns a fat binary with (kind, architecture, code)."""
    packed = b"".join(struct.pack("<HHIQ", kind, 0, 64, len(code)).ljust(28, b"\0") + struct.pack("<I", architecture).ljust(36, b"\0") + code
                      for kind, architecture, code in entries)
    return struct.pack("<IHHQ", site_pack.FATBIN_MAGIC, 1, 16, len(packed)) + packed


def test_code_of_other_architectures_is_zeroed():
    cubin, ptx = site_pack.CUBIN, site_pack.PTX
    codes = {name: name.encode() * 16 for name in ("c80", "c90", "p90", "c100", "p80", "p120")}
    library = elf_of({b".text": b"c80" * 16, b".nv_fatbin": fat_binary((cubin, 80, codes["c80"]), (cubin, 90, codes["c90"]), (ptx, 90, codes["p90"]))
                      + fat_binary((cubin, 100, codes["c100"]), (ptx, 80, codes["p80"]), (ptx, 120, codes["p120"]))})
    kept = site_pack.keep_architecture(library)
    assert len(kept) == len(library) and kept.count(b"c80" * 16) == 1, "the code of the host is unchanged"
    assert {name for name in codes if codes[name] in kept[kept.index(codes["c90"]) - 200:]} == {"c90", "p80"}


def test_the_missing_constructor_is_that_of_the_base_class():
    names = b"\0first\0" + make_lmcache.DERIVED + b"\0last\0"
    library = elf_of({b".dynstr": names, b".strtab": names})
    changed = make_lmcache.rename_constructor(library)
    assert len(changed) == len(library) and changed.count(make_lmcache.BASE + b"\0") == changed.count(make_lmcache.DERIVED) == 1
    assert changed.count(b"\0last\0") == 2 and make_lmcache.rename_constructor(changed) == changed


def test_a_pack_has_the_wanted_files_of_a_wheel_and_stand_ins(tmp_path):
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as wheel:
        for name in ("sglang/srt/models/llama.py", "sglang/srt/models/qwen.py", "sglang/test/a.py", "sgl_kernel/flash_ops.abi3.so", "a.data/scripts/b"):
            wheel.writestr(name, name)
    site = tmp_path / "site"
    site_pack.unpack(tmp_path / "one.whl", site, make_sglang.keeps, lambda name, data: data.upper())
    site_pack.stub(site, "flashinfer", "flashinfer.sampling")
    assert site_pack.pack(site, tmp_path / "site.tar.xz") > 0
    listed = subprocess.run(["tar", "-tf", tmp_path / "site.tar.xz"], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in listed if not name.endswith("/")} == {"flashinfer/__init__.py", "flashinfer/sampling.py", "sglang/srt/models/llama.py"}
    used = "import flashinfer.sampling as s; print(s.some_name.another.__name__); s.some_name()"
    run = subprocess.run([sys.executable, "-c", used], cwd=site, capture_output=True, text=True)
    assert run.stdout == "another\n" and "NotImplementedError: flashinfer.sampling.some_name is not in this pack" in run.stderr
