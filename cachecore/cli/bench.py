"""``cachecore bench copy|swap``: how fast blocks move, as a share of what the memory can do.

The core measures nothing itself: it has no arrays. A plugin brings a benchmark through an entry point
in group ``cachecore.bench``. Its name is a backend's; its object is called as::

    run(what, *, device, backend, own_copies, quick, progress) -> Iterable[Mapping[str, object]]

``what`` is ``"copy"`` or ``"swap"``; ``device`` a name such as ``"cpu"`` or ``"cuda:0"``; ``backend`` the
backend to measure as ``name@distribution``, to be forced when the engine is opened; ``own_copies`` asks for
the block copies of that backend's plugin ahead of all others (:meth:`PluginRegistry.with_copies_first`);
``quick`` asks for few repetitions; ``progress(message)`` may be called before anything that takes a while.
``one_run_per_block=True`` comes along only where it was asked for: plan with that hint, refuse where it is not
honoured, and say ``one_run_per_block=True`` in each result; results that do not are refused.
Each result has the keys of :data:`RESULT_KEYS` and may have more, which ``--json`` prints; text uses
``direction``, ``record`` (the block copy that the engine took) and ``peer`` (measured for comparison only).
A benchmark checks bytes before it measures, and raises a ``CacheCoreError`` when one is wrong.

The benchmark named like the chosen backend is used; when there is none, the only one installed (a
benchmark of tensors serves every backend of tensors), or the one named with ``--bench``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cachecore.asking import asked, shown
from cachecore.cli.options import add_json, device_name
from cachecore.cli.terminal import CommandError, interrupts_heard, print_json, progress, show
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.nbytes import format_nbytes
from cachecore.ranking import entry_points_of, install_line
from cachecore.reference import BYTE_BACKEND
from cachecore.registry import PluginRegistry

BENCH_GROUP = "cachecore.bench"

RESULT_KEYS = (
    "scenario",
    "run_nbytes",
    "num_pairs",
    "path",
    "gb_per_s",
    "limit_gb_per_s",
    "ratio",
    "contiguous_ratio",
    "submit_s",
)
"""What every result says. Rates are 1e9 payload bytes a second, counted once; ``ratio`` is ``gb_per_s`` of
``limit_gb_per_s``, the fastest way to move runs of ``run_nbytes``; ``contiguous_ratio`` is ``gb_per_s`` of one
contiguous copy; ``submit_s`` is how long the call kept the host."""

_END = object()

_DESCRIPTION = """\
Measure block copies or swaps, after checking that they move the right bytes and no others.

limit is the rate of one plain strided copy of as many runs of the same length in the same memory, measured
in turn; for a swap between a device and the host, of one contiguous transfer. ratio is the rate's share of
it: what is left of 1.00 is the price of blocks. It is above 1.00 where that one kind of copy is not the
fastest: blocks that stand side by side make longer runs, and a copy may use other instructions. contiguous
compares with one copy of one run. submit is how long the call kept the host: on the CPU that is the whole copy.
Rows marked baseline are ways of torch's, for comparison.
"""

_EPILOG = """\
scenarios of cachecore-torch-default are named by what a block has in each pool, rows x bytes:
  61x41984+61x8448    61 rows of 41,984 bytes and 61 rows of 8,448 (an fp8 latent and its index)
  80x8192-runs-of-4   80 rows of 8,192 bytes; blocks stand four side by side
  five-pools          five pools of different rows, two kernel pages a block

Without --backend, what an engine would use is measured: the backend and the block copies that rank first.
With it, the block copies of that backend's own plugin come first, so that backends can be compared.

examples:
  cachecore bench copy                     block copies on the CPU
  cachecore bench copy --backend torch-default
  cachecore bench swap --device cuda --quick
  cachecore bench swap --device cuda --one-run-per-block      blocks laid out to be swapped whole
  cachecore bench copy --json | jq '.results[] | {scenario, ratio}'
"""


def add_command(commands: Any, style: dict[str, Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench", help="measure block copies and swaps", description=_DESCRIPTION, epilog=_EPILOG, **style
    )
    parser.add_argument(
        "what", choices=("copy", "swap"), metavar="copy|swap", help="within the device, or between device and host"
    )
    parser.add_argument("--device", type=device_name, default="cpu", help="where to measure (default: cpu)")
    parser.add_argument(
        "--backend", metavar="NAME", help="measure this backend (name or name@distribution) and its own copies"
    )
    parser.add_argument("--bench", metavar="NAME", help="which installed benchmark to run, where several are")
    parser.add_argument(
        "--one-run-per-block",
        action="store_true",
        help="lay a block out as one run of bytes, as `cachecore plan --one-run-per-block` does",
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: a look, not a measurement")
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Choose the backend, find its benchmark, run it and print what it measured."""
    registry = PluginRegistry()
    progress("loading plugins")
    registry.load_entry_points()
    selection = registry.select(DeviceSpec.parse(options.device), backend=options.backend)
    chosen = selection.chosen
    if chosen.info is BYTE_BACKEND and options.bench is None:
        raise CommandError(
            f"backend {chosen.info.name!r} on {options.device} is the reference that copies byte by byte; it has no "
            "benchmark. Name a device with memory of its own, such as --device cpu; `cachecore backends` shows them"
        )
    name, bench = _find(chosen.info.name, options.bench)
    forced = f"{chosen.info.name}@{chosen.plugin.distribution}"
    who = f"benchmark {name!r}"
    hints = {"one_run_per_block": True} if options.one_run_per_block else {}
    returned = asked(
        who,
        lambda: bench(
            options.what,
            device=options.device,
            backend=forced,
            own_copies=options.backend is not None,
            quick=options.quick,
            progress=progress,
            **hints,
        ),
    )
    results = _checked(returned, who, hints)
    if options.json:
        print_json(
            {
                "what": options.what,
                "device": options.device,
                "backend": chosen.info.name,
                "distribution": chosen.plugin.distribution,
                "bench": name,
                "quick": options.quick,
                "one_run_per_block": options.one_run_per_block,
                "results": list(results),
            }
        )
        return 0
    blocks = " of blocks that are one run" if hints else ""
    _print_table(
        f"{options.what}{blocks} on {options.device} by backend {chosen.info.name} ({selection.reason})",
        results,
        registry,
    )
    return 0


def _print_table(title: str, results: Iterator[dict[str, Any]], registry: PluginRegistry) -> None:
    """Rows as they come, since all of them take minutes; the title waits for the first, which may be a refusal."""
    above = False
    for number, result in enumerate(results):
        if not number:
            show(f"{title}{_movers(result, registry)}\n{_header()}")
        show(_row(result))
        above = above or result["ratio"] > 1
    if above:
        show("  a ratio above 1.00: another way than the limit's one is faster; `cachecore bench --help` says more")


def _movers(result: Mapping[str, Any], registry: PluginRegistry) -> str:
    """Whose block copy moves the blocks, which need not be the backend's plugin."""
    owners = [one.plugin.distribution for one in registry.copies if one.info.name == result.get("record")]
    return f", blocks moved by {result['record']} of {' or '.join(owners)}" if owners else ""


def _find(backend: str, named: str | None) -> tuple[str, Callable[..., Any]]:
    entries = {entry.name: entry for entry in entry_points_of(BENCH_GROUP)[0]}
    names = ", ".join(sorted(entries)) or "none"
    wanted = named or (backend if backend in entries or len(entries) != 1 else next(iter(entries)))
    entry = entries.get(wanted)
    if entry is None:
        raise CommandError(
            f"no benchmark {wanted!r} is installed; there are: {names}. Name one with --bench, or run "
            f"{install_line('cachecore-torch-default')}, which brings the one for torch devices"
        )
    origin = "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    with interrupts_heard():
        loaded: Any = asked(f"benchmark {wanted!r} of {origin}: import of {entry.value!r}", entry.load)
    if not callable(loaded):
        raise PluginError(f"benchmark {wanted!r} of {origin} is {shown(loaded)}; expected a callable")
    return wanted, loaded


def _checked(returned: Any, who: str, hints: Mapping[str, bool]) -> Iterator[dict[str, Any]]:
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
        raise PluginError(f"{who} returned {shown(returned)}; expected results")
    results, empty = asked(who, lambda: iter(returned)), True
    while (result := _next(results, who)) is not _END:
        yield _checked_result(result, who, hints)
        empty = False
    if empty:
        raise PluginError(f"{who} returned no result")


def _next(results: Iterator[Any], who: str) -> Any:
    with interrupts_heard():  # the first one may import an array library
        return asked(who, lambda: next(results, _END))


def _checked_result(result: Any, who: str, hints: Mapping[str, bool]) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise PluginError(f"{who} returned {shown(result)} for a result; expected a mapping")
    missing = [key for key in RESULT_KEYS if key not in result]
    if missing:
        raise PluginError(f"{who} returned a result without {', '.join(missing)}: {shown(result)}")
    for key in RESULT_KEYS:
        kind: Any = str if key in ("scenario", "path") else (int, float)
        if not isinstance(result[key], kind):
            expected = "a string" if kind is str else "a number"
            raise PluginError(f"{who} returned {key}={shown(result[key])}; expected {expected}")
    for hint in hints:
        if result.get(hint) is not True:
            raise PluginError(
                f"{who} returned a result that does not say {hint}=True: {shown(result)}; it may have measured other "
                "blocks than were asked for. Ask without the option, or take a benchmark that knows it"
            )
    return dict(result)


_MILLISECOND = 1e-3

_COLUMNS = (
    ("scenario", "scenario", "<30"),
    ("run", "run_nbytes", ">10"),
    ("pairs", "num_pairs", ">6"),
    ("path", "path", "<30"),
    ("GB/s", "gb_per_s", ">7.2f"),
    ("limit", "limit_gb_per_s", ">7.2f"),
    ("ratio", "ratio", ">6.2f"),
    ("contiguous", "contiguous_ratio", ">11.2f"),
    ("submit", "submit_s", ">11"),
)
"""Title, key and format of each column."""


def _header() -> str:
    return "  " + " ".join(format(title, spec.partition(".")[0]) for title, _, spec in _COLUMNS)


def _row(result: Mapping[str, Any]) -> str:
    submit = result["submit_s"]
    told = {
        **result,
        "scenario": " ".join(filter(None, [result["scenario"], result.get("direction")])),
        "run_nbytes": format_nbytes(result["run_nbytes"]),
        "submit_s": f"{submit * 1e3:,.2f} ms" if submit >= _MILLISECOND else f"{submit * 1e6:,.0f} us",
    }
    if result.get("peer") is True:
        told.update(scenario="  baseline", run_nbytes="", num_pairs="")
    return "  " + " ".join(format(told[key], spec) for _, key, spec in _COLUMNS)
