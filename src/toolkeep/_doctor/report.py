"""What an examination reports: steps, states, faults and findings. Data only, no I/O.

The values of `Step`, `State` and `Fault` and the keys of `Finding.as_dict` are read by users'
scripts and must never change. The texts may change.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, Self

from toolkeep.errors import ConfigError


class Step(enum.StrEnum):
    """The steps of an examination, in order. A server takes those that its transport needs."""

    CONFIGURATION = "configuration"
    COMMAND = "command"
    PROCESS = "process"
    DNS = "dns"
    TCP = "tcp"
    TLS = "tls"
    HTTP = "http"
    HANDSHAKE = "handshake"
    SESSION = "session"
    TOOLS = "tools"
    PING = "ping"
    WATCH = "watch"
    """Only with `--for`."""


class State(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    """The step works, but something about it needs attention."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not tried: an earlier step failed, or the step does not apply."""


class Fault(enum.StrEnum):
    """Every fault that the doctor can name: its code and what it means in general.

    A finding describes its own case more exactly: it names the key, the file or the tool. The table
    in docs/how-to/debug-a-server.md shows these texts, and a test compares the two.
    """

    step: Step
    """The step that usually finds it."""
    meaning: str
    remedy: str

    def __new__(cls, code: str, step: Step, meaning: str, remedy: str) -> Self:
        fault = str.__new__(cls, code)
        fault._value_ = code
        fault.step, fault.meaning, fault.remedy = step, meaning, remedy
        return fault

    UNSET_VARIABLE = (
        "unset-variable",
        Step.CONFIGURATION,
        "A value refers to an environment variable that is not set.",
        "Set the variable, or give a default: `${NAME:-value}`.",
    )
    UNKNOWN_KEY = (
        "unknown-key",
        Step.CONFIGURATION,
        "toolkeep does not know this key. In a file of another product this is a warning.",
        "Correct the spelling of the key, or remove it.",
    )
    BAD_CONFIGURATION = (
        "bad-configuration",
        Step.CONFIGURATION,
        "A value is invalid, or a file cannot be read.",
        "Correct it at the place that the finding names.",
    )
    UNWISE = (
        "unwise-configuration",
        Step.CONFIGURATION,
        "The configuration works but is risky: plain http to another machine, a secret in a URL, "
        "certificates that are not verified.",
        "Use https, put secrets into `api_key` or `headers`, set `tls.ca_file`.",
    )
    NOT_APPROVED = (
        "not-approved",
        Step.CONFIGURATION,
        "The program comes from a file that toolkeep found by itself, and it is not approved.",
        "Run `toolkeep config approve NAME`, or name the file with `--config`.",
    )
    DISABLED = (
        "disabled",
        Step.CONFIGURATION,
        "The server is disabled in the configuration.",
        "Enable it at the place that the finding names.",
    )
    COMMAND_MISSING = (
        "command-missing",
        Step.COMMAND,
        "The program does not exist at that path, or on the PATH that the server gets.",
        "Install it, correct `command`, give its full path, or set PATH in `env`.",
    )
    COMMAND_IS_SHELL = (
        "command-is-shell",
        Step.COMMAND,
        "`command` contains arguments or shell syntax, but no shell is started.",
        "Put each argument into `args`; if you need a shell, start one: `sh -c …`.",
    )
    NOT_EXECUTABLE = (
        "not-executable",
        Step.COMMAND,
        "The file exists but cannot be executed.",
        "Make it executable, or put its interpreter into `command`.",
    )
    PROGRAM_EXITS = (
        "program-exits",
        Step.PROCESS,
        "The program exited before it was ready. The finding shows its exit code and its last "
        "lines on standard error.",
        "Fix what these lines report; run the command by hand.",
    )
    STDOUT_NOISE = (
        "stdout-noise",
        Step.HANDSHAKE,
        "The program prints text to standard output that is not an MCP message. The finding shows "
        "the first line.",
        "Print to standard error instead: other clients fail at the first such line.",
    )
    DNS_FAILURE = (
        "dns-failure",
        Step.DNS,
        "The host name cannot be resolved.",
        "Correct the host in `url`; check that the network or the VPN is up.",
    )
    EGRESS_REFUSED = (
        "egress-refused",
        Step.DNS,
        "The host has an address that toolkeep does not connect to: link-local or cloud metadata.",
        "If that is meant, add the host or its network to `egress.allow`.",
    )
    PORT_CLOSED = (
        "port-closed",
        Step.TCP,
        "The host is reachable, but nothing listens on that port.",
        "Start the server, or correct the port in `url`.",
    )
    NO_CONNECTION = (
        "no-connection",
        Step.TCP,
        "No TCP connection: a firewall, a wrong address, or a network that is down.",
        "Check that the address is reachable from this machine, or set `proxy`.",
    )
    PROXY_REFUSED = (
        "proxy-refused",
        Step.TLS,
        "The proxy refuses to connect to the server.",
        "Correct `proxy` (or HTTPS_PROXY), give it credentials, or add the host to NO_PROXY.",
    )
    TLS_NAME = (
        "tls-name-mismatch",
        Step.TLS,
        "The certificate is not valid for the host in `url`. The finding shows its names.",
        "Use one of these names in `url`, or issue a certificate for this host.",
    )
    TLS_EXPIRED = (
        "tls-expired",
        Step.TLS,
        "The certificate has expired, or the clock of this machine is ahead.",
        "Renew the certificate; check the clock.",
    )
    TLS_NOT_YET = (
        "tls-not-yet-valid",
        Step.TLS,
        "The certificate is not valid yet, or the clock of this machine is behind.",
        "Correct the clock.",
    )
    TLS_SELF_SIGNED = (
        "tls-self-signed",
        Step.TLS,
        "The certificate is self-signed, and this machine does not trust it.",
        "Name its file in `tls.ca_file`, or get a certificate from an authority.",
    )
    TLS_ISSUER = (
        "tls-unknown-issuer",
        Step.TLS,
        "This machine does not trust the certificate's issuer, or the server sends an incomplete "
        "chain.",
        "Name the authority's file in `tls.ca_file`, or in SSL_CERT_FILE.",
    )
    TLS_TO_PLAIN = (
        "tls-to-plain-port",
        Step.TLS,
        "`url` says https, but the port speaks plain HTTP.",
        "Write `http://` in `url`, or use the server's TLS port.",
    )
    TLS_FAILED = (
        "tls-failed",
        Step.TLS,
        "The TLS handshake failed for another reason, such as a missing client certificate.",
        "Check `tls.client_cert`, `tls.client_key`, and the TLS versions of both sides.",
    )
    PLAIN_TO_TLS = (
        "plain-to-tls-port",
        Step.HTTP,
        "`url` says http, but the port speaks TLS.",
        "Write `https://` in `url`.",
    )
    UNAUTHORIZED = (
        "http-401",
        Step.HTTP,
        "The server requires credentials: none were sent, or it rejected them. The finding quotes "
        "its answer.",
        "Set `api_key` or an `Authorization` header; renew credentials that have expired.",
    )
    OAUTH_METADATA = (
        "oauth-metadata",
        Step.HTTP,
        "The server asks for a login, but does not say where: its OAuth metadata is "
        "missing, wrong or out of reach.",
        "Ask its operator; or set `issuer` in `auth`, or use an `api_key`.",
    )
    OAUTH_ISSUER = (
        "oauth-issuer",
        Step.HTTP,
        "The authorization server's metadata names another issuer than the one that was asked.",
        "If that issuer is right, set `issuer` in `auth`; otherwise do not log in.",
    )
    OAUTH_PKCE = (
        "oauth-pkce",
        Step.HTTP,
        "The authorization server does not offer PKCE with S256, which MCP requires.",
        "Its operator must enable it; toolkeep does not log in without it.",
    )
    OAUTH_REGISTRATION = (
        "oauth-registration",
        Step.HTTP,
        "The authorization server does not let clients register by themselves.",
        "Register a client with its operator, and set `client_id` in `auth`.",
    )
    OAUTH_TOKEN = (
        "oauth-token",
        Step.HTTP,
        "The authorization server gives no token.",
        "Check the client's id and secret; try again if the server is down.",
    )
    LOGIN_NEEDED = (
        "login-needed",
        Step.HTTP,
        "The server wants a login, and no one has logged in.",
        "Run `toolkeep login NAME`.",
    )
    LOGIN_EXPIRED = (
        "login-expired",
        Step.HTTP,
        "The login has ended: it was revoked, or its tokens have expired.",
        "Run `toolkeep login NAME`.",
    )
    TOKEN_AUDIENCE = (
        "token-audience",
        Step.HTTP,
        "The authorization server gives tokens for another server.",
        "Set `resource` in `auth`, or correct `url`.",
    )
    FORBIDDEN = (
        "http-403",
        Step.HTTP,
        "The server, or a gateway in front of it, refuses this client.",
        "Use credentials with the needed permission; check the server's allowed hosts and origins.",
    )
    NOT_FOUND = (
        "http-404",
        Step.HTTP,
        "The server has nothing at this path. The usual paths are tried as well.",
        "Use the path that the finding names.",
    )
    NOT_ALLOWED = (
        "http-405",
        Step.HTTP,
        "This path does not accept POST: it is not an MCP endpoint.",
        "Correct the path in `url`.",
    )
    THROTTLED = (
        "http-429",
        Step.HTTP,
        "The server gets too many requests.",
        "Wait as long as the server says, then try again.",
    )
    UNAVAILABLE = (
        "http-503",
        Step.HTTP,
        "The server, or a gateway in front of it, is not ready.",
        "Try again later; check that the server behind the gateway runs.",
    )
    SERVER_ERROR = (
        "http-5xx",
        Step.HTTP,
        "The server failed with an internal error.",
        "Check the server's log.",
    )
    REFUSED = (
        "http-refused",
        Step.HTTP,
        "Another HTTP status from 400 on, without an MCP message.",
        "Read the body that the finding shows; correct `url` or `headers`.",
    )
    NOT_MCP = (
        "not-mcp",
        Step.HTTP,
        "What answers is not an MCP server: a web page (a site, a login page, a portal), or "
        "something else that is no MCP message.",
        "Set `url` to the address of the MCP endpoint.",
    )
    REDIRECT = (
        "redirect",
        Step.HTTP,
        "The server redirects the request. Within the same origin this is a warning.",
        "Set `url` to the address that the server names.",
    )
    NO_ANSWER = (
        "no-answer",
        Step.HTTP,
        "The server accepts connections but answers no request, not even a plain GET.",
        "Check whether the server hangs; restart it, or raise `--timeout`.",
    )
    BROKEN = (
        "connection-broken",
        Step.HTTP,
        "The server closed the connection without an answer.",
        "Check the server's log, and that the port is the right one.",
    )
    CLOCK = (
        "clock-skew",
        Step.HTTP,
        "The clocks of the server and of this machine differ by more than five minutes.",
        "Correct the wrong clock: certificates and tokens depend on it.",
    )
    SSE_AS_STREAMABLE = (
        "sse-as-streamable",
        Step.HTTP,
        "The endpoint speaks HTTP+SSE of 2024-11-05, but `transport` says http.",
        "Set `transport` to `sse`, or remove it.",
    )
    STREAMABLE_AS_SSE = (
        "streamable-as-sse",
        Step.HTTP,
        "The endpoint speaks streamable HTTP, but `transport` says sse.",
        "Set `transport` to `http`, or remove it.",
    )
    VERSION = (
        "version-mismatch",
        Step.HANDSHAKE,
        "The server and toolkeep support no common protocol version.",
        "Update the older side; check `mode`.",
    )
    HANDSHAKE_HANG = (
        "handshake-hang",
        Step.HANDSHAKE,
        "The server is reachable but does not answer the handshake.",
        "Check what the server is waiting for, or raise `--timeout`.",
    )
    HANDSHAKE_REJECTED = (
        "handshake-rejected",
        Step.HANDSHAKE,
        "The server answers the handshake with an error. The finding shows it.",
        "Fix what the error reports; check the server's log.",
    )
    SESSION_LOST = (
        "session-lost",
        Step.SESSION,
        "The server does not know the session that it has just opened. Often several instances "
        "behind a load balancer do not share sessions.",
        "Route each session to one instance, or share sessions between instances.",
    )
    BAD_TOOL = (
        "malformed-tool",
        Step.TOOLS,
        "A tool violates the protocol. Clients leave it out; the finding names it.",
        "Correct the tool in the server.",
    )
    BAD_SCHEMA = (
        "malformed-schema",
        Step.TOOLS,
        "A tool's schema is not valid JSON Schema, so its calls cannot be checked.",
        "Correct the schema in the server; the finding says what is wrong.",
    )
    DUPLICATE_TOOL = (
        "duplicate-tool",
        Step.TOOLS,
        "Two tools have the same name. Only the first can be called.",
        "Rename one of them in the server.",
    )
    TOOL_NAME = (
        "invalid-tool-name",
        Step.TOOLS,
        "A tool's name is empty, longer than 128 characters, or contains characters other than "
        "letters, digits, `_`, `-` and `.`.",
        "Rename it in the server. Until then models see another name.",
    )
    ENDLESS_LIST = (
        "endless-list",
        Step.TOOLS,
        "The tool list does not end: a page names an earlier page as the next one.",
        "Correct the cursors in the server; the last page has no `nextCursor`.",
    )
    NO_TOOLS = (
        "no-tools",
        Step.TOOLS,
        "The server offers no tools.",
        "Check whether this is intended; check the server's options.",
    )
    REJECTED = (
        "request-rejected",
        Step.TOOLS,
        "The server answers a request with an error.",
        "Check the server's log.",
    )
    SLOW = (
        "slow",
        Step.PING,
        "An answer takes longer than a second.",
        "Check what keeps the server busy: every call waits as long.",
    )
    SILENT = (
        "silent",
        Step.PING,
        "The server stopped answering after the handshake.",
        "Check the server's log, or raise `--timeout`.",
    )
    UNSTABLE = (
        "unstable",
        Step.WATCH,
        "While the server was watched (`--for`), its connection ended or pings failed.",
        "Check the server's log at that time, and whether something in between ends idle "
        "connections.",
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in one case: a step fails with it, or passes and warns of it."""

    fault: Fault
    cause: str
    remedy: str

    @classmethod
    def of_config_error(cls, error: ConfigError) -> Self:
        file = f" in {error.file}" if error.file else ""
        key = f" ({error.key!r}{file})" if error.key else ""
        fault = configuration_fault(error.problem) or Fault.BAD_CONFIGURATION
        return cls(fault, f"{error.problem}{key}", error.remedy or "Correct it")


def configuration_fault(text: str) -> Fault | None:
    """The fault that the text of a `ConfigError` or of a warning describes: they have no code."""
    if re.search(r"the environment variable \S+ is not set", text):
        return Fault.UNSET_VARIABLE
    if re.search(r"unknown key|the key .* means nothing to toolkeep", text):
        return Fault.UNKNOWN_KEY
    return None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returns when it did not fail."""

    seen: str
    warnings: tuple[Problem, ...] = ()
    skipped: bool = False
    """The step does not apply to this server."""
    seconds: float | None = None
    """Shown instead of the duration of the whole step."""


class StepFailed(Exception):
    """What a step raises when it fails. It never leaves this package."""

    def __init__(self, problem: Problem, *, seen: str = "", seconds: float | None = None) -> None:
        super().__init__(problem.cause)
        self.problem, self.seen, self.seconds = problem, seen, seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. Holds no secrets: it may be shown and kept."""

    server: str
    step: Step
    state: State
    seen: str = ""
    """What was found, in one line."""
    seconds: float | None = None
    fault: Fault | None = None
    cause: str = ""
    remedy: str = ""

    @classmethod
    def of_problem(
        cls,
        server: str,
        step: Step,
        state: State,
        problem: Problem,
        *,
        seen: str = "",
        seconds: float | None = None,
    ) -> Self:
        return cls(server, step, state, seen, seconds, problem.fault, problem.cause, problem.remedy)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "server": self.server,
            "step": self.step.value,
            "state": self.state.value,
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "seen": self.seen,
            "fault": None if self.fault is None else str(self.fault),
            "cause": self.cause,
            "remedy": self.remedy,
        }
