"""Prompts of the user's own: what a file may say, and what becomes of it."""

from pathlib import Path
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkeep._catalogue.prompts import (
    MAX_PROMPTS,
    LocalPrompt,
    PromptArgument,
    load_prompts,
    split_shadowed,
)
from toolkeep.errors import ConfigError, InvalidArguments

FRONT = """---
name: review
title: "Code review"
description: >
  Looks for
  mistakes
model: gpt  # another product's
tools: { a: [1] }
arguments:
  # the first
  - language
  - name: tone
    description: 'How it''s said'
    required: false
---
Review this {{language}} code, {{ tone }}. {{other}}
"""
TOML = """
[prompts.review]
description = "Looks for mistakes"
arguments = ["language", { name = "tone", description = "How it's said", required = false }]
text = "Review this {{language}} code, {{tone}}."

[prompts]
hello = "Hello, {{name}} and {{name}}."
"""
JSON = '{"prompts": {"hello": "Hello, {{name}}.", "bye": {"text": "Bye.", "title": "Bye"}}}'


def one(folder: Path, text: str, name: str = "one.md") -> LocalPrompt:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    (prompt,) = load_prompts(folder / name)
    return prompt


def text_of(result: mcp_types.GetPromptResult) -> str:
    (message,) = result.messages
    assert isinstance(message.content, mcp_types.TextContent)
    assert message.role == "user"
    return message.content.text


# --- what a file may say ---------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_front_matter_says_what_the_text_cannot(end: str, tmp_path: Path):
    prompt = one(tmp_path, FRONT.replace("\n", end))
    assert prompt.definition == mcp_types.Prompt(
        name="review",
        title="Code review",
        description="Looks for mistakes",
        arguments=[
            mcp_types.PromptArgument(name="language", required=True),
            mcp_types.PromptArgument(name="tone", description="How it's said", required=False),
        ],
    )
    rendered = prompt.render({"language": "C"})
    assert text_of(rendered) == "Review this C code, . {{other}}"
    assert rendered.description == "Looks for mistakes"


@pytest.mark.parametrize(
    ("front", "arguments"),
    [
        ("arguments: [a, 'b']", ("a", "b")),
        ("arguments: []", ()),
        ("arguments:\n- a\n- b # why", ("a", "b")),
        ("arguments:\n  - name: a\n  - name: b", ("a", "b")),
        ("description: |\n  one\n  two\narguments: [a]", ("a",)),
        ("# nothing", ("x",)),
    ],
)
def test_arguments_are_those_declared_or_else_those_in_the_text(
    front: str, arguments: tuple[str, ...], tmp_path: Path
):
    prompt = one(tmp_path, f"---\n{front}\n---\n{{{{x}}}} {{{{x}}}}")
    assert tuple(argument.name for argument in prompt.arguments) == arguments


def test_front_matter_may_be_toml(tmp_path: Path):
    prompt = one(tmp_path, '+++\ndescription = "d"\narguments = ["a"]\n+++\n{{a}}')
    assert (prompt.description, text_of(prompt.render({"a": "1"}))) == ("d", "1")


@pytest.mark.parametrize("name", ["guide.md", "guide.prompt.md"])
def test_a_markdown_file_is_one_prompt_with_the_name_of_the_file(name: str, tmp_path: Path):
    text = "# Tables\n\n## employees\n\nid, name\n\n---\n\n## projects\n\nid\n"
    prompt = one(tmp_path, text, name)
    assert (prompt.name, prompt.arguments, prompt.definition.arguments) == ("guide", (), None)
    assert text_of(prompt.render()) == text.strip()


def test_toml_and_json_have_several(tmp_path: Path):
    (tmp_path / "p.toml").write_text(TOML)
    review, hello = load_prompts(str(tmp_path / "p.toml"))
    assert review.arguments == (
        PromptArgument("language"),
        PromptArgument("tone", "How it's said", required=False),
    )
    assert text_of(hello.render({"name": "Ada"})) == "Hello, Ada and Ada."
    (tmp_path / "p.json").write_text(JSON)
    assert [prompt.name for prompt in load_prompts(tmp_path / "p.json")] == ["hello", "bye"]


def test_a_folder_is_all_its_files_in_order(tmp_path: Path):
    for name, text in {"b.md": "b", "a.json": JSON, ".c.md": "c", "d.txt": "d"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "deeper").mkdir()
    assert [prompt.name for prompt in load_prompts(tmp_path)] == ["hello", "bye", "b"]


# --- arguments -------------------------------------------------------------------------------


@given(value=st.text(max_size=30), other=st.text(max_size=30))
def test_what_an_argument_holds_is_never_looked_at_again(value: str, other: str):
    arguments = (PromptArgument("a"), PromptArgument("b"))
    prompt = LocalPrompt("p", "<{{a}}|{{b}}>", arguments)
    assert text_of(prompt.render({"a": value, "b": other})) == f"<{value}|{other}>"
    nested = {"a": "{{b}}", "b": r"\1 {{a}} \g<0>"}
    assert text_of(prompt.render(nested)) == r"<{{b}}|\1 {{a}} \g<0>>"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (None, "a"),
        ({"b": "1"}, "a"),
        ({"a": "1", "c": "2"}, "c"),
        ({"a": 1}, "a"),
        ({"a": None}, "a"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: Any, named: str):
    prompt = LocalPrompt(
        "p", "{{a}}", (PromptArgument("a"), PromptArgument("b", required=False)), server="files"
    )
    with pytest.raises(InvalidArguments) as caught:
        prompt.render(arguments)
    error = caught.value
    assert (error.server, error.tool) == ("files", "p")
    assert [problem.partition(":")[0] for problem in error.problems] == [named]


# --- mistakes --------------------------------------------------------------------------------

BAD: list[tuple[str, str | bytes, int | None]] = [
    ("a.md", "", None),
    ("a.md", b"\xff\xfe\x00", None),
    ("a.md", b"ok\n\xff", 2),
    ("a.md", b"x" * (1024 * 1024 + 1), None),
    ("a.md", "---\nname: a\n", 1),
    ("a.md", "---\nname: a\n---\n  \n", None),
    ("a.md", "---\nname: a\nname: b\n---\nx", 3),
    ("a.md", "---\nA sentence.\n---\nx", 2),
    ("a.md", '---\ndescription: "open\n---\nx', 2),
    ("a.md", "---\narguments: language\n---\nx", 2),
    ("a.md", "---\narguments:\n  - a\n  b: c\n---\nx", 4),
    ("a.md", "---\narguments:\n  - name: a\n    requird: true\n---\nx", 2),
    ("a.md", "---\narguments:\n  - name: a\n    required: often\n---\nx", 2),
    ("a.md", "---\narguments: [a, a]\n---\nx", 2),
    ("a.md", "---\narguments: ['two words']\n---\nx", 2),
    ("a.md", "---\nname:\n---\nx", 2),
    ("a.md", "+++\nname = 5\n+++\nx", 2),
    ("a.md", "+++\nname = 'a'\nname = 'b'\n+++\nx", 3),
    ("a.json", "{", 1),
    ("a.json", "[]", 1),
    ("a.json", '{\n"prompt": {}}', 2),
    ("a.json", '{"prompts": {}}', 1),
    ("a.json", '{"prompts": {\n"a": 5}}', 2),
    ("a.json", '{"prompts": {"a": {\n"test": "x"}}}', 2),
    ("a.json", '{"prompts": {"a": {"text": "x",\n"arguments": [5]}}}', 2),
    ("a.json", '{"prompts": {"": "x"}}', 1),
    ("a.json", '{"prompts": {"a\\nb": "x"}}', 1),
    ("a.json", '{"prompts": {"a": "x",\n"a": "y"}}', 2),
    ("a.toml", "[prompts.a]\ntext = 5", 2),
    ("a.toml", "[prompts.a]\ntext = ", 2),
    ("a.yaml", "a: b", None),
]


@pytest.mark.parametrize(("name", "content", "line"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_file_is_a_mistake_with_its_line_and_its_remedy(
    name: str, content: str | bytes, line: int | None, tmp_path: Path
):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        load_prompts(path, server="files")
    error = caught.value
    assert error.file == (f"{path}:{line}" if line else str(path))
    assert (error.server, bool(error.remedy), bool(error.key)) == ("files", True, True)


@pytest.mark.parametrize("path", ["nowhere.md", "nowhere", "a\0b.md"])
def test_what_is_not_there_is_a_mistake(path: str, tmp_path: Path):
    with pytest.raises(ConfigError):
        load_prompts(tmp_path / path)


def test_a_folder_without_prompts_is_a_mistake(tmp_path: Path):
    with pytest.raises(ConfigError):
        load_prompts(tmp_path)


def test_a_name_is_given_once_in_a_folder(tmp_path: Path):
    (tmp_path / "a.md").write_text("---\nname: b\n---\nx")
    (tmp_path / "b.md").write_text("x")
    with pytest.raises(ConfigError) as caught:
        load_prompts(tmp_path)
    assert caught.value.file == str(tmp_path / "b.md")


def test_prompts_are_bounded_in_number(tmp_path: Path):
    path = tmp_path / "many.toml"
    path.write_text("[prompts]\n" + "\n".join(f"p{n} = 'x'" for n in range(MAX_PROMPTS)))
    assert len(load_prompts(path)) == MAX_PROMPTS
    with path.open("a") as more:
        more.write("\none_more = 'x'")
    with pytest.raises(ConfigError):
        load_prompts(path)


@given(st.text(max_size=200), st.sampled_from(["---\n", "+++\n", "", "---\narguments:\n- "]))
def test_whatever_a_file_holds_it_is_a_prompt_or_a_mistake(
    tmp_path_factory: pytest.TempPathFactory, text: str, start: str
):
    path = tmp_path_factory.getbasetemp() / "any.md"
    path.write_text(f"{start}{text}", encoding="utf-8", errors="replace")
    try:
        (prompt,) = load_prompts(path)
    except ConfigError:
        return
    prompt.render({argument.name: "x" for argument in prompt.arguments})


# --- beside a server's own -------------------------------------------------------------------


def test_a_servers_own_prompt_wins():
    mine, hidden = LocalPrompt("mine", "x"), LocalPrompt("theirs", "x")
    assert split_shadowed((mine, hidden), {"theirs"}) == ((mine,), ("theirs",))
