"""The examination: one step after the other until one fails, and the configuration step itself.

Steps after a failure are reported as not tried. Every wait is bounded. Whatever was opened is
closed at the end, also when the caller stops early.
"""

from __future__ import annotations

import importlib
import re
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from toolkeep._client.auth import check_configured_headers, server_headers
from toolkeep._doctor.network import check_tls, connect, resolve_host
from toolkeep._doctor.program import find_program
from toolkeep._doctor.protocol import CheckedClient
from toolkeep._doctor.report import (
    Fault,
    Finding,
    Problem,
    State,
    Step,
    StepFailed,
    StepResult,
    configuration_fault,
)
from toolkeep._doctor.target import Target
from toolkeep._transport.http_client import proxy_for_server
from toolkeep._transport.tls import ssl_context_for
from toolkeep._transport.trace import OnTrace, redact
from toolkeep.config import Configuration, Origin, ServerSpec, redact_url
from toolkeep.config.spec import spec_warnings
from toolkeep.errors import ConfigError

StepFunction = Callable[[], Awaitable[StepResult]]
OnStep = Callable[[str, Step], None]


async def examine(
    spec: ServerSpec,
    *,
    origins: Mapping[str, Origin] | None = None,
    timeout: float | None = None,
    watch: float | None = None,
    tap: OnTrace | None = None,
    on_step: OnStep | None = None,
) -> AsyncGenerator[Finding]:
    """Examine one server at each of its addresses, and yield each finding at once.

    `timeout` bounds each step: the default is 10 s, and 60 s for a program. `watch`: after the last
    step, keep the connection for so many seconds and see whether it holds. `on_step` is called
    when a step begins. Close the generator.
    """
    # Imported here so that the time it takes is not counted as the server's.
    importlib.import_module("toolkeep._client.connection_manager")
    for one in spec.endpoint_specs:
        target = Target(one, origins or {}, timeout, tap, len(spec.endpoint_specs) == 1)
        async with aclosing(_examine(target, watch, on_step)) as findings:
            async for finding in findings:
                yield finding


async def _examine(
    target: Target, watch: float | None, on_step: OnStep | None
) -> AsyncGenerator[Finding]:
    failed = False
    async with aclosing(CheckedClient(target)) as client:
        for step, function in _steps_of(target, client, watch):
            if failed:
                yield Finding(target.label, step, State.SKIPPED, "not tried")
                continue
            if on_step is not None:
                on_step(target.label, step)
            for finding in await _run(target, step, function):
                failed = failed or finding.state is State.FAILED
                yield _redacted(target, finding)


def _steps_of(
    target: Target, client: CheckedClient, watch: float | None
) -> Iterator[tuple[Step, StepFunction]]:
    yield Step.CONFIGURATION, partial(check_configuration, target)
    if target.spec.command:
        yield Step.COMMAND, partial(find_program, target)
        yield Step.PROCESS, client.process
    elif target.spec.url:
        yield Step.DNS, partial(resolve_host, target)
        yield Step.TCP, partial(connect, target)
        if target.is_https:
            yield Step.TLS, partial(check_tls, target)
        yield Step.HTTP, client.http
    yield Step.HANDSHAKE, client.handshake
    if target.spec.url:
        yield Step.SESSION, client.session
    yield Step.TOOLS, client.tools
    yield Step.PING, client.ping
    if watch is not None:
        yield Step.WATCH, partial(client.watch, watch)


async def _run(target: Target, step: Step, function: StepFunction) -> list[Finding]:
    started = time.monotonic()
    try:
        result = await function()
    except StepFailed as failed:
        seconds = _seconds(failed.seconds, started)
        return [
            Finding.of_problem(
                target.label, step, State.FAILED, failed.problem, seen=failed.seen, seconds=seconds
            )
        ]
    if result.skipped:
        return [Finding(target.label, step, State.SKIPPED, result.seen)]
    seconds = _seconds(result.seconds, started)
    return [
        Finding(target.label, step, State.OK, result.seen, seconds),
        *(
            Finding.of_problem(target.label, step, State.WARNING, problem)
            for problem in result.warnings
        ),
    ]


def _seconds(reported: float | None, started: float) -> float:
    return time.monotonic() - started if reported is None else reported


def _redacted(target: Target, finding: Finding) -> Finding:
    """Servers quote what they were sent: in errors, on pages, in names of tools."""
    if finding.step in (Step.CONFIGURATION, Step.COMMAND):
        return finding  # before anything was sent
    seen, cause = (redact(text, target.secrets) for text in (finding.seen, finding.cause))
    return replace(finding, seen=seen, cause=cause)


# -- the configuration step ---------------------------------------------------------------------


async def check_configuration(target: Target) -> StepResult:
    """Headers can be sent, the proxy can be used and the trust can be loaded."""
    spec = target.spec
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_configured_headers(spec)
            server_headers(spec)
        if spec.url:
            proxy_for_server(spec)
        if target.is_https:
            ssl_context_for(spec.tls)
    except ConfigError as error:
        raise StepFailed(Problem.of_config_error(error)) from None
    texts = (*spec_warnings(spec), *(str(one.message) for one in caught))
    risks = (_risk(target, text.partition(": ")[2]) for text in texts)  # without the server's name
    return StepResult(_route(target), tuple(risks))


def _risk(target: Target, text: str) -> Problem:
    cause, _, remedy = text.partition("; ")
    if not remedy and "plain http" in cause:
        remedy = f"write https:// in {target.key('url')} if the server supports it"
    remedy = remedy or f"remove it from {target.key('headers')}"
    return Problem(Fault.UNWISE, cause, remedy[0].upper() + remedy[1:])


def _route(target: Target) -> str:
    """How the server is reached, and where that is written."""
    spec = target.spec
    origins = (target.origins.get(key) for key in ("url", "urls", "command"))
    origin = next((one for one in origins if one is not None), Origin())
    written = f", {origin}" if origin != Origin() else ""
    if spec.url:
        proxy = proxy_for_server(spec)
        through = f" through {redact_url(proxy)}" if proxy else ""
        return f"{spec.transport or 'http'} {target.url}{through}{written}"
    return f"{'stdio ' + spec.command if spec.command else 'a server in this process'}{written}"


# -- findings about a whole configuration -------------------------------------------------------


def configuration_failure(error: ConfigError) -> Finding:
    """The finding for a configuration, or a part of one, that cannot be loaded."""
    key = f"key {error.key!r}" if error.key else ""
    problem = replace(Problem.of_config_error(error), cause=error.problem)
    return Finding.of_problem(
        error.server or "configuration",
        Step.CONFIGURATION,
        State.FAILED,
        problem,
        seen=", ".join(part for part in (error.file, key) if part),
    )


def configuration_findings(configuration: Configuration) -> Iterator[Finding]:
    """The findings that no examined server reports: general warnings, and servers left out."""
    examined = {text for spec in configuration.servers for text in spec_warnings(spec)}
    for text in configuration.warnings:
        if text not in examined:
            yield _configuration_warning(text)
    for pending in configuration.needs_approval:
        cause = (
            f"toolkeep found {pending.origin.location} by itself, and its program is not approved"
        )
        remedy = f"Run `toolkeep config approve {pending.name}`, or name the file with --config"
        problem = Problem(Fault.NOT_APPROVED, cause, remedy)
        yield Finding.of_problem(
            pending.name, Step.CONFIGURATION, State.FAILED, problem, seen=pending.command_line
        )
    for error in configuration.invalid:
        yield configuration_failure(error)
    for name, why in configuration.disabled.items():
        yield Finding(name, Step.CONFIGURATION, State.SKIPPED, why, fault=Fault.DISABLED)


def _configuration_warning(text: str) -> Finding:
    server = re.search(r"server '([^']+)'", text)
    fault = configuration_fault(text) or Fault.UNWISE
    problem = Problem(fault, text, "Correct its spelling, or remove it")
    name = server[1] if server else "configuration"
    return Finding.of_problem(name, Step.CONFIGURATION, State.WARNING, problem)
