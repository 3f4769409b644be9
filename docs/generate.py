"""Write the pages that are generated from the code, or check that they are current.

    python docs/generate.py [PAGE …]            write them, or only these
    python docs/generate.py --check [PAGE …]    exit 1 if one differs from what would be written

The recovery page asks `classify` and `decide` themselves what they do with each example below, and
`error_type` what is raised; the lifecycle page is drawn from the tables of legal transitions,
and that of configuration from the keys of each dialect. So the pages agree with the code. The
public API, the command line, the pictures and `llms.txt` are drawn in `drawing/`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill

from drawing import api, commands, llms
from drawing.pictures import PICTURES

from toolkeep._client.retry import error_type
from toolkeep._rules.backoff import Backoff
from toolkeep._rules.classify import (
    SESSION_LOST_HINTS,
    SESSION_LOST_RULES,
    Evidence,
    FaultKind,
    RpcError,
    SessionLostRule,
    classify,
)
from toolkeep._rules.recovery import (
    MAX_SESSION_FAULTS,
    ConnectionAction,
    RetryContext,
    RetryPolicy,
    TransportKind,
    decide,
)
from toolkeep.config import ServerSpec
from toolkeep.config.dialects.draft import (
    OWN_KEYS,
    PER_SERVER_KEYS,
    TRANSPORT_KEYWORDS,
    DialectKeys,
)
from toolkeep.config.dialects.environment import (
    DEFAULT_VARIABLES,
    ENABLE_VARIABLES,
    LISTED_SERVER_KEYS,
    SERVER_VARIABLES,
    SERVERS_VARIABLE,
    VARIABLE_PREFIX,
)
from toolkeep.config.dialects.mcp_json import (
    OWN_SERVER_KEYS,
    PLAIN_KEYS,
    PRODUCT_KEYS,
    SERVICE_KEYS,
    VSCODE_KEYS,
)
from toolkeep.config.loader import CONFIG_VARIABLE, DEFAULT_PATHS
from toolkeep.errors import Delivery, Failure, FailureKind

DOCS = Path(__file__).resolve().parent
HEADING = "<!-- Written by docs/generate.py from the code. Change the code, then run it again. -->"
PAUSE = 1.0
"""Stands for the backoff; Retry-After is another number, so that the two can be told apart."""
ASKED = "5"
WIDTH = 120


def status(
    number: int, *, session: bool = True, error: RpcError | None = None, **headers: str
) -> Evidence:
    """The evidence that an HTTP status is, to a request of a legacy session."""
    kept = {name.replace("_", "-"): value for name, value in headers.items()}
    trouble = FaultKind.ERROR if number < 300 else FaultKind.STATUS
    return Evidence(
        trouble,
        sent=True,
        detail="",
        status=number,
        headers=kept,
        error=error,
        carried_session=session,
    )


def error(code: int, text: str = "", *, answers: bool = True) -> RpcError:
    return RpcError(code, text, answers_request=answers)


EXAMPLES: list[tuple[str, Evidence]] = [
    (
        "name lookup, connection, TLS or proxy failed, or the process or the stream of a duplex"
        " transport was gone; no byte was written",
        Evidence(FaultKind.CONNECT, sent=False, detail=""),
    ),
    (
        "a program that ends before it is ready for calls",
        Evidence(FaultKind.EXITED, sent=False, detail="", exit_code=1),
    ),
    (
        "404 to a request that carried a session id, without a JSON-RPC error that answers it",
        status(404),
    ),
    (
        "the recorded answer of a known server, or a rule of your own (below)",
        status(400, error=error(32600, "Session terminated")),
    ),
    (
        "a JSON-RPC error that answers this request in other words about a session (below)",
        status(400, error=error(-32000, "card declined after checkout session cs_12 was charged")),
    ),
    ("401 or 403", status(401)),
    ("429", status(429)),
    ("429 or 503 with Retry-After", status(503, retry_after=ASKED)),
    (
        "400, 402, 404 to 407, 410 to 418, 421, 422, 425, 426, 428, 431 or 451 without a JSON-RPC"
        " error: said before anything is done",
        status(422),
    ),
    ("another 4xx without a JSON-RPC error, such as 408 or 409", status(408)),
    (
        "a redirect that is not followed, a wrong content type, half a JSON, too many bytes",
        Evidence(FaultKind.UNREADABLE, sent=True, detail="", status=200),
    ),
    (
        "reset, cut or silent connection, a stream or a process that ends without the answer",
        Evidence(FaultKind.BROKEN, sent=True, detail=""),
    ),
    ("500, 502, 504, or 503 without Retry-After", status(502)),
    (
        "a 5xx whose JSON-RPC error names no request",
        status(500, error=error(-32603, answers=False)),
    ),
    (
        "-32000 “Connection closed”: a server on the Python SDK (2.3) shut down meanwhile",
        status(200, error=error(-32000, "Connection closed")),
    ),
    (
        "another JSON-RPC error to this request, whatever the HTTP status",
        status(200, error=error(-32602)),
    ),
    ("404 with -32601 for this very request", status(404, error=error(-32601))),
    (
        "-32020 from a modern server: a header does not match its argument",
        replace(status(400, error=error(-32020)), standard_codes=True),
    ),
    (
        "-32022 from a modern server, or with the versions it supports: not this protocol version",
        replace(status(400, error=error(-32022)), standard_codes=True),
    ),
]


# --- words -----------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def paragraphs(text: str) -> str:
    """Text wrapped as the other pages are."""
    return "\n\n".join(map(filled, text.strip().split("\n\n")))


def filled(part: str) -> str:
    items = re.split(r"\n(?=- )", part)
    indent = "  " if part.startswith("- ") else ""
    lines = (" ".join(item.split()) for item in items)
    return "\n".join(
        fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) for line in lines
    )


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", HEADING, *parts]) + "\n"


def standing(
    policy: RetryPolicy = RetryPolicy.SAFE,
    *,
    marked: bool = False,
    channel: TransportKind = TransportKind.REQUEST_RESPONSE,
    already: frozenset[ConnectionAction] = frozenset(),
) -> RetryContext:
    return RetryContext(channel, policy, marked, retries_left=1, tried=already)


def again(failure: Failure, policy: RetryPolicy, *, marked: bool) -> str:
    """Whether and when the call goes again."""
    decision = decide(failure, standing(policy, marked=marked), backoff=PAUSE)
    wait, step = decision.retry_delay, decision.action
    if wait is None:
        return "–"
    tried = standing(policy, marked=marked, already=frozenset({step}))
    if decide(failure, tried, backoff=PAUSE).retry_delay is None:
        return "again, once"
    word = {0.0: "again", PAUSE: "after a pause", float(ASKED): "when asked to"}[wait]
    return word + ("°" if decision.costs_budget else "")


def under(failure: Failure, policy: RetryPolicy) -> str:
    """One cell for a policy that does not look at marks."""
    plain, marked = (again(failure, policy, marked=marked) for marked in (False, True))
    return plain if plain == marked else f"{plain}; marked: {marked}"


def connection(failure: Failure, channel: TransportKind) -> str:
    return decide(failure, standing(channel=channel), backoff=PAUSE).action.value


def raised(failure: Failure, *, opening: bool = False) -> str:
    return f"`{error_type(failure, opening=opening).__name__}`"


# --- the pages -------------------------------------------------------------------------------


def recovery() -> str:
    failures = [(seen, classify(evidence)) for seen, evidence in EXAMPLES]
    missing = set(FailureKind) - {failure.kind for _, failure in failures}
    if missing:
        raise SystemExit(f"docs/generate.py has no example of {missing}")
    return page(
        "Retries and reconnects",
        paragraphs(INTRODUCTION),
        table(CALLS_HEAD, [calls_row(seen, failure) for seen, failure in failures]),
        paragraphs(LEGEND),
        "## Connections and errors",
        paragraphs(CONNECTIONS),
        table(CONNECTIONS_HEAD, [connections_row(seen, failure) for seen, failure in failures]),
        "## Several addresses",
        paragraphs(ADDRESSES),
        table(ADDRESSES_HEAD, [addresses_row(seen, failure) for seen, failure in failures]),
        "## Limits",
        bounds(),
        "## Answers that mean a lost session",
        paragraphs(SESSIONS),
        table(SESSIONS_HEAD, sessions_rows(SESSION_LOST_RULES)),
        paragraphs(HINTS),
        table(SESSIONS_HEAD, sessions_rows(SESSION_LOST_HINTS)),
    )


INTRODUCTION = """
After every failed attempt toolkeep answers two separate questions: must the *connection* be
replaced, and may the *call* be sent again? [Outcomes](../explanation/outcomes.md) explains why.

This table is about the call. “Plain” is a tool without, “marked” a tool with the server's mark
*read-only* or *idempotent*, under the default policy `safe`. The policies `never` and `always`
ignore the marks.
"""

CALLS_HEAD = ("what was seen", "failure", "did it run?", "plain", "marked", "`never`", "`always`")

LEGEND = """
- “–”: the call is not sent again, and the error is raised.
- “again, once”: after the action in the next table, once per call. A second such answer is raised;
  so is a 401 or 403 if the authorizer has no new credentials.
- “when asked to”: after the server's Retry-After, if the deadline allows. A Retry-After also
  replaces any other pause.
- “°”: counts against the server's retry budget.

Requests that only read (lists, prompts, resources, completions, ping) are treated as under
`always`. A broken answer stream of a legacy server with event ids is resumed first; this table
applies if that fails. A tool's own error (`isError`) is a result, not a failure. A call that its
caller cancels is never sent again.
"""

CONNECTIONS = """
“Error” is raised when the call is not sent again. If an earlier attempt has an unknown outcome, the
error is `CallOutcomeUnknown`, with this one as its cause. “While connecting” is raised if the
failure happens while the connection is opened: then nothing of the call was sent. Duplex transports
are stdio, HTTP+SSE of 2024-11-05, and servers in this process: all requests share one connection.
"""

CONNECTIONS_HEAD = (
    "what was seen",
    "connection: HTTP",
    "connection: duplex",
    "error",
    "while connecting",
)

ADDRESSES = """
This table is for servers with [multiple endpoints](../how-to/multiple-endpoints.md), while an
endpoint is left that the call has not tried and that is not known to be down. “Elsewhere”: the call
goes to another endpoint at once, which counts neither as a retry nor against the budget. “Here”: as
in the tables above, at the same endpoint. After all endpoints were tried, the tables above apply.

A call in a session (`balance = "session"`) stays at its endpoint: the tables above apply until the
circuit breaker refuses the endpoint. If the endpoint cannot be reached (first row) and the call
would be given up, it goes to another endpoint.
"""

ADDRESSES_HEAD = ("what was seen", "plain", "marked", "`never`", "`always`", "while connecting")

SESSIONS = """
These rules apply only to answers to requests with a session id. An answer with WWW-Authenticate is
about credentials and never matches. An empty cell matches anything. `Failure.rule` names the first
row that matched.

*Strong evidence* is a recorded answer of a known server, matched as a whole. The server did not run
the call, so the session is replaced and the call is sent again. Rules of your own come first and
are strong evidence: `Client(url, session_lost_rules=[SessionLostRule(…)])`.
"""

HINTS = """
*Weak evidence* is a status or a word. The first two rows count as proof if no JSON-RPC error
answers the request. An error with the id of the request is an answer to it, whatever its words: the
session is checked with a `ping`. If it is lost, it is replaced, and the call is sent again if its
tool may be repeated; otherwise the error is `CallRejected`. If it is alive, it is kept, and the
failure is *rejected*.
"""


def calls_row(seen: str, failure: Failure) -> list[str]:
    return [
        seen,
        failure.kind.value,
        failure.delivery.value,
        again(failure, RetryPolicy.SAFE, marked=False),
        again(failure, RetryPolicy.SAFE, marked=True),
        under(failure, RetryPolicy.NEVER),
        under(failure, RetryPolicy.ALWAYS),
    ]


def connections_row(seen: str, failure: Failure) -> list[str]:
    if failure.kind is FailureKind.EXITED:  # there is no connection yet, and no call on it
        return [seen, "–", "–", "–", raised(failure, opening=True)]
    steps = [
        connection(failure, channel)
        for channel in (TransportKind.REQUEST_RESPONSE, TransportKind.DUPLEX)
    ]
    return [seen, *steps, raised(failure), raised(failure, opening=True)]


def addresses_row(seen: str, failure: Failure) -> list[str]:
    if failure.kind is FailureKind.EXITED:  # a program has no address
        return [seen, *["–"] * 5]
    opening = replace(failure, delivery=Delivery.NOT_SENT)
    met = standing(
        RetryPolicy.ALWAYS, marked=True, already=frozenset({ConnectionAction.RENEGOTIATE})
    )
    return [
        seen,
        direction(failure, standing(RetryPolicy.SAFE, marked=False)),
        direction(failure, standing(RetryPolicy.SAFE, marked=True)),
        direction(failure, standing(RetryPolicy.NEVER)),
        direction(failure, standing(RetryPolicy.ALWAYS)),
        direction(opening, met),
    ]


def direction(failure: Failure, at: RetryContext) -> str:
    decision = decide(failure, replace(at, has_other_endpoint=True), backoff=PAUSE)
    if decision.retry_delay is None:
        return "–"
    return "elsewhere" if decision.use_other_endpoint else "here"


def bounds() -> str:
    default = {name: field.default for name, field in ServerSpec.model_fields.items()}
    backoff = Backoff()
    lines = [
        f"- One call is sent again at most `max_retries` times ({default['max_retries']}), for"
        " whatever reason, and never when the pause would end after its deadline.",
        f"- All calls of a client together (°) may be sent again `retry_burst` times"
        f" ({default['retry_burst']}) at once, and `retry_rate` times a second"
        f" ({default['retry_rate']:g}) after that.",
        f"- A pause is at most {backoff.first:g} s before the first retry, {backoff.factor:g}"
        f" times as long before each further one, up to {backoff.cap:g} s, and at least half of"
        " that; where between is left to chance.",
        f"- After `breaker_threshold` transport faults in a row ({default['breaker_threshold']};"
        " only *unreachable*, *exited* and *broken* count) calls fail at once with"
        " `ServerUnavailable`. After"
        f" `breaker_cooldown` ({default['breaker_cooldown']:g} s) one of them may probe; the time"
        " doubles while probes fail.",
        "- A session is given up, and the next attempt opens a new one, when the breaker's probe"
        " or a health check (`ping`) fails in it, or"
        f" {MAX_SESSION_FAULTS} requests one after the other do: a balancer may send it to an"
        " instance that is gone. A check that cannot even reach the server, or is answered by an"
        " error, says nothing against the session.",
    ]
    return "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in lines)


SESSIONS_HEAD = ("server", "HTTP status", "code", "text")


def sessions_rows(rows: Iterable[SessionLostRule]) -> list[list[str]]:
    return [
        [
            row.source,
            "" if row.status is None else str(row.status),
            "" if row.code is None else str(row.code),
            "" if row.pattern is None else shown_pattern(row.pattern),
        ]
        for row in rows
    ]


def shown_pattern(pattern: str) -> str:
    """A whole text as it is; a regular expression with its bars escaped for the table."""
    whole = re.fullmatch(r"\\A(.*?)(\\s\*)?\\Z", pattern)
    return f"“{whole[1]}”" if whole else f"`{pattern}`".replace("|", "\\|")


def lifecycle() -> str:
    return page(
        "States",
        paragraphs(STATES),
        "## A connection",
        paragraphs(CONNECTION_STATES),
        drawn("connection"),
        "## A client",
        paragraphs(CLIENT_STATES),
        drawn("client"),
        "## A member of a group",
        paragraphs(MEMBER_STATES),
        drawn("member"),
    )


STATES = """
These are all states and transitions: the pictures are drawn from the tables that the code checks
itself against. Any other transition is a bug in toolkeep and raises `IllegalTransition`.
"""

CONNECTION_STATES = """
A connection is one open channel to a server. It is used once and never reopened. Only *ready*
accepts calls. *Draining* lets running calls finish and accepts no new ones.
"""

CLIENT_STATES = """
A client outlives its connections. *Idle* has no connection; the next call opens one. A failed
opening leads back to *idle*. *Replacing* opens a connection in place of a lost one. A closed client
is idle and can be opened again.
"""

MEMBER_STATES = """
A member is a server in a [group](../how-to/server-groups.md). *Reconnecting* means that a failed
member is being opened again; it is listed under `failed` until that succeeds. A client replaces
broken connections by itself and stays *connected*. Whether a connected member responds is its
health, not its state.
"""


def drawn(name: str) -> str:
    return f"![The states of a {name}, and the transitions between them](../pictures/{name}.svg)"


def configuration() -> str:
    return page(
        "Configuration keys",
        paragraphs(WORDS),
        "## Search order",
        paragraphs(places()),
        "## Formats",
        paragraphs(DIALECTS),
        table(("format", "content", "an unknown key is"), dialects_rows()),
        "## Other keys",
        table(("key", "meaning", "format"), words_rows()),
        paragraphs(UNITS),
        "## Transports",
        paragraphs(REACHED),
        table(
            ("key", "meaning"),
            [(f"`{word}`", MEANING[way]) for word, way in TRANSPORT_KEYWORDS.items()],
        ),
        "## Ignored keys",
        paragraphs(PASSED_OVER),
        table(("format", "keys"), silent_rows()),
        "## Variables",
        paragraphs(VARIABLES),
        table(("variable", "meaning"), variables_rows()),
        "## Defaults",
        paragraphs(defaults()),
        "## For editors",
        paragraphs(EDITORS),
        SCHEMA,
    )


WORDS = """
Every [setting](../how-to/configure-a-server.md#settings) can be used under its own name in every
format. This page lists the other keys that each format accepts. For how to load a configuration,
see [Load mcp.json](../how-to/load-mcp-json.md).
"""

DIALECTS = """
The format is recognised by the content of the document, not by its file name. The first matching
row applies.
"""

SPOKEN: list[tuple[str, str, DialectKeys]] = [
    (
        "mcpServers",
        '`{"mcpServers": {…}}`: Claude, Cursor, Cline, Windsurf, Gemini CLI',
        PRODUCT_KEYS,
    ),
    (
        "tool service",
        '`{"tool_service": {"enable_mcp": …, "mcp_servers": […]}}`, also without the outer frame',
        SERVICE_KEYS,
    ),
    (
        "toolkeep.toml",
        "`[servers.name]`, `[defaults]` and `[gateway]` in any TOML file; `servers` beside"
        " `defaults` or `gateway`",
        OWN_SERVER_KEYS,
    ),
    (
        "VS Code",
        '`{"servers": {…}, "inputs": […]}`, also under `mcp`, as in its settings',
        VSCODE_KEYS,
    ),
    ("plain", "one server, a list of servers, or a mapping from names to servers", PLAIN_KEYS),
    ("`MCP_SERVERS`", "the variable: a list or a mapping, in JSON", LISTED_SERVER_KEYS),
]

UNITS = """
Durations are seconds, except `timeout` in `mcpServers`: there a number from 1000 on is milliseconds
(Claude Code, Gemini CLI), and from 3601 on if the entry has `alwaysAllow` or `autoApprove` (Cline
and Roo use seconds, up to an hour). Values in `timeouts` are always seconds. `origins` shows what
was written.
"""

REACHED = """
`type` and `transport` mean the same; if both are given, they must agree. Usually neither is needed:
a `url` is HTTP, a `command` is a program.
"""

MEANING = {
    "stdio": "a program that speaks over its standard streams",
    "sse": "HTTP+SSE of 2024-11-05",
    "http": "streamable HTTP",
    "program": "a `command`; or a `.py` file, as `url` or `command`, for the Python that runs you",
    "remote": "a URL; toolkeep detects the HTTP transport",
}

PASSED_OVER = """
These keys concern a product's user interface. They are ignored without a warning. Other unknown
keys are a warning or an error, as the table of formats says.
"""

VARIABLES = """
The name of a server is the part between `MCP_SERVER_` and the key, in lower case; it may contain
underscores. `ARGS` is a JSON array, or words as in a shell. Variables for all servers apply to
every format; a server's own value, and `[defaults]`, override them. A switch is on for `1`, `true`,
`yes` and `on`, and off for `0`, `false`, `no` and `off`.
"""

EDITORS = """
The JSON Schema (draft 2020-12) of `toolkeep.toml` is for editors; `toolkeep.config.schema()`
returns it. To write it to a file:
"""

SCHEMA = """```sh
toolkeep config schema > toolkeep.json
```"""


def words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def places() -> str:
    return (
        f"The file that `{CONFIG_VARIABLE}` names; otherwise the first of {words(DEFAULT_PATHS)};"
        " otherwise the variables below. Only one source is used."
    )


def dialects_rows() -> list[list[str]]:
    return [
        [name, shape, "an error" if spoken.strict else "a warning"]
        for name, shape, spoken in SPOKEN
    ]


def words_rows() -> list[list[str]]:
    known = {word: ours for _, _, spoken in SPOKEN for word, ours in spoken.keys.items()}
    return [
        [f"`{word}`", meaning(ours), ", ".join(where(word))]
        for word, ours in known.items()
        if word != ours or ours in OF_NO_SETTING
    ]


OF_NO_SETTING = {
    "enabled": "open the server or not",
    "disabled": "true: do not open the server",
    "env_file": "a file of `NAME=value` lines for `env`; entries of `env` override it",
    "type": "the transport",
}


def meaning(ours: str) -> str:
    return OF_NO_SETTING.get(ours, f"`{ours}`")


def where(word: str) -> list[str]:
    names = [name for name, _, spoken in SPOKEN if word in spoken.keys]
    return ["everywhere"] if len(names) == len(SPOKEN) else names


def silent_rows() -> list[list[str]]:
    return [[name, words(sorted(spoken.ignored))] for name, _, spoken in SPOKEN if spoken.ignored]


def variables_rows() -> list[list[str]]:
    return [
        [f"`{SERVERS_VARIABLE}`", "servers in JSON"],
        *(
            [f"`{VARIABLE_PREFIX}<NAME>_{key}`", meaning(ours)]
            for key, ours in SERVER_VARIABLES.items()
        ),
        *([f"`{name}`", f"`{ours}` of all"] for name, ours in DEFAULT_VARIABLES.items()),
        *([f"`{name}`", "off: nothing is opened"] for name in ENABLE_VARIABLES),
    ]


def defaults() -> str:
    not_there = words(word for word in OWN_KEYS if word in PER_SERVER_KEYS)
    return (
        "`[defaults]` of a `toolkeep.toml`, and top-level settings of a tool service, apply to all"
        f" servers without a value of their own. Every key is allowed except {not_there}."
        " `headers` and other mappings are merged, name by name. Settings that a program cannot"
        " have, such as `headers`, do not apply to programs."
    )


# --- writing and checking --------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "reference/recovery.md": recovery,
    "reference/lifecycle.md": lifecycle,
    "reference/configuration.md": configuration,
    **commands.PAGES,
    **api.PAGES,
    **PICTURES,
    "llms.txt": partial(llms.drawn, DOCS),
}


def stale_ones(names: Iterable[str]) -> dict[str, str]:
    """The pages that are not what the code draws, with what it does draw."""
    drawn = {name: PAGES[name]() for name in names}
    return {name: text for name, text in drawn.items() if text_of(DOCS / name) != text}


def text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: Sequence[str]) -> int:
    checking, names = arguments[:1] == ["--check"], [a for a in arguments if a != "--check"]
    if not set(names) <= set(PAGES):
        print(__doc__, file=sys.stderr)
        return 2
    stale = stale_ones(names or PAGES)
    for name, text in stale.items():
        if checking:
            said = f"docs/{name} is stale: the code says something else. Run docs/generate.py"
            print(said, file=sys.stderr)
        else:
            write(DOCS / name, text)
            print(f"docs/{name} written")
    return 1 if checking and stale else 0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
