"""What is wrong, or unwise, with what is configured: as findings, before anything is opened."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Doubt, Finding, Seen, State, Trouble
from toolkeep._engine.credentials import check_headers, server_headers
from toolkeep._wire.routes import proxy_of
from toolkeep._wire.tls import context_for
from toolkeep.config import Configuration, redact_url
from toolkeep.config.doubts import doubts_about
from toolkeep.errors import ConfigError

_FAULTS = (
    (re.compile(r"the environment variable \S+ is not set"), Fault.UNSET_VARIABLE),
    (re.compile(r"unknown key|the key .* means nothing to toolkeep"), Fault.UNKNOWN_KEY),
)
"""By our own words for them: a `ConfigError` has no code."""
_ABOUT_SERVER = re.compile(r"server '([^']+)'")


def _fault_of(problem: str, default: Fault = Fault.BAD_CONFIGURATION) -> Fault:
    return next((fault for pattern, fault in _FAULTS if pattern.search(problem)), default)


def finding_of(error: ConfigError) -> Finding:
    """A configuration that cannot be loaded."""
    trouble = trouble_of(error)
    place = ", ".join(
        part for part in (error.file, f"key {error.key!r}" if error.key else "") if part
    )
    return Finding(
        server=error.server or "configuration",
        step=Step.CONFIGURATION,
        state=State.FAILED,
        seen=place,
        fault=trouble.fault,
        cause=error.problem,
        remedy=trouble.remedy,
    )


def trouble_of(error: ConfigError, step: Step = Step.CONFIGURATION) -> Trouble:
    key = f" ({error.key!r}{f' in {error.file}' if error.file else ''})" if error.key else ""
    remedy = error.remedy or "Correct it"
    return Trouble(_fault_of(error.problem), f"{error.problem}{key}", remedy, step=step)


def waiting(configuration: Configuration) -> Iterator[Finding]:
    """What is to be said of a configuration beside its servers."""
    told = {doubt for spec in configuration.servers for doubt in doubts_about(spec)}
    for text in configuration.warnings:
        if text not in told:
            yield _warning(text)
    for pending in configuration.needs_approval:
        cause = f"{pending.origin.place} was found, not named, and nobody has approved its program"
        remedy = f"`toolkeep config approve {pending.name}`, or name the file with --config"
        yield Finding(
            pending.name,
            Step.CONFIGURATION,
            State.FAILED,
            pending.shown,
            fault=Fault.NOT_APPROVED,
            cause=cause,
            remedy=remedy,
        )
    for error in configuration.set_aside:
        yield finding_of(error)
    for name, why in configuration.disabled.items():
        yield Finding(name, Step.CONFIGURATION, State.SKIPPED, why, fault=Fault.DISABLED)


def _warning(text: str) -> Finding:
    about = _ABOUT_SERVER.search(text)
    fault = _fault_of(text, Fault.UNWISE)
    remedy = "Correct its spelling, or remove it"
    return Finding(
        about[1] if about else "configuration",
        Step.CONFIGURATION,
        State.WARNING,
        fault=fault,
        cause=text,
        remedy=remedy,
    )


async def consider(case: Case) -> Seen:
    """Whatever could never be sent, trusted or gone through is told now."""
    spec = case.spec
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check_headers(spec)
            server_headers(spec)
        if spec.url:
            proxy_of(spec)
        if case.secure:
            context_for(spec.tls)
    except ConfigError as error:
        raise trouble_of(error) from None
    doubts = [doubt.partition(": ")[2] for doubt in doubts_about(spec)]
    doubts += [str(one.message).partition(": ")[2] for one in said]
    return Seen(_way(case), tuple(_unwise(case, one) for one in doubts))


def _unwise(case: Case, doubt: str) -> Doubt:
    cause, _, remedy = doubt.partition("; ")
    if not remedy and "plain http" in cause:
        remedy = f"write https:// in {case.place('url')}, if the server can"
    remedy = remedy or f"remove it from {case.place('headers')}"
    return Doubt(Fault.UNWISE, cause, remedy[0].upper() + remedy[1:])


def _way(case: Case) -> str:
    spec = case.spec
    known = (case.origins.get(key) for key in ("url", "urls", "command"))
    origin = next((one for one in known if one is not None), None)
    written = f", {origin}" if origin is not None and str(origin) != "given in Python" else ""
    if spec.url:
        proxy = proxy_of(spec)
        through = f" through {redact_url(proxy)}" if proxy else ""
        return f"{spec.transport or 'http'} {case.url}{through}{written}"
    return f"{'stdio ' + spec.command if spec.command else 'a server in this process'}{written}"
