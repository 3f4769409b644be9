"""Several calls as one program: type-checked first, one deadline, an account of each call."""

import asyncio

from toolkeep import Runtime
from toolkeep.code_mode import run_code
from toolkeep.testing import Behaviour, Rule, ScriptedServer


def overdue(days: int) -> list[dict[str, str]]:
    """Who has not paid for so long."""
    return [{"name": "Ada", "email": "ada@example.org"}, {"name": "Bob", "email": ""}]


def remind(email: str) -> str:
    return f"sent to {email}"


PROGRAM = """import asyncio
late = await builtin__overdue(days=days)
with_email = [one["email"] for one in late["result"] if one["email"]]
sent = await asyncio.gather(*[builtin__remind(email=email) for email in with_email])
await books__record(key="reminders")
await books__echo(text=sent[0]["result"])
"""


async def main() -> None:
    async with ScriptedServer.spawn() as books:
        await books.script(Rule(tool="record", do=Behaviour(drop="after_run")))  # loses its answer
        async with Runtime.open({"books": books.spec}, functions=[overdue, remind]) as runtime:
            result = await run_code(runtime, PROGRAM, inputs={"days": 30}, allow=["*"], timeout=30)
        for call in result.calls:
            print(f"line {call.line}: {call.tool} {call.outcome.value}")
        print(f"ok: {result.ok}; at the server: {await books.ledger()}")


asyncio.run(main())
