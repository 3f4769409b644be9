"""Several calls as one plan: checked as a whole, run with one deadline, accounted for."""

import asyncio

from toolkeep import Runtime
from toolkeep.compose import Equals, ForEach, Not, Plan, Step, ref, run
from toolkeep.testing import Behaviour, Rule, ScriptedServer


def overdue(days: int) -> list[dict[str, str]]:
    """Who has not paid for so long."""
    return [{"name": "Ada", "email": "ada@example.org"}, {"name": "Bob", "email": ""}]


def remind(email: str) -> str:
    return f"sent to {email}"


EMAIL = ref("item.email")
MAIL = Step("mail", "remind", {"email": EMAIL}, when=Not(Equals(EMAIL, "")))
PLAN = Plan(
    Step("find", "overdue", {"days": ref("inputs.days")}),
    ForEach("each", ref("find.data.result"), MAIL, limit=50),
    Step("note", "books.record", {"key": "reminders"}),
    Step("close", "books.echo", {"text": ref("each[0].mail.text")}),
)


async def main() -> None:
    async with ScriptedServer.spawn() as books:
        await books.script(Rule(tool="record", do=Behaviour(drop="after_run")))  # loses its answer
        async with Runtime.open({"books": books.spec}, functions=[overdue, remind]) as runtime:
            account = await run(runtime, PLAN, inputs={"days": 30}, timeout=30)
        print(*(f"{call.path}: {call.state.value}" for call in account.calls), sep="\n")
        print(f"{account.ended}; at the server: {await books.ledger()}")


if __name__ == "__main__":
    asyncio.run(main())
