"""Discovery: the plugin is found, its probe is quick and leaves nothing behind, and it is what it says it is."""

from __future__ import annotations

from typing import Any

import importlib_metadata

from cachecore.device import DeviceSpec
from cachecore.policy import LayoutPolicy
from cachecore.probing import answer_within
from cachecore.testing.checks import Check, check
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.fresh import fingerprint
from cachecore.testing.subject import Subject
from cachecore.testing.ways import distribution_name

__all__ = ["CHECKS"]


def _ask(subject: Subject, mode: str) -> dict[str, Any]:
    told = subject.ask_fresh(mode)
    if told is None:
        raise Skipped(
            f"plugin {subject.plugin.name!r} is not installed but registered by hand; a fresh process cannot find it"
        )
    return told


@check("discovery", "policy-without-arrays")
def policy_without_arrays(subject: Subject) -> str | None:
    """The policy loads and plans in a process that has no torch, numpy or triton, as on a laptop."""
    told = _ask(subject, "policy")
    if "error" in told:
        raise Fault(
            "the policy does not load without an array library",
            expected="load_policy() to return a LayoutPolicy",
            found=told["error"],
            cause="torch, numpy or a driver imported at the top of the plugin's module, or by load_policy()",
        )
    here = fingerprint(subject.policy)
    if told["fingerprint"] != here:
        raise Fault(
            "the policy lays out the same specs otherwise where no array library is installed",
            expected=here,
            found=told["fingerprint"],
            cause="a layout that depends on what is installed or on the device that is present",
        )
    return None


@check("discovery", "policy-says-who-it-is")
def policy_says_who_it_is(subject: Subject) -> str | None:
    """A policy has a name and a version, the same each time it is loaded."""
    one, two = subject.info.load_policy(), subject.info.load_policy()
    for policy in (one, two):
        if not isinstance(policy, LayoutPolicy):
            raise Fault("load_policy()", expected="a LayoutPolicy", found=repr(policy))
    for field in ("name", "version"):
        value = getattr(one, field, None)
        if not isinstance(value, str) or not value:
            raise Fault(f"policy {field}", expected="a non-empty string, recorded in every plan", found=repr(value))
        if value != getattr(two, field):
            raise Fault(f"policy {field} of two loads", expected=repr(value), found=repr(getattr(two, field)))
    return f"policy {one.name} {one.version}"


@check("discovery", "probe-answers")
def probe_answers(subject: Subject) -> str | None:
    """The probe answers in time with None or a reason, also about a device that cannot be there."""
    for device in (subject.device, DeviceSpec(subject.device.type, 9999)):
        answer = answer_within(lambda device=device: subject.info.probe(device), subject.probe_limit_s)  # type: ignore[misc]  # mypy cannot infer a lambda's default
        if answer is not None and answer.startswith(("probe raised", "probe returned", "probe did not answer")):
            raise Fault(
                f"probe({str(device)!r})",
                expected=f"None or the reason why not, within {subject.probe_limit_s:g} s",
                found=answer,
                cause="a driver call that blocks, or an error that is not turned into a reason",
            )
    return None


@check("discovery", "probe-quick-in-a-fresh-process")
def probe_quick(subject: Subject) -> str | None:
    """The first probe of a process, imports included, stays under the limit."""
    told = _ask(subject, "probe")
    if "error" in told:
        raise Fault("probe in a fresh process", expected="an answer", found=told["error"])
    if told["seconds"] > subject.probe_limit_s:
        raise Fault(
            f"the first probe of a process took {told['seconds']:.1f} s",
            expected=f"under {subject.probe_limit_s:g} s, or the backend is excluded",
            cause="a cold import of the array library; importlib.util.find_spec tells whether it is there",
        )
    return f"{told['seconds']:.2f} s: {told['answer'] or 'serves'}"


@check("discovery", "probe-without-a-context")
def probe_without_context(subject: Subject) -> str | None:
    """The probe creates no device context: a scheduler process must not hold device memory."""
    told = _ask(subject, "probe")
    if "error" in told:
        raise Fault("probe in a fresh process", expected="an answer", found=told["error"])
    if told.get("context"):
        raise Fault(
            f"after the probe torch.{subject.device.type} is initialised",
            expected="no device context",
            found="torch." + subject.device.type + ".is_initialized() is True",
            cause="asking for memory, properties or a tensor; is_available() and device_count() need no context",
        )
    return None


@check("discovery", "versions")
def versions(subject: Subject) -> str | None:
    """The distribution, its module and its requirement of the core agree."""
    name = subject.plugin.distribution
    try:
        found = importlib_metadata.distribution(name)
    except importlib_metadata.PackageNotFoundError:
        raise Skipped(f"distribution {name!r} is not installed") from None
    if found.version != subject.plugin.version:
        raise Fault(f"version of {name}", expected=found.version, found=subject.plugin.version)
    _check_module_version(subject, found.version)
    required = {line.split(";")[0].strip() for line in found.requires or ()}
    names = {distribution_name(line) for line in required}
    if (
        name != "cachecore-kv"
        and "cachecore-kv" not in names
        and not any(one.startswith("cachecore-") for one in names)
    ):
        raise Fault(
            f"{name} requires {', '.join(sorted(required)) or 'nothing'}",
            expected="cachecore-kv, or a cachecore plugin that does",
            cause="the core is a dependency: pip must know which releases fit",
        )
    if "cachecore" in names:
        raise Fault(f"{name} requires cachecore", expected="cachecore-kv", cause="cachecore on PyPI is a stranger's")
    return f"{name} {found.version}"


def _check_module_version(subject: Subject, version: str) -> None:
    entries = importlib_metadata.entry_points(group="cachecore", name=subject.plugin.name)
    for entry in entries:
        if entry.dist is None or entry.dist.name != subject.plugin.distribution:
            continue
        package = __import__(entry.module.partition(".")[0])
        stated = getattr(package, "__version__", version)
        if stated != version:
            raise Fault(
                f"{package.__name__}.__version__",
                expected=f"{version}, as the distribution says",
                found=stated,
                cause="a version written down twice",
            )


@check("discovery", "backend-loads")
def backend_loads(subject: Subject) -> str | None:
    """load() gives the backend that was announced, with the policy that plans for it."""
    backend = subject.backend
    if backend.name != subject.info.name:
        raise Fault("backend.name", expected=repr(subject.info.name), found=repr(backend.name))
    told, planned = backend.policy, subject.policy
    if (told.name, told.version) != (planned.name, planned.version):
        raise Fault(
            "the backend's policy",
            expected=f"{planned.name!r} {planned.version!r}, as load_policy() gives",
            found=f"{told.name!r} {told.version!r}",
            cause="plans made on a laptop would be refused here",
        )
    return f"serves {subject.device}"


CHECKS: tuple[Check, ...] = (
    policy_without_arrays,
    policy_says_who_it_is,
    probe_answers,
    probe_quick,
    probe_without_context,
    versions,
    backend_loads,
)
