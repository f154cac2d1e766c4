"""The command line, in this process and as ``python -m cachecore``, with plugins that are folders of this test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import importlib_metadata
import pytest
from samples import kv_plan, plan_set

from cachecore import CachePlanSet
from cachecore.cli import main

BROKEN = Path(__file__).with_name("broken_plugins")

PLUGIN = """
from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, StandardLayoutPolicy, hookimpl
from cachecore.transfer import ByteCopy

class Demo(ByteBackend):
    name = "{name}"

@hookimpl
def cachecore_register_backends():
    return [BackendInfo("{name}", ("demo",), {priority}, {probe}, StandardLayoutPolicy, Demo)]

@hookimpl
def cachecore_register_block_copies():
    return [BlockCopyInfo("{name}-copy", {priority}, lambda src, dst: None, ByteCopy)]

RESULT = dict(scenario="runs", run_nbytes=8192, num_pairs=64, path="bytes", gb_per_s=3.0, limit_gb_per_s=4.0)
RESULT.update(ratio=0.75, contiguous_ratio=0.5, submit_s=2e-5)

def bench(what, *, device, backend, own_copies, quick, progress):
    progress("measuring")
    yield {{**RESULT, "scenario": f"{{what}} {{device}} {{backend}} {{quick}} {{own_copies}}", "record": "{name}-copy"}}

def bench_with_a_baseline(what, **_):
    yield RESULT
    yield {{**RESULT, "path": "plain", "peer": True, "ratio": 1.25, "submit_s": 2.5e-3}}

def bench_without_a_ratio(what, **_):
    yield {{key: value for key, value in RESULT.items() if key != "ratio"}}

def bench_interrupted(what, **_):
    raise KeyboardInterrupt

no_bench = 3
"""


@pytest.fixture(autouse=True)
def _plugins_of_these_tests_only(tmp_path, monkeypatch):
    """Hide what the environment has installed, and forget what a test imported."""
    find = importlib_metadata.entry_points
    ours = str(tmp_path), str(BROKEN)

    def entry_points(**wanted):
        found = find(**wanted)
        return importlib_metadata.EntryPoints(
            entry for entry in found if entry.dist and str(entry.dist.locate_file("")).startswith(ours)
        )

    monkeypatch.setattr(importlib_metadata, "entry_points", entry_points)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(ours):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a plugin, its dist-info included, for this process."""

    def installed(
        name="demo", *, distribution=None, priority=7, probe="lambda device: None", bench=None, version="1.2"
    ):
        distribution = distribution or f"cachecore-{name}"
        module = f"{distribution}_module".replace("-", "_")
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(PLUGIN.format(name=name, priority=priority, probe=probe))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        entries = f"[cachecore]\n{name} = {module}\n"
        if bench:
            entries += f"[cachecore.bench]\n{bench[0]} = {module}:{bench[1]}\n"
        (info / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(str(site))
        return site

    return installed


@pytest.fixture
def plan_file(tmp_path) -> Path:
    """Three layers of packed K/V, planned for the null device."""
    path = tmp_path / "plan.json"
    path.write_text(plan_set(kv_plan(rows=3)).dumps())
    return path


def run_json(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def run_module(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    """``python -m cachecore``, from another folder, so that only the path decides which cachecore it is."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, filter(None, sys.path)))),
    }
    return subprocess.run(
        [sys.executable, "-m", "cachecore", *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_version_names_the_distribution(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])

    assert stopped.value.code == 0
    assert "(cachecore-kv, plugin API 1, Python 3." in capsys.readouterr().out


def test_no_command_prints_help_and_is_wrong_usage(capsys):
    assert main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "cachecore explain plan.json --picture layout.svg" in told.err


@pytest.mark.parametrize("command", ["backends", "plan", "explain", "bench"])
def test_help_teaches_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])

    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert "--json" in told
    assert f"  cachecore {command} " in told


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cure"], "invalid choice: 'cure'"),
        (["explain"], "required: PLAN.json"),
        (["bench", "moves"], "invalid choice: 'moves'"),
        (["backends", "--device", "GPU 1"], "device 'GPU 1' is not understood; expected a type and an optional index"),
        (["plan"], "required: --layers"),
        (["plan", "--layers", "2", "--memory", "20G"], "'20G' has no clear unit; write 20GiB"),
        (["plan", "--layers", "x"], "'x' lists no layers; expected ids such as 0-4,6 or a count"),
        (["plan", "--layers", "2", "--window", "4"], "--sliding-layers and --window go together"),
        (["plan", "--layers", "2", "--sliding-layers", "2", "--window", "4"], "names layer 2, which --layers does not"),
        (
            ["plan", "--layers", "2", "--context-length", "8"],
            "--context-length says how a memory is shared; give --mem",
        ),
        (["plan", "--layers", "2", "--latent-dim", "8", "--kv-heads", "1"], "--kv-heads and --latent-dim contradict"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--rope-dim", "8"],
            "--rope-dim belongs to MLA; give --latent-dim",
        ),
        (["plan", "--layers", "2", "--head-dim", "8", "--dtype", "bf16"], "'bf16' (did you mean bfloat16?)"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--dtype", "fp8"],
            "quantised K/V is asked for with --quant-policy",
        ),
        (["plan", "--layers", "2", "--head-dim", "8", "--quant-policy", "q"], "invalid choice: 'q'"),
        (["plan", "--layers", "2", "--head-dim", "8", "--tp-rank", "1"], "--tp-rank is 1; expected 0 to 0"),
        (["plan", "--layers", "2", "--head-dim", "0"], "0 is too small; expected 1 or more"),
        (["plan", "--layers", "2", "--head-dim", "x"], "'x' is no whole number"),
        (["plan", "--layers", "2", "--head-dim", "8", "--kv-heads", "2", "--tp", "3"], "2 KV heads on 3 tensor-par"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--block-size", "8", "--kernel-block-size", "3"],
            "--block-size 8",
        ),
        (["explain", "plan.json", "--blocks", "many"], "'many' is no count; expected a number such as 1024"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_refusal_is_one_line_and_exit_code_1(capsys):
    argv = ["plan", "--device", "null", "--layers", "2", "--head-dim", "9", "--quant-policy", "int4"]
    assert main(argv) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("cachecore: error: k_cache: head size 9 is no multiple of 2")
    assert told.err.count("\n") == 1


def test_a_usage_error_is_what_is_needed_the_reason_and_where_to_read(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--layers", "2"])

    assert capsys.readouterr().err.splitlines() == [
        "usage: cachecore plan --layers N [options]; see `cachecore plan --help`",
        "cachecore plan: error: --head-dim is missing; give --head-dim, or --latent-dim and --rope-dim for MLA",
    ]


def test_what_forces_a_backend_is_told_as_an_option(install, capsys):
    site = install("one")
    install("two")
    (module,) = site.glob("*.py")
    module.write_text(f"{module.read_text()}\nclass StandardLayoutPolicy(StandardLayoutPolicy):\n    name = 'own'\n")
    probe = "lambda device: 'absent'"
    for module in site.parent.glob("*/*.py"):
        module.write_text(module.read_text().replace("lambda device: None", probe))

    assert main(["plan", "--device", "demo", "--layers", "2", "--head-dim", "64"]) == 1
    assert "say which with --backend one or CACHECORE_BACKEND=one." in capsys.readouterr().err


def test_the_module_runs_from_any_folder(tmp_path):
    made = run_module(
        *("plan", "--device", "null", "--backend", "bytes", "--layers", "2", "--head-dim", "64", "-o", "plan.json"),
        cwd=tmp_path,
    )
    told = run_module("explain", "plan.json", cwd=tmp_path)

    assert (made.returncode, made.stderr) == (0, "")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("plan for device null by backend bytes, 1 group\n")


def test_the_module_imports_no_array_library(plan_file):
    code = (
        f"import sys; from cachecore.cli import main; main(['explain', {str(plan_file)!r}, '--json']);"
        "print(*sorted({'torch', 'numpy', 'triton'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_missing_file_is_told_in_one_line(tmp_path):
    done = run_module("explain", "nowhere.json", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == "cachecore: error: nowhere.json: No such file or directory\n"


def test_standard_input_is_read(plan_file):
    done = run_module("explain", "-", "--json", input=plan_file.read_text())

    assert done.returncode == 0
    assert json.loads(done.stdout)["device"] == "null"


def test_a_reader_that_leaves_early_is_no_error(plan_file):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "cachecore", "explain", str(plan_file), "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()

    assert (process.returncode, told) == (141, b"")


def test_an_interrupt_is_exit_code_130(install, capsys):
    install(bench=("demo", "bench_interrupted"))

    assert main(["bench", "copy", "--device", "demo"]) == 130
    assert capsys.readouterr().err == "cachecore: interrupted\n"


def test_backends_says_what_serves_and_why_the_others_do_not(install, capsys):
    install("slow", priority=3)
    install("fast", priority=9)
    install("absent", priority=50, probe="lambda device: 'no driver'")
    told = run_json(capsys, "backends", "--device", "demo:1")

    (device,) = told["devices"]
    assert (device["device"], device["chosen"]) == ("demo:1", "fast")
    assert device["why"] == "priority 9, ahead of slow 3"
    assert {other["backend"]: other["reason"] for other in device["others"]} == {
        "absent": "no driver",
        "slow": "priority 3, 'fast' has 9",
        "bytes": "serves null, not demo",
    }
    assert [plugin["name"] for plugin in told["plugins"]] == ["absent", "fast", "slow"]
    assert told["plugins"][1] == {
        "name": "fast",
        "distribution": "cachecore-fast",
        "version": "1.2",
        "status": "loaded",
        "reason": None,
    }
    assert [copy["name"] for copy in told["block_copies"]] == ["absent-copy", "fast-copy", "slow-copy", "bytes"]


def test_backends_tells_each_reason_once_and_equal_ones_together(install, capsys):
    install("slow", priority=3)
    install("fast", priority=9)
    for name in ("absent", "gone"):
        (module,) = install(name, priority=50, probe="lambda device: 'no driver'").glob("*.py")
        module.write_text(module.read_text().replace("lambda src, dst: None", "lambda src, dst: 'no memory of mine'"))
    assert main(["backends", "--device", "demo", "--check"]) == 0

    assert capsys.readouterr().out.partition("\ndevice ")[2].splitlines() == [
        "demo: fast, priority 9, ahead of slow 3",
        "  not absent (cachecore-absent), gone (cachecore-gone): no driver",
        "  for other devices: bytes",
        "  checked: blocks in memory demo, swapped to host",
        "    copy, swap_out, swap_in by fast-copy, path bytes",
        "      not absent-copy, gone-copy: no memory of mine",
    ]


def test_names_that_match_nothing_are_noted(install, capsys, monkeypatch):
    install("demo")
    monkeypatch.setenv("CACHECORE_BACKEND", "deno")
    monkeypatch.setenv("CACHECORE_DISABLE_PLUGINS", "other, demos")
    monkeypatch.setenv("CACHECORE_DISABLE_COPIES", "demo-copy,bites")
    assert main(["backends"]) == 0

    told = capsys.readouterr().out
    assert [line.removeprefix("  note: ") for line in told.splitlines() if line.startswith("  note: ")] == [
        "CACHECORE_BACKEND names 'deno', but no backend of that name is installed; did you mean 'demo'?",
        "CACHECORE_DISABLE_PLUGINS names 'other', but no plugin of that name is installed",
        "CACHECORE_DISABLE_PLUGINS names 'demos', but no plugin of that name is installed; did you mean 'demo'?",
        "CACHECORE_DISABLE_COPIES names 'bites', but no block copy of that name is installed; did you mean 'bytes'?",
    ]
    assert "device demo: none, since there is no backend 'deno', which is forced\n" in told


def test_backends_shows_every_claimed_device_type(install, capsys):
    install()

    assert [device["device"] for device in run_json(capsys, "backends")["devices"]] == ["cpu", "demo", "null"]


def test_a_plugin_that_exits_is_named_by_the_check(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN / "exits"))

    assert main(["backends", "--device", "null", "--check"]) == 1

    told = capsys.readouterr()
    assert (
        "not exits-at-probe (cachecore-broken-exits): probe raised SystemExit: broken-exits has seen enough" in told.out
    )
    # its policy cannot be loaded, so no plan can be made for the engine of the check
    assert "check on null failed: NoBackendError: backend 'exits-at-load@cachecore-broken-exits', which is" in told.err


def test_backends_that_serve_nothing_are_exit_code_1_when_a_device_was_named(capsys):
    assert main(["backends", "--device", "npu"]) == 1
    told = capsys.readouterr()
    line = "`python -m pip install cachecore-ascend-dlinfer` (from a checkout: `./plugins/ascend-dlinfer`)"
    assert told.out.endswith(f"device npu: none serves it; try {line}\n  for other devices: bytes\n")
    assert told.err == "cachecore: error: no backend serves npu; the report says why\n"


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("import_error", "import of 'broken_import_error' failed: ModuleNotFoundError: No module named"),
        ("misspelt_hook", "unknown hook 'cachecore_register_backend'"),
        ("wrong_argument", "Argument(s) {'platform'} are declared in the hookimpl but can not be found"),
        ("wrong_return_type", "expected a sequence of BackendInfo"),
        ("too_new_api", "speaks plugin API 2, this cachecore 1"),
    ],
)
def test_a_broken_plugin_is_shown_with_its_cause(folder, reason, install, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN / folder))
    install()
    assert main(["backends", "--device", "demo"]) == 0

    told = capsys.readouterr().out
    assert reason in told
    assert "failed" in told
    assert "device demo: demo, priority 7, the only one that serves" in told


def test_skipped_plugins_and_disabled_copies_are_shown(install, capsys, monkeypatch):
    install("one")
    install("two")
    monkeypatch.setenv("CACHECORE_DISABLE_PLUGINS", "one")
    monkeypatch.setenv("CACHECORE_DISABLE_COPIES", "two-copy")
    told = run_json(capsys, "backends")

    assert [(plugin["name"], plugin["status"], plugin["reason"]) for plugin in told["plugins"]] == [
        ("two", "loaded", None),
        ("one", "skipped", "denied by CACHECORE_DISABLE_PLUGINS"),
    ]
    assert {copy["name"]: copy["enabled"] for copy in told["block_copies"]} == {"two-copy": False, "bytes": True}
    assert told["environment"] == {"CACHECORE_DISABLE_PLUGINS": "one", "CACHECORE_DISABLE_COPIES": "two-copy"}


def test_a_tie_names_both(install, capsys):
    install("one")
    install("two")

    assert main(["backends", "--device", "demo"]) == 1
    told = capsys.readouterr().out
    assert "device demo: none, since backends 'one' (cachecore-one) and 'two' (cachecore-two) both serve demo" in told


def test_a_strangers_cachecore_is_named(tmp_path, capsys, monkeypatch):
    info = tmp_path / "cachecore-0.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cachecore\nVersion: 0.4.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["backends", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["stranger"]["version"] == "0.4.0"
    assert told.err.startswith("cachecore: warning: distribution 'cachecore' 0.4.0 is installed, a stranger's package")


def test_check_moves_blocks_and_says_which_way(install, capsys):
    install()
    (device,) = run_json(capsys, "backends", "--device", "demo", "--check")["devices"]

    assert device["check"]["error"] is None
    assert (device["check"]["memory_kind"], device["check"]["host_memory_kind"]) == ("demo", "host")
    assert [(copy["direction"], copy["record"], copy["fallback"]) for copy in device["check"]["copies"]] == [
        ("copy", "demo-copy", False),
        ("swap_out", "demo-copy", False),
        ("swap_in", "demo-copy", False),
    ]


def test_a_failed_check_is_exit_code_1(install, capsys):
    site = install()
    (module,) = site.glob("*.py")
    module.write_text(module.read_text().replace("StandardLayoutPolicy, Demo)", "StandardLayoutPolicy, lambda: 3)"))

    assert main(["backends", "--device", "demo", "--check"]) == 1
    told = capsys.readouterr()
    assert (
        "  check failed: PluginError: backend 'demo' of cachecore-demo: load() returned 3, which is no CacheBackend"
        in told.out
    )
    assert told.err.startswith("cachecore: error: the check on demo failed: PluginError")


def test_explain_writes_a_picture_to_scale(plan_file, tmp_path, capsys):
    picture = tmp_path / "layout.svg"
    told = run_json(capsys, "explain", str(plan_file), "--picture", str(picture), "--blocks", "10")

    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert told["picture"] == str(picture)
    assert main(["explain", str(plan_file), "--picture", str(picture)]) == 0
    assert capsys.readouterr().err == f"cachecore: wrote {picture}\n"
    # 3 layers * 512 bytes * 10
    assert told["groups"][0]["device"]["nbytes"] == 15360


def test_explain_draws_in_letters_when_asked(plan_file, capsys):
    assert main(["explain", str(plan_file)]) == 0
    plain = capsys.readouterr().out
    assert main(["explain", str(plan_file), "--text"]) == 0
    drawn = capsys.readouterr().out

    assert drawn.startswith(plain)
    assert "Kk k_cache  Vv v_cache  · padding" in drawn.removeprefix(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no plan: not JSON"),
        ("[1]", "this is no plan: expected a JSON object with format 'cachecore-plan'"),
        ('{"format": "cachecore-plan", "version": 99}', "plan format version 99 is not understood"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_name(text, message, tmp_path, capsys):
    path = tmp_path / "damaged.json"
    path.write_text(text)

    assert main(["explain", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"cachecore: error: {path}: {message}")
    assert told.count("\n") == 1


def test_blocks_of_a_group_that_is_not_there_are_refused(plan_file, capsys):
    assert main(["explain", str(plan_file), "--blocks", "half=3"]) == 1
    assert "--blocks names group 'half', but the plan has group 'full'" in capsys.readouterr().err


def test_plan_says_how_many_blocks_and_tokens_fit(tmp_path, capsys):
    path = tmp_path / "plan.json"
    told = run_json(
        capsys,
        *("plan", "--device", "null", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "bfloat16"),
        *("--block-size", "64", "--kernel-block-size", "16", "--memory", "20GiB", "--host-memory", "1GiB"),
        *("-o", str(path)),
    )

    # 32 layers * (K and V) * 64 tokens * 8 heads * 128 * 2 bytes = 8 MiB a block
    assert told["groups"][0]["block_nbytes"] == 8 * 1024**2
    assert (told["groups"][0]["logical_block_size"], told["groups"][0]["kernel_block_size"]) == (64, 16)
    assert told["device"]["num_blocks"] == {"full": 2560}
    assert told["device"]["longest_sequence"] == 2560 * 64
    assert told["host"]["num_blocks"] == {"full": 128}
    assert "plan" not in told
    assert CachePlanSet.loads(path.read_text()).only().geometry.pages_per_block == 4


def test_one_block_is_told_as_one(capsys):
    # 2 layers * (K and V) * 64 tokens * 64 * 2 bytes = 32 KiB a block
    assert main(["plan", "--device", "null", "--layers", "2", "--head-dim", "64", "--memory", "40KiB"]) == 0

    told = capsys.readouterr().out
    assert "  32 KiB    512 B\n" in told
    assert "device: 40 KiB hold 1 block of group full (8 KiB left)\n" in told


def test_plan_without_an_output_is_in_the_json(capsys):
    told = run_json(capsys, "plan", "--device", "null", "--layers", "0-1,5", "--head-dim", "64", "--tp", "1")

    assert (told["output"], told["device"], told["host"]) == (None, None, None)
    assert CachePlanSet.from_json(told["plan"]).only().specs[0].row_ids == (0, 1, 5)


def test_plan_of_sliding_layers_has_two_groups(capsys):
    argv = [
        "plan",
        "--device",
        "null",
        "--layers",
        "6",
        "--sliding-layers",
        "0-4",
        "--window",
        "512",
        "--head-dim",
        "64",
    ]
    assert main([*argv, "--memory", "1GiB", "--context-length", "8192"]) == 0
    told = capsys.readouterr().out

    assert "sequences of 8,192 tokens that fit at once: " in told
    assert "blocks of group sliding" in told
    with pytest.raises(SystemExit):
        main([*argv, "--memory", "1GiB"])
    assert "groups full, sliding share the memory; say how with --context-length" in capsys.readouterr().err


def test_plan_of_a_quantised_latent(capsys):
    told = run_json(
        capsys,
        *("plan", "--device", "null", "--layers", "61", "--latent-dim", "512", "--rope-dim", "64", "--sparse-mla"),
        *("--quant-policy", "fp8", "--block-size", "64"),
    )

    # 64 tokens * 656 bytes = 41,984, a multiple of 256, in 61 layers
    assert told["groups"][0]["block_nbytes"] == 61 * 41984


def test_more_than_fits_is_refused_with_the_remedy(capsys):
    assert main(["plan", "--device", "null", "--layers", "32", "--head-dim", "128", "--memory", "4KiB"]) == 1
    assert "needed for full: 1, but 4 KiB (4,096 B) are there" in capsys.readouterr().err


def test_bench_runs_the_benchmark_of_the_chosen_backend(install, capsys):
    install(bench=("demo", "bench"))
    told = run_json(capsys, "bench", "swap", "--device", "demo:2", "--quick")

    assert (told["what"], told["backend"], told["bench"], told["quick"]) == ("swap", "demo", "demo", True)
    assert told["results"][0]["scenario"] == "swap demo:2 demo@cachecore-demo True False"


def test_bench_prints_a_table(install, capsys):
    install(bench=("any", "bench"))
    assert main(["bench", "copy", "--device", "demo"]) == 0

    first, header, row = capsys.readouterr().out.splitlines()
    title = "copy on demo by backend demo (priority 7, the only one that serves)"
    assert first == f"{title}, blocks moved by demo-copy of cachecore-demo"
    assert header.split() == ["scenario", "run", "pairs", "path", "GB/s", "limit", "ratio", "contiguous", "submit"]
    assert row.split()[-10:] == ["8", "KiB", "64", "bytes", "3.00", "4.00", "0.75", "0.50", "20", "us"]


@pytest.mark.parametrize(
    ("bench", "message"),
    [
        (None, "no benchmark 'demo' is installed; there are: none."),
        (("demo", "bench_without_a_ratio"), "benchmark 'demo' returned a result without ratio"),
        (("demo", "no_bench"), "benchmark 'demo' of cachecore-demo 1.2 is 3; expected a callable"),
        (
            ("demo", "missing"),
            "benchmark 'demo' of cachecore-demo 1.2: import of 'cachecore_demo_module:missing' raised",
        ),
    ],
)
def test_a_benchmark_that_cannot_run_is_named(bench, message, install, capsys):
    install(bench=bench)

    assert main(["bench", "copy", "--device", "demo"]) == 1
    assert message in capsys.readouterr().err


def test_bench_marks_baselines_and_explains_a_ratio_above_one(install, capsys):
    install(bench=("demo", "bench_with_a_baseline"))
    assert main(["bench", "copy", "--device", "demo"]) == 0

    _, _, own, peer, note = capsys.readouterr().out.splitlines()
    assert own.split()[0] == "runs"
    assert peer.split() == ["baseline", "plain", "3.00", "4.00", "1.25", "0.50", "2.50", "ms"]
    assert note.startswith("  a ratio above 1.00: ")


def test_bench_of_a_named_backend_asks_for_its_own_copies(install, capsys):
    install(bench=("demo", "bench"))
    told = run_json(capsys, "bench", "copy", "--device", "demo", "--backend", "demo")

    assert told["results"][0]["scenario"] == "copy demo demo@cachecore-demo False True"


def test_bench_of_the_reference_is_refused_before_anything_is_printed(install, capsys):
    install(bench=("demo", "bench"))

    assert main(["bench", "copy", "--device", "null"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "backend 'bytes' on null is the reference that copies byte by byte; it has no benchmark. Name a" in told.err


def test_several_benchmarks_need_a_name(install, capsys):
    install("demo", bench=("one", "bench"))
    install("other", priority=1, bench=("two", "bench"))

    assert main(["bench", "copy", "--device", "demo"]) == 1
    assert "no benchmark 'demo' is installed; there are: one, two. Name one with --bench" in capsys.readouterr().err
    assert run_json(capsys, "bench", "copy", "--device", "demo", "--bench", "two")["bench"] == "two"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0", "0 layers; expected 1 to"),
        ("1000000000000", "1000000000000 layers; expected 1 to"),
        ("0-99999999999", "lists more than"),
        ("5-2", "lists no layers from 5 to 2"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_layers_that_cannot_be_meant_are_wrong_usage(layers, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--device", "null", "--head-dim", "8", "--layers", layers])

    assert message in capsys.readouterr().err


def test_a_group_named_twice_is_wrong_usage(plan_file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["explain", str(plan_file), "--blocks", "full=1,full=2"])

    assert "names a group twice" in capsys.readouterr().err


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_failure(redirection, plan_file):
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m cachecore explain "$1" --text {redirection}', sys.executable, str(plan_file)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_standard_input_has_no_plan():
    done = subprocess.run(
        ["sh", "-c", '"$0" -m cachecore explain - <&-', sys.executable], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr[:40]) == (1, "cachecore: error: standard input is clos")


@pytest.mark.parametrize("options", [["--text"], ["--json", "--text"]])
def test_a_terminal_of_another_encoding_gets_escapes(options, plan_file):
    done = subprocess.run(
        [sys.executable, "-m", "cachecore", "explain", str(plan_file), *options],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert done.stdout.isascii()
    if "--json" in options:
        assert "groups" in json.loads(done.stdout)
