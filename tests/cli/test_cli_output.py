"""The command line where its output cannot be written, where a benchmark misbehaves, and on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from installed import install
from samples import kv_plan, plan_set

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")

BENCH = """
    import os, signal, sys, time
    from cachecore import BackendInfo, ByteBackend, StandardLayoutPolicy, hookimpl

    @hookimpl
    def cachecore_register_backends():
        return [BackendInfo("demo", ("demo",), 7, lambda device: None, StandardLayoutPolicy, ByteBackend)]

    RESULT = dict(scenario="runs", run_nbytes=8192, num_pairs=64, path="bytes", gb_per_s=3.0, limit_gb_per_s=4.0)
    RESULT.update(ratio=0.75, contiguous_ratio=0.5, submit_s=2e-5)

    class Mute:
        def __repr__(self):
            raise SystemExit("no words")

    def run(what, **_):
        {body}
"""


def environment(*folders: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(map(os.path.abspath, filter(None, [*map(str, folders), *sys.path])))
    return {**os.environ, "PYTHONPATH": path, **more}


def bench_plugin(folder: Path, body: str) -> dict[str, str]:
    """An environment with a plugin whose benchmark does ``body``."""
    install(folder, "plugin_bench", BENCH.format(body=body), entry="demo")
    entries = folder / "plugin_bench-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text() + "[cachecore.bench]\ndemo = plugin_bench:run\n")
    return environment(folder, CACHECORE_PLUGINS="demo")


def bench(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cachecore", "bench", "copy", "--device", "demo"],
        env=bench_plugin(folder, body),
        check=False,
        capture_output=True,
        text=True,
    )


@FULL
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "plan --help", "bench --help", "backends --device null", "explain plan.json"]
)
def test_output_that_cannot_be_written_is_a_failure(arguments, unbuffered, tmp_path):
    (tmp_path / "plan.json").write_text(plan_set(kv_plan()).dumps())
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cachecore", *arguments.split()],
            env=environment(PYTHONUNBUFFERED=unbuffered),
            cwd=tmp_path,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert (done.returncode, done.stderr) == (1, "cachecore: error: standard output: No space left on device\n")


@FULL
@pytest.mark.parametrize("arguments", [["plan", "--layers", "2", "--head-dim", "64", "-o"], ["explain", "--picture"]])
def test_a_file_that_cannot_be_written_is_a_failure(arguments, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(plan_set(kv_plan()).dumps())
    more = ["--device", "null", "--backend", "bytes"] if arguments[0] == "plan" else [str(plan)]

    done = subprocess.run(
        [sys.executable, "-m", "cachecore", *arguments, "/dev/full", *more],
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert done.stderr == "cachecore: error: /dev/full: No space left on device\n"


@FULL
@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["nonsense"], 2), (["explain", "nowhere.json"], 1)])
def test_where_nobody_reads_errors_the_exit_code_says_it(arguments, code):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cachecore", *arguments], env=environment(), check=False, stderr=full
        )

    assert done.returncode == code


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit('enough')", "benchmark 'demo' raised SystemExit: enough"),
        ("yield {**RESULT}; raise RuntimeError('no stream')", "benchmark 'demo' raised RuntimeError: no stream"),
        ("return None", "benchmark 'demo' returned None; expected results"),
        ("return 'fast'", "benchmark 'demo' returned 'fast'; expected results"),
        ("return RESULT", "benchmark 'demo' returned {'scenario': 'runs',"),
        ("return [3]", "benchmark 'demo' returned 3 for a result; expected a mapping"),
        ("return [Mute()]", "benchmark 'demo' returned <Mute, whose repr() raised SystemExit> for a result"),
        ("return []", "benchmark 'demo' returned no result"),
        ("return [{**RESULT, 'ratio': None}]", "benchmark 'demo' returned ratio=None; expected a number"),
        ("return [{**RESULT, 'path': 3}]", "benchmark 'demo' returned path=3; expected a string"),
    ],
)
def test_a_benchmark_that_misbehaves_is_named(body, message, tmp_path):
    done = bench(tmp_path, body)

    assert done.returncode == 1
    assert done.stderr.startswith(f"cachecore: error: {message}")
    assert "Traceback" not in done.stderr


def default_interrupts() -> None:
    """As a terminal starts a command; a test run in the background ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "arguments",
    [
        ["backends", "--device", "demo", "--json"],
        ["bench", "copy", "--device", "demo", "--json"],
        ["check", "demo", "--level", "discovery", "--json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_a_plugin_prints_is_no_part_of_the_json(arguments, tmp_path):
    variables = bench_plugin(tmp_path, "print('measuring'); return [RESULT]")
    module = tmp_path / "plugin_bench.py"
    module.write_text(module.read_text().replace("    return [Backend", "    print('here')\n    return [Backend"))

    done = subprocess.run(
        [sys.executable, "-m", "cachecore", *arguments], env=variables, check=False, capture_output=True, text=True
    )

    assert isinstance(json.loads(done.stdout), dict)
    assert "here" in done.stderr
    assert ("measuring" in done.stderr) == (arguments[0] == "bench")


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
@pytest.mark.parametrize("where", ["in the benchmark", "in its setup"])
def test_an_interrupted_benchmark_leaves_nothing(where, tmp_path):
    waiting = "print('waiting', flush=True); time.sleep(60)"
    body = f"yield RESULT; {waiting}" if where == "in the benchmark" else waiting
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "cachecore", "bench", "copy", "--device", "demo"],
        env=bench_plugin(tmp_path / "site", body) | {"TMPDIR": str(scratch)},
        cwd=scratch,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupts,  # noqa: PLW1509  # one call, before anything has a thread
    ) as process:
        while "waiting" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, "", "cachecore: interrupted\n")
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
@pytest.mark.parametrize("where", ["when it is loaded", "when it runs"])
def test_an_interrupt_that_an_import_swallows_is_heard(where, tmp_path):
    body = "import vendor_library; yield RESULT" if where == "when it runs" else "return [RESULT]"
    env = bench_plugin(tmp_path, body)
    entries = tmp_path / "plugin_bench-1.0.dist-info" / "entry_points.txt"
    if where == "when it is loaded":
        entries.write_text(entries.read_text().replace("plugin_bench:run", "plugin_bench_run:run"))
    (tmp_path / "plugin_bench_run.py").write_text("import vendor_library\nfrom plugin_bench import run\n")
    (tmp_path / "vendor_library.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(1)\nexcept BaseException:\n    pass\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "cachecore", "bench", "copy", "--device", "demo"],
        env=env,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=default_interrupts,  # as above
    )

    assert (done.returncode, done.stderr) == (130, "cachecore: interrupted\n")
    assert "runs" not in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_an_interrupt_while_the_command_line_is_imported_is_heard(tmp_path):
    site = tmp_path / "sitecustomize.py"
    site.write_text(
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cachecore.cli.terminal':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cachecore", "--version"],
        env=environment(tmp_path),
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=default_interrupts,  # as above
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cachecore: interrupted\n")
