"""What toolkeep promises, one behaviour a line, and which tests prove it.

A test names the behaviours it proves with `@pytest.mark.requirement("S4")`, on itself, on its class
or on its module (`pytestmark`), or with `[S4]` in its docstring. `test_requirements.py` fails when
a promise has no test, and when a test names an id that is not here, so that this table always tells
the truth.

Print it: `python tests/requirements.py`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent

REQUIREMENTS: dict[str, str] = {
    # One server: a client that survives
    "S1": "A client that is only built has touched no network, and stays as configured.",
    "S2": "First use opens in two phases, with each handshake message sent once for all.",
    "S3": "Later calls use the same session and TCP connection, for JSON and for SSE.",
    "S4": "A lost session costs two requests on the same connection; the call is replayed.",
    "S5": "What means 'session gone' is a table with sources, which users can extend.",
    "S6": "Many callers losing one session replace it once; running calls end on the old.",
    "S7": "A failed replacement spoils nothing, and max_retries is kept to the letter.",
    "S8": "session_id and is_initialized are true at every moment, after failures too.",
    "S9": "aclose() frees everything at once, from any task, twice, and allows a new start.",
    "S10": "Trust, proxies, certificates and timeouts are settings; redirects stay home.",
    "S11": "Another process resumes a stored session without a request.",
    "S12": "The era is probed briefly, judged by answers and not by outages, and remembered.",
    "S13": "HTTP in all its legal shapes, stdio, HTTP+SSE and in-process carry the same calls.",
    "S14": "A network fault fails one call; siblings and the caller's task go on.",
    "S15": "HTTP status, Retry-After and WWW-Authenticate are on the error.",
    "S16": "A stdio server dies with its client and leaves its last words.",
    "S17": "One loop and one process own a client; a caller's context never reaches its owner.",
    # Calls that tell the truth
    "P1": "A failed call says whether it ran, and the worst of its attempts counts.",
    "P2": "A call is replayed only if it did not run, or may safely run again.",
    "P3": "One deadline covers the whole call; progress may extend it up to a cap.",
    "P4": "Replays are bounded for the call and the server; backoff obeys Retry-After.",
    "P5": "Cancelling works, tells the server, and stays apart from foreign cancellations.",
    "P6": "Bad arguments are refused before anything is sent, and no reference is fetched.",
    "P7": "A finished result is kept, even when it breaks its own schema.",
    "P8": "A broken legacy answer stream is resumed from its last event id.",
    "P9": "A breaker counts transport faults alone; a limit bounds the calls in flight.",
    "P10": "serialize=True puts all requests of a session in one line.",
    "P11": "Results keep all their parts; tool errors are results; size is bounded.",
    # Streaming
    "L1": "A watched call tells its story and ends with exactly one final event.",
    "L2": "Events arrive as the server sends them: none late, lost or doubled.",
    "L3": "A silent tool still starts and completes; leaving the loop cancels.",
    "L4": "A call's logs stay with it, the session's go to observers; events become JSON.",
    # Many servers: a group
    "G1": "Five views of the servers always agree, in configured order.",
    "G2": "A failing server is set aside and retried, or undoes a strict opening.",
    "G3": "Reconnecting touches the failed servers alone, or all when asked.",
    "G4": "One task opens and closes each connection; all open in parallel.",
    "G5": "Closing goes backwards, past failures, and leaks nothing.",
    "G6": "Servers come, go and change while the others keep running.",
    "G7": "Health is checked on live sessions, and a change of it is an event.",
    "G8": "A group manages anything that can connect and clean up.",
    "G9": "One server may have several addresses; a call goes elsewhere only where it may.",
    # The catalogue
    "T1": "All that the servers offer is one immutable, numbered snapshot.",
    "T2": "A tool is found by full or unique short name; a miss suggests another.",
    "T3": "Names for models are legal, stable and free of collisions.",
    "T4": "Filters work on copies, and one that raises excludes the tool.",
    "T5": "The snapshot follows its servers, and is marked stale in an outage.",
    "T6": "Strict schemas for providers are copies; the originals stay untouched.",
    "T7": "Principals see and call what they are permitted, and no more.",
    "T8": "Names resolve to tools in order, all of them or a clear error.",
    "T9": "Prompts, resources and completions are served like tools.",
    "T10": "Python functions join the catalogue as the server 'builtin'.",
    "T11": "Ten thousand tools are searched in a few milliseconds.",
    "T12": "Tools carry tags, groups and their hints.",
    "T13": "Parameters that a tool wants as headers are sent as headers.",
    "T14": "Lists private to a principal are never shown to another.",
    # Headers and identity
    "H1": "Headers win from the call down to the server; nothing is mutated.",
    "H2": "Derived headers are opt-in; protocol and broken ones are refused.",
    "H3": "A call's headers reach the wire and never another call, under concurrency.",
    "H4": "Principals never share a legacy session; pools are bounded.",
    "H5": "The API key is on every request; variables expand, or are named as unset.",
    "H6": "No secret is shown: not in logs, errors, causes, reprs, events or URLs.",
    # Configuration
    "C1": "Every known configuration dialect reads into one model.",
    "C2": "Global defaults come from the environment; a server's own wins.",
    "C3": "A bad entry is set aside and named with its remedy; the others open.",
    "C4": "A file that was found, not named, starts no program unapproved.",
    # Adapters
    "A1": "LangChain and UiPath agents use the tools natively.",
    "A2": "Google ADK agents use the tools natively.",
    "A3": "OpenAI Agents use the servers and the tools natively.",
    "A4": "Pydantic AI has a toolset.",
    "A5": "Every adapter lives through its framework's whole loop, with faults.",
    "A6": "Callers without an event loop have the same runtime.",
    # Seeing it work
    "O1": "One stream of events feeds logs, traces, metrics and usage figures.",
    "O2": "The command line lists, calls, watches and checks.",
    "O3": "One line after opening says how many servers are healthy.",
    # State that processes share
    "D1": "Memory, SQLite and Redis pass one public suite for stores; sealed encrypts any.",
    # Also
    "F1": "Results of read-only tools may be cached, bounded, by principal.",
    "F2": "Several calls run as one program, with one deadline and an account of what ran.",
    "F3": "Sampling, elicitation and roots have handlers in both eras.",
    # Code mode
    "X1": "A program calls tools as typed functions in a sandbox, type-checked before it runs.",
    "X2": "A program's calls have the caller's rights, and change nothing unless allowed by name.",
    "X3": "A program has one deadline, and an account of each call whatever happens.",
    "X4": "Two tools bring code mode to models in every framework; a command brings it to people.",
    "F5": "Whatever a server or a model sends is bounded in memory, time and number.",
    "F4": "Failed calls and an open breaker show at once: health, state, error, summary.",
    # Authorization
    "N1": "An authorizer knows whose request it is, and what it raises reaches the caller.",
    "N2": "What a server names cannot lead to private, loopback or metadata addresses.",
    "N3": "OAuth finds its server, refuses one without PKCE or of another name, and steps up.",
    "N4": "A refresh comes before a person, once for all processes, and loses no grant.",
    "N5": "A login has two halves, in any process, or a device code; logout revokes.",
    "N6": "Services log in with a secret or a signed assertion.",
    "N7": "Logins are stored encrypted, shown nowhere, and never given to another principal.",
    "N8": "What providers want is configuration, and a check names the step that fails.",
    # Gateway
    "W4": "Keys and JWTs say who calls; all else is refused with what a client needs to log in.",
    "W5": "Profiles, rates, audit and metrics: what is shown, how often it is called, who did it.",
    "W6": "A gateway on standard streams serves both eras to one client, and ends with its input.",
    "W7": "A gateway that is stopped or restarted loses no call, and it follows edits.",
    "W8": "One process runs a program for all; if it dies, only calls in flight are unknown.",
}

IN_DOCSTRING = re.compile(r"\[([A-Z]\d+(?:\s*,\s*[A-Z]\d+)*)\]")


@dataclass(frozen=True)
class Claim:
    """That the test `test` proves the requirement `id`."""

    id: str
    test: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


def claims(tests: Path = TESTS) -> list[Claim]:
    """Every claim of every test file under `tests`, read without importing one."""
    return [
        claim
        for path in sorted(tests.rglob("test_*.py"))
        for claim in claims_of(path.read_text(encoding="utf-8"), path.relative_to(tests).as_posix())
    ]


def claims_of(source: str, name: str) -> Iterator[Claim]:
    """The claims of one test file; `name` is what its tests are shown under."""
    tree = ast.parse(source, filename=name)
    yield from _claims_in(tree, name, _marked(_pytestmark(tree)))


def _claims_in(
    parent: ast.Module | ast.ClassDef, name: str, inherited: set[str]
) -> Iterator[Claim]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            own = inherited | _ids_of(node) | _marked(_pytestmark(node))
            yield from _claims_in(node, f"{name}::{node.name}", own)
        elif isinstance(node, Function) and node.name.startswith("test"):
            for id_ in sorted(inherited | _ids_of(node)):
                yield Claim(id_, f"{name}::{node.name}")


def _ids_of(node: Function | ast.ClassDef) -> set[str]:
    ids = _marked(node.decorator_list)
    for group in IN_DOCSTRING.findall(ast.get_docstring(node) or ""):
        ids.update(re.split(r"\s*,\s*", group))
    return ids


def _pytestmark(parent: ast.Module | ast.ClassDef) -> list[ast.expr]:
    return [
        node.value
        for node in parent.body
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        )
    ]


def _marked(expressions: list[ast.expr]) -> set[str]:
    """The ids in `requirement(...)`, wherever in the expressions it stands."""
    ids: set[str] = set()
    for call in (node for expression in expressions for node in ast.walk(expression)):
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "requirement"
        ):
            continue
        for argument in call.args:
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise ValueError(f"line {call.lineno}: write requirement ids as plain strings")
            ids.add(argument.value)
    return ids


def table() -> str:
    """Every requirement with its sentence and its tests, as text."""
    proofs: dict[str, list[str]] = {}
    for claim in claims():
        proofs.setdefault(claim.id, []).append(claim.test)
    lines: list[str] = []
    for id_, sentence in REQUIREMENTS.items():
        lines.append(f"{id_:<4} {sentence}")
        lines.extend(f"       {test}" for test in proofs.get(id_, ["NO TEST"]))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
