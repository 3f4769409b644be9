"""Writes the pages that are drawn from the code, or checks that they are not stale.

    python docs/generate.py [PAGE …]            write them, or only these
    python docs/generate.py --check [PAGE …]    exit 1 if one differs from what would be written

The recovery page asks `classify` and `decide` themselves what they do with each example below, and
`error_for` what is raised; the lifecycle page is drawn from the tables of legal moves, and that of
configuration from the words of each dialect. So the pages cannot say anything else than the code
does. The public API, the command line, the pictures and `llms.txt` are drawn in `drawing/`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill

from drawing import api, commands, llms
from drawing.pictures import PICTURES

from toolkeep._engine.telling import error_for
from toolkeep._rules.budget import Backoff
from toolkeep._rules.classify import (
    SESSION_HINTS,
    SESSION_ROWS,
    Evidence,
    RpcError,
    SessionRow,
    Trouble,
    classify,
)
from toolkeep._rules.recovery import (
    MOST_SESSION_FAULTS,
    Channel,
    Policy,
    Standing,
    Step,
    decide,
)
from toolkeep.config import ServerSpec
from toolkeep.config.dialects import environment, own, plain, products, service, vscode
from toolkeep.config.loading import NAMED_BY, USUAL_PLACES
from toolkeep.config.words import OF_ONE_SERVER, OURS, WAYS, Vocabulary
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
    trouble = Trouble.ERROR if number < 300 else Trouble.STATUS
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
        "name lookup, connection, TLS or proxy failed, or the process or the stream of a pipe was"
        " gone; no byte was written",
        Evidence(Trouble.CONNECT, sent=False, detail=""),
    ),
    (
        "a program that ends before it is ready for calls",
        Evidence(Trouble.EXITED, sent=False, detail="", exit_code=1),
    ),
    (
        "404 to a request that carried a session id, without a JSON-RPC error that answers it",
        status(404),
    ),
    (
        "the recorded answer of a known server, or a row of your own (below)",
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
        Evidence(Trouble.UNREADABLE, sent=True, detail="", status=200),
    ),
    (
        "reset, cut or silent connection, a stream or a process that ends without the answer",
        Evidence(Trouble.BROKEN, sent=True, detail=""),
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
        replace(status(400, error=error(-32020)), fixed_codes=True),
    ),
    (
        "-32022 from a modern server, or with the versions it supports: not this protocol version",
        replace(status(400, error=error(-32022)), fixed_codes=True),
    ),
]


@dataclass(frozen=True)
class Told:
    """One request of one attempt, for the words of its error."""

    method: str = "tools/call"
    tool: str | None = "tool"
    timeout: float = 1.0
    attempts: int = 1
    worst: Delivery = Delivery.NOT_SENT
    last: Failure | None = None


# --- words -----------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def paragraphs(text: str) -> str:
    """Text wrapped as the other pages are."""
    parts = [part.replace("\n", " ") for part in text.strip().split("\n\n")]
    return "\n\n".join(fill(part, WIDTH, break_on_hyphens=False) for part in parts)


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", HEADING, *parts]) + "\n"


def standing(
    policy: Policy = Policy.SAFE,
    *,
    marked: bool = False,
    channel: Channel = Channel.REQUESTS,
    already: frozenset[Step] = frozenset(),
) -> Standing:
    return Standing(channel, policy, marked, replays_left=1, already=already)


def again(failure: Failure, policy: Policy, *, marked: bool) -> str:
    """Whether and when the call goes again."""
    decision = decide(failure, standing(policy, marked=marked), backoff=PAUSE)
    wait, step = decision.replay_after, decision.connection
    if wait is None:
        return "–"
    tried = standing(policy, marked=marked, already=frozenset({step}))
    if decide(failure, tried, backoff=PAUSE).replay_after is None:
        return "again, once"
    word = {0.0: "again", PAUSE: "after a pause", float(ASKED): "when asked to"}[wait]
    return word + ("°" if decision.costs_budget else "")


def under(failure: Failure, policy: Policy) -> str:
    """One cell for a policy that does not look at marks."""
    plain, marked = (again(failure, policy, marked=marked) for marked in (False, True))
    return plain if plain == marked else f"{plain}; marked: {marked}"


def connection(failure: Failure, channel: Channel) -> str:
    return decide(failure, standing(channel=channel), backoff=PAUSE).connection.value


def raised(failure: Failure, *, opening: bool = False) -> str:
    return f"`{type(error_for(failure, 's', Told(), Told(), opening=opening)).__name__}`"


# --- the pages -------------------------------------------------------------------------------


def recovery() -> str:
    failures = [(seen, classify(evidence)) for seen, evidence in EXAMPLES]
    missing = set(FailureKind) - {failure.kind for _, failure in failures}
    if missing:
        raise SystemExit(f"docs/generate.py has no example of {missing}")
    return page(
        "What happens after a failure",
        paragraphs(INTRODUCTION),
        table(CALLS_HEAD, [calls_row(seen, failure) for seen, failure in failures]),
        paragraphs(LEGEND),
        "## What becomes of the connection, and what is raised",
        paragraphs(CONNECTIONS),
        table(CONNECTIONS_HEAD, [connections_row(seen, failure) for seen, failure in failures]),
        "## Several addresses",
        paragraphs(ADDRESSES),
        table(ADDRESSES_HEAD, [addresses_row(seen, failure) for seen, failure in failures]),
        "## Bounds",
        bounds(),
        "## Answers that mean “your session is gone”",
        paragraphs(SESSIONS),
        table(SESSIONS_HEAD, sessions_rows(SESSION_ROWS)),
        paragraphs(HINTS),
        table(SESSIONS_HEAD, sessions_rows(SESSION_HINTS)),
    )


INTRODUCTION = """
Two questions are asked after every failed attempt, and answered separately: is the *connection*
finished, and may the *call* be sent again? [Outcomes](../explanation/outcomes.md) explains why.

This table is about the call. “Plain” and “marked” are a tool without and with the server's mark
*read-only* or *idempotent*, under the policy `safe`, which is the default. The policies `never`
and `always` do not look at marks.
"""

CALLS_HEAD = ("what was seen", "failure", "did it run?", "plain", "marked", "`never`", "`always`")

LEGEND = """
“–” means that the call is not sent again and the error is raised. “Again, once”: after the remedy
in the next table, which is tried once in a call; a second such answer is raised, and so is a 401
or 403 if the authorizer has no better credentials. “When asked to”: after the Retry-After of the
server, if the deadline allows; a Retry-After also takes the place of any other pause. “°” draws on
the budget of the server. Requests that only read (lists, prompts, resources, completions, ping)
are sent as if under `always`.

A broken answer stream of a legacy server that numbers its events is resumed first; it comes to
this table only when that fails. A tool's own error (`isError`) is a result and no failure. A call
that its caller cancels is never sent again.
"""

CONNECTIONS = """
“Error” is what is raised when the call is not sent again, and no earlier attempt of it has an
unknown outcome; if one has, it is `CallOutcomeUnknown`, with the other as its cause. “While
connecting” is what is raised when the opening of the connection met this: then nothing of the call
was sent; a program that ends too early is met only there. Pipes are stdio, HTTP+SSE of 2024-11-05,
and servers in this process: all requests share one, so when it breaks, it is finished.
"""

CONNECTIONS_HEAD = (
    "what was seen",
    "connection: HTTP",
    "connection: pipes",
    "error",
    "while connecting",
)

ADDRESSES = """
This is what is different for a server with [several addresses](../how-to/several-addresses.md),
while one of them is left that the call has not tried and that is not known to be down. “Elsewhere”:
the call goes there at once; that counts neither as one of its replays nor in the budget of the
server. “Here”: as in the tables above, at the same address. When all were tried, the tables above
count again. “While connecting” is what the opening of a connection met: then nothing of the call
was sent, so there is little that keeps it from going elsewhere.

A call of a session that is kept (`balance = "session"`) stays with it: the tables above count, as
if there were one address, until the breaker refuses that address; and where the call would be given
up because its address cannot be reached (the first row), it goes elsewhere instead.
"""

ADDRESSES_HEAD = ("what was seen", "plain", "marked", "`never`", "`always`", "while connecting")

SESSIONS = """
Asked only of answers to requests that carried a session id; an answer with WWW-Authenticate is
about credentials whatever else it says, and so is no such answer. An empty cell matches anything.
The first row that matches is named in `Failure.row`.

*Strong evidence* is a recorded answer of a known server, matched as a whole. The session is
replaced and the call is sent again, because the server did not run it. Rows of your own are strong
evidence, too, and go first: `Client(url, session_rows=[SessionRow(…)])`.
"""

HINTS = """
*Weak evidence* is a status or a word. Where no JSON-RPC error answers the request, the first two
rows are as good as proof. An error with the id of the request is an answer to it, whatever words it
holds: the session is checked with one `ping`, and replaced if it is gone. The call is sent again
only then, and only if its tool may be repeated; otherwise the error is `CallRejected`. A session
that answers its check is kept, and the failure is *rejected*.
"""


def calls_row(seen: str, failure: Failure) -> list[str]:
    return [
        seen,
        failure.kind.value,
        failure.delivery.value,
        again(failure, Policy.SAFE, marked=False),
        again(failure, Policy.SAFE, marked=True),
        under(failure, Policy.NEVER),
        under(failure, Policy.ALWAYS),
    ]


def connections_row(seen: str, failure: Failure) -> list[str]:
    if failure.kind is FailureKind.EXITED:  # there is no connection yet, and no call on it
        return [seen, "–", "–", "–", raised(failure, opening=True)]
    steps = [connection(failure, channel) for channel in (Channel.REQUESTS, Channel.PIPE)]
    return [seen, *steps, raised(failure), raised(failure, opening=True)]


def addresses_row(seen: str, failure: Failure) -> list[str]:
    if failure.kind is FailureKind.EXITED:  # a program has no address
        return [seen, *["–"] * 5]
    opening = replace(failure, delivery=Delivery.NOT_SENT)
    met = standing(Policy.ALWAYS, marked=True, already=frozenset({Step.RENEGOTIATE}))
    return [
        seen,
        direction(failure, standing(Policy.SAFE, marked=False)),
        direction(failure, standing(Policy.SAFE, marked=True)),
        direction(failure, standing(Policy.NEVER)),
        direction(failure, standing(Policy.ALWAYS)),
        direction(opening, met),
    ]


def direction(failure: Failure, at: Standing) -> str:
    decision = decide(failure, replace(at, elsewhere=True), backoff=PAUSE)
    if decision.replay_after is None:
        return "–"
    return "elsewhere" if decision.elsewhere else "here"


def bounds() -> str:
    default = {name: field.default for name, field in ServerSpec.model_fields.items()}
    backoff = Backoff()
    lines = [
        f"- One call is sent again at most `max_replays` times ({default['max_replays']}), for"
        " whatever reason, and never when the pause would end after its deadline.",
        f"- All calls of a client together (°) may be sent again `replay_burst` times"
        f" ({default['replay_burst']}) at once, and `replay_rate` times a second"
        f" ({default['replay_rate']:g}) after that.",
        f"- A pause is at most {backoff.first:g} s before the first replay, {backoff.factor:g}"
        f" times as long before each further one, up to {backoff.cap:g} s, and at least half of"
        " that; where between is left to chance.",
        f"- After `breaker_threshold` transport faults in a row ({default['breaker_threshold']};"
        " only *unreachable*, *exited* and *broken* count) calls fail at once with"
        " `ServerUnavailable`. After"
        f" `breaker_cooldown` ({default['breaker_cooldown']:g} s) one of them may probe; the time"
        " doubles while probes fail.",
        "- A session is given up, and the next attempt opens a new one, when the breaker's probe"
        " or a health check (`ping`) fails in it, or"
        f" {MOST_SESSION_FAULTS} requests one after the other do: a balancer may send it to an"
        " instance that is gone. A check that cannot even reach the server, or is answered by an"
        " error, says nothing against the session.",
    ]
    return "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in lines)


SESSIONS_HEAD = ("who answers so", "HTTP status", "code", "text")


def sessions_rows(rows: Iterable[SessionRow]) -> list[list[str]]:
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
        "States and legal moves",
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
The moves below are the only ones: the pictures are drawn from the tables that the code checks
itself against. A move that is not here would be a bug of ours, and raises `IllegalMove` instead of
going on.
"""

CONNECTION_STATES = """
One generation of an open channel: with a legacy server one session, with a modern one the
agreement on a version. It is used once and never revived. *Ready* is the only state that takes
calls. *Draining* takes no new ones, but lets those that run finish.
"""

CLIENT_STATES = """
A client outlives its connections. *Idle* has nothing open, and the next call opens; a failed
opening leads back there, so it spoils nothing. *Replacing* opens the next connection in place of a
lost one. After closing, the client is idle again and can be used from scratch.
"""

MEMBER_STATES = """
What a [group](../how-to/keep-many-servers-open.md) did with one of its servers. *Retrying* is
failed, and being opened again: the member stays among the `failed` until that has succeeded. From
*connected* to *failed* only leads a connection that ended by itself, in the sense of whatever the
member is; a client replaces its own connections and stays *connected* meanwhile. Whether a
connected member gives signs of life is another question, and answered by its health.
"""


def drawn(name: str) -> str:
    return f"![The states of a {name}, and the moves between them](../pictures/{name}.svg)"


def configuration() -> str:
    return page(
        "Words of a configuration",
        paragraphs(WORDS),
        "## Where it is looked for",
        paragraphs(places()),
        "## Dialects",
        paragraphs(DIALECTS),
        table(("in this table", "shape", "an unknown word is"), dialects_rows()),
        "## Other words for a setting",
        table(("word", "means", "where"), words_rows()),
        paragraphs(UNITS),
        "## How a server is reached",
        paragraphs(REACHED),
        table(("word", "means"), [(f"`{word}`", MEANING[way]) for word, way in WAYS.items()]),
        "## Passed over",
        paragraphs(PASSED_OVER),
        table(("where", "words"), silent_rows()),
        "## Variables",
        paragraphs(VARIABLES),
        table(("variable", "means"), variables_rows()),
        "## Defaults",
        paragraphs(defaults()),
        "## For editors",
        paragraphs(EDITORS),
        SCHEMA,
    )


WORDS = """
Every [setting](../how-to/configure-one-server.md#the-settings) can be given under its own name in
every dialect. This page has the other words, as the code has them. How to use a configuration is
told [elsewhere](../how-to/from-mcp-json.md).
"""

DIALECTS = """
The dialect is told by the shape of the document, not by its name. The first row that fits counts.
"""

SPOKEN: list[tuple[str, str, Vocabulary]] = [
    (
        "mcpServers",
        '`{"mcpServers": {…}}`: Claude, Cursor, Cline, Windsurf, Gemini CLI',
        products.WORDS,
    ),
    (
        "tool service",
        '`{"tool_service": {"enable_mcp": …, "mcp_servers": […]}}`, also without the outer frame',
        service.WORDS,
    ),
    (
        "toolkeep.toml",
        '`[servers.name]` and `[defaults]` in any TOML file; `{"servers": {…}, "defaults": {…}}`',
        own.SERVER,
    ),
    (
        "VS Code",
        '`{"servers": {…}, "inputs": […]}`, also under `mcp`, as in its settings',
        vscode.WORDS,
    ),
    ("plain", "one server, a list of servers, or a mapping from names to servers", plain.WORDS),
    ("`MCP_SERVERS`", "the variable: a list or a mapping, in JSON", environment.WORDS),
]

UNITS = """
Durations are seconds, but for `timeout` in `mcpServers`: there it is milliseconds from 1000 on
(Claude Code, Gemini CLI), and from 3601 on if the server's entry has `alwaysAllow` or
`autoApprove` (Cline and Roo count in seconds, up to an hour). A smaller number is seconds there,
too. In `timeouts` they always are. `origins` shows what was written.
"""

REACHED = """
`type` and `transport` are the same; given both, they must agree. Mostly neither is needed: a `url`
is HTTP, a `command` is a program.
"""

MEANING = {
    "stdio": "a program that speaks over its standard streams",
    "sse": "HTTP+SSE of 2024-11-05",
    "http": "streamable HTTP",
    "program": "a `command`; or a `.py` file, as `url` or `command`, for the Python that runs you",
    "remote": "an address; which HTTP transport it is, is found out",
}

PASSED_OVER = """
These words arrange a product's own screens and questions. They mean nothing here, and are no
warning. Whatever else is unknown is a warning or an error, as the table of dialects says.
"""

VARIABLES = """
A server in variables is called what stands between `MCP_SERVER_` and the key, in lower case; it
may hold underscores. Its `ARGS` are a JSON array, or words as in a shell. The variables for all
servers count for every dialect; what a server, or `[defaults]`, says itself wins. A switch is on
for `1`, `true`, `yes` and `on`, and off for `0`, `false`, `no` and `off`.
"""

EDITORS = """
The JSON Schema (draft 2020-12) of `toolkeep.toml` knows every key and refuses the others, as
reading the file does; `toolkeep.config.schema()` returns it. This writes it to a file, for an
editor to check yours with:
"""

SCHEMA = """```sh
toolkeep config schema > toolkeep.json
```"""


def words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def places() -> str:
    return (
        f"The file that `{NAMED_BY}` names; else the first of {words(USUAL_PLACES)}; else the"
        " variables below. Only one source describes the servers."
    )


def dialects_rows() -> list[list[str]]:
    return [
        [name, shape, "an error" if spoken.strict else "a warning"]
        for name, shape, spoken in SPOKEN
    ]


def words_rows() -> list[list[str]]:
    known = {word: ours for _, _, spoken in SPOKEN for word, ours in spoken.words.items()}
    return [
        [f"`{word}`", meaning(ours), ", ".join(where(word))]
        for word, ours in known.items()
        if word != ours or ours in OF_NO_SETTING
    ]


OF_NO_SETTING = {
    "enabled": "whether it is to be opened",
    "disabled": "whether it is not to be opened",
    "env_file": "a file of `NAME=value` lines for `env`, whose own entries win",
    "type": "how it is reached",
}


def meaning(ours: str) -> str:
    return OF_NO_SETTING.get(ours, f"`{ours}`")


def where(word: str) -> list[str]:
    names = [name for name, _, spoken in SPOKEN if word in spoken.words]
    return ["everywhere"] if len(names) == len(SPOKEN) else names


def silent_rows() -> list[list[str]]:
    return [[name, words(sorted(spoken.silent))] for name, _, spoken in SPOKEN if spoken.silent]


def variables_rows() -> list[list[str]]:
    return [
        [f"`{environment.LISTED}`", "servers in JSON"],
        *(
            [f"`{environment.PREFIX}<NAME>_{key}`", meaning(ours)]
            for key, ours in environment.KEYS.items()
        ),
        *([f"`{name}`", f"`{ours}` of all"] for name, ours in environment.DEFAULTS.items()),
        *([f"`{name}`", "off: nothing is opened"] for name in environment.SWITCHES),
    ]


def defaults() -> str:
    not_there = words(word for word in OURS if word in OF_ONE_SERVER)
    return (
        "`[defaults]` of a `toolkeep.toml`, and what a tool service says beside its servers, counts"
        f" for all servers that do not say it themselves. It can hold every word but {not_there}."
        " `headers` and other mappings are joined, name by name. What a program cannot have, such"
        " as `headers`, passes it by."
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
