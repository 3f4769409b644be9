"""What each fault means in general. Data: docs/how-to/debug-a-server.md is held to it by a test.

What a finding says of its own case is more exact: it names the key, the file, the tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkeep._doctor.faults import Fault, Step


@dataclass(frozen=True, slots=True)
class About:
    """A fault in general."""

    step: Step
    cause: str
    remedy: str


ABOUT: Mapping[Fault, About] = {
    Fault.UNSET_VARIABLE: About(
        Step.CONFIGURATION,
        "A value names an environment variable that is not set.",
        "Set it, or give a default: `${NAME:-value}`.",
    ),
    Fault.UNKNOWN_KEY: About(
        Step.CONFIGURATION,
        "A key that toolkeep does not know; in other products' files a warning.",
        "Correct its spelling, or remove it.",
    ),
    Fault.BAD_CONFIGURATION: About(
        Step.CONFIGURATION,
        "A value that cannot work, or a file that cannot be read.",
        "Correct it at the place that is named.",
    ),
    Fault.UNWISE: About(
        Step.CONFIGURATION,
        "It works, but is unwise: plain http beyond this machine, a secret in a URL, certificates "
        "that are not verified.",
        "Write https, use `api_key` or `headers`, name the authority in `tls.ca_file`.",
    ),
    Fault.NOT_APPROVED: About(
        Step.CONFIGURATION,
        "The program stands in a file that was found, and nobody has approved it.",
        "`toolkeep config approve NAME`, or name the file with `--config`.",
    ),
    Fault.DISABLED: About(
        Step.CONFIGURATION, "The server is switched off.", "Switch it on where that is said."
    ),
    Fault.COMMAND_MISSING: About(
        Step.COMMAND,
        "There is no such program on the PATH that the server gets, or at that path.",
        "Install it, correct `command`, give its full path, or set PATH in `env`.",
    ),
    Fault.COMMAND_IS_SHELL: About(
        Step.COMMAND,
        "`command` holds arguments or signs that only a shell understands.",
        "Put arguments into `args`, one by one; for a shell, start one: `sh -c …`.",
    ),
    Fault.NOT_EXECUTABLE: About(
        Step.COMMAND,
        "The file is there and cannot be executed.",
        "Make it executable, or name its interpreter in `command`.",
    ),
    Fault.PROGRAM_EXITS: About(
        Step.PROCESS,
        "The program ended before it was ready. Its exit code and last words are shown.",
        "Do what its last words ask for; run the command by hand.",
    ),
    Fault.STDOUT_NOISE: About(
        Step.HANDSHAKE,
        "The program prints to its standard output what is no message. The line is shown.",
        "Have it print to standard error: other clients give up at the first such line.",
    ),
    Fault.DNS_FAILURE: About(
        Step.DNS,
        "The host's name cannot be resolved.",
        "Correct the name in `url`; see whether the network or a VPN is up.",
    ),
    Fault.PORT_CLOSED: About(
        Step.TCP,
        "The machine is there, and nothing listens on that port.",
        "Start the server, or correct the port in `url`.",
    ),
    Fault.NO_CONNECTION: About(
        Step.TCP,
        "No connection came about: a firewall, a wrong address, a network that is down.",
        "See that the address can be reached from here, or set `proxy`.",
    ),
    Fault.PROXY_REFUSED: About(
        Step.TLS,
        "The proxy does not let us through to the server.",
        "Correct `proxy` (or HTTPS_PROXY), give it credentials, or set NO_PROXY.",
    ),
    Fault.TLS_NAME: About(
        Step.TLS,
        "The certificate is for other names than the one in `url`. They are shown.",
        "Use one of its names in `url`, or have a certificate made for this one.",
    ),
    Fault.TLS_EXPIRED: About(
        Step.TLS,
        "The certificate has expired, or this machine's clock is ahead.",
        "Have the certificate renewed; see that the clock is right.",
    ),
    Fault.TLS_NOT_YET: About(
        Step.TLS,
        "The certificate is not valid yet, or this machine's clock is behind.",
        "Set the clock right.",
    ),
    Fault.TLS_SELF_SIGNED: About(
        Step.TLS,
        "The certificate was signed by itself, and nothing here trusts it.",
        "Name it in `tls.ca_file`, or have it signed by an authority.",
    ),
    Fault.TLS_ISSUER: About(
        Step.TLS,
        "Nothing here trusts who issued the certificate, or the server sends no chain.",
        "Name the authority's file in `tls.ca_file`, or in SSL_CERT_FILE.",
    ),
    Fault.TLS_TO_PLAIN: About(
        Step.TLS,
        "`url` says https, and the port speaks plain HTTP.",
        "Write `http://` in `url`, or use the server's TLS port.",
    ),
    Fault.TLS_FAILED: About(
        Step.TLS,
        "The TLS handshake failed otherwise, as when a client certificate is wanted.",
        "See `tls.client_cert`, `tls.client_key` and the versions of TLS on both sides.",
    ),
    Fault.PLAIN_TO_TLS: About(
        Step.HTTP,
        "`url` says http, and the port speaks TLS.",
        "Write `https://` in `url`.",
    ),
    Fault.UNAUTHORIZED: About(
        Step.HTTP,
        "The server wants credentials: none were sent, or it does not take them.",
        "Give `api_key` or an `Authorization` header; renew one that has expired.",
    ),
    Fault.FORBIDDEN: About(
        Step.HTTP,
        "The server knows who asks, and says no; or something before it does.",
        "Use credentials that may do this; see the server's allowed hosts and origins.",
    ),
    Fault.NOT_FOUND: About(
        Step.HTTP,
        "There is nothing at this path. The usual paths are tried, too.",
        "Use the path that answers, which is named.",
    ),
    Fault.NOT_ALLOWED: About(
        Step.HTTP,
        "What is there takes no POST: it is not an MCP endpoint.",
        "Correct the path in `url`.",
    ),
    Fault.THROTTLED: About(
        Step.HTTP, "Too many requests.", "Wait for as long as the server says, then try again."
    ),
    Fault.UNAVAILABLE: About(
        Step.HTTP,
        "The server, or a gateway before it, is not ready.",
        "Try again later; see whether the server runs behind its gateway.",
    ),
    Fault.SERVER_ERROR: About(
        Step.HTTP, "The server failed by itself.", "Look into the server's log."
    ),
    Fault.REFUSED: About(
        Step.HTTP,
        "Another status from 400 on, without an answer of the protocol.",
        "See what its body says; correct `url` or `headers`.",
    ),
    Fault.HTML: About(
        Step.HTTP,
        "A web page answers: this is a site, a login page or a portal.",
        "Give the address of the MCP endpoint in `url`.",
    ),
    Fault.NOT_MCP: About(
        Step.HTTP,
        "What answers does not speak the protocol.",
        "Give the address of the MCP endpoint in `url`.",
    ),
    Fault.REDIRECT: About(
        Step.HTTP,
        "The server has the request go elsewhere. Inside the origin that is a warning.",
        "Use the address that it names in `url`.",
    ),
    Fault.NO_ANSWER: About(
        Step.HTTP,
        "The connection stands, and nothing is answered, not even a plain GET.",
        "See whether the server hangs; restart it; or give it longer with `--timeout`.",
    ),
    Fault.BROKEN: About(
        Step.HTTP,
        "The server closed the connection without an answer.",
        "Look into the server's log; see whether the port is the right one.",
    ),
    Fault.CLOCK: About(
        Step.HTTP,
        "The server's clock and this machine's differ by more than five minutes.",
        "Set the wrong one right: certificates and tokens depend on it.",
    ),
    Fault.SSE_AS_STREAMABLE: About(
        Step.HTTP,
        "The endpoint speaks HTTP+SSE of 2024-11-05, and `transport` says http.",
        "Set `transport` to `sse`, or leave it out.",
    ),
    Fault.STREAMABLE_AS_SSE: About(
        Step.HTTP,
        "The endpoint speaks streamable HTTP, and `transport` says sse.",
        "Set `transport` to `http`, or leave it out.",
    ),
    Fault.VERSION: About(
        Step.HANDSHAKE,
        "Both sides know no common version of the protocol.",
        "Update the older side; see `mode`.",
    ),
    Fault.HANDSHAKE_HANG: About(
        Step.HANDSHAKE,
        "The server is there and does not answer the handshake.",
        "See what the server waits for; or give it longer with `--timeout`.",
    ),
    Fault.HANDSHAKE_REJECTED: About(
        Step.HANDSHAKE,
        "The server answers the handshake with an error, which is shown.",
        "As the error says; see the server's log.",
    ),
    Fault.SESSION_LOST: About(
        Step.SESSION,
        "The server does not know the session that it has just opened: often several instances "
        "behind a balancer that share no sessions.",
        "Have the balancer keep a session at one instance, or share sessions.",
    ),
    Fault.BAD_TOOL: About(
        Step.TOOLS,
        "A tool that breaks the protocol. It is left out; the finding names it.",
        "Correct it in the server.",
    ),
    Fault.BAD_SCHEMA: About(
        Step.TOOLS,
        "A tool's schema is no valid JSON Schema. Calls of it cannot be checked.",
        "Correct the schema in the server: the finding says what is wrong.",
    ),
    Fault.DUPLICATE_TOOL: About(
        Step.TOOLS,
        "Two tools of one name. Only the first can be called.",
        "Rename one of them in the server.",
    ),
    Fault.TOOL_NAME: About(
        Step.TOOLS,
        "A tool's name is empty, longer than 128 characters, or has signs other than "
        "letters, digits, `_`, `-` and `.`.",
        "Rename it in the server; models are shown another name meanwhile.",
    ),
    Fault.ENDLESS_LIST: About(
        Step.TOOLS,
        "The list of tools has no end: a page names a page before it as the next one.",
        "Correct the cursors in the server; the last page has no `nextCursor`.",
    ),
    Fault.NO_TOOLS: About(
        Step.TOOLS, "The server offers no tools.", "See whether that is meant; see its own options."
    ),
    Fault.REJECTED: About(
        Step.TOOLS, "The server answers a request with an error.", "Look into the server's log."
    ),
    Fault.SLOW: About(
        Step.PING,
        "An answer takes longer than a second.",
        "See what keeps the server busy; calls wait for as long.",
    ),
    Fault.SILENT: About(
        Step.PING,
        "The server has agreed to talk and stopped answering.",
        "Look into the server's log; or give it longer with `--timeout`.",
    ),
}
