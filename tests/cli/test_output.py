"""Tables and text, with nothing in them that a terminal would act on."""

import io

import pytest
from rich.console import Console

from toolkeep.cli.output import Output, escape, first_line, fits, make_table

HEADERS = ("name", "era", "description")


def drawn(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """As a terminal of this width shows it."""
    file = io.StringIO()
    Console(file=file, width=width).print(make_table(HEADERS, rows, cut_last=True))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_last_column_gives_way_first_then_the_widest_name():
    assert drawn([("n" * 30, "old", "d" * 500)], 80)[1:] == [f"{'n' * 30}  old  {'d' * 42}…"]
    folded = drawn([("n" * 90, "old", "d" * 500)], 80)[1:]
    assert folded == [f"{'n' * 53}  old  {'d' * 19}…", "n" * 37], "a name is folded, never cut"
    assert drawn([("n" * 90, "old", "short")], 80)[1] == f"{'n' * 62}  old  short"


def test_columns_are_counted_as_a_terminal_shows_them():
    assert drawn([("日本", "old", "x"), ("nippon", "new", "日" * 90)], 80)[1:] == [
        "日本    old  x",
        f"nippon  new  {'日' * 33}…",
    ]


def test_a_terminal_that_is_too_narrow_breaks_the_lines_itself():
    rows = [("n" * 90, "old", "d" * 500)]
    assert fits(HEADERS, rows, 12 + 2 + 3 + 2 + 20)
    assert not fits(HEADERS, rows, 12 + 2 + 3 + 2 + 19)


def test_in_a_pipe_nothing_is_cut_or_wrapped(capsys: pytest.CaptureFixture[str]):
    Output().print_table(HEADERS, [("n" * 90, "old", "d" * 5000), ("short", "new", "s")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == list(HEADERS)
    assert second == f"{'n' * 90}  old  {'d' * 5000}"
    assert third.split() == ["short", "new", "s"]
    assert third.endswith("s"), "no blanks at the end"


def test_what_a_terminal_would_act_on_is_spelled_out(capsys: pytest.CaptureFixture[str]):
    assert escape("a\x1b[2Jb\u202ec\n") == "a\\x1b[2Jb\\u202ec\n"
    assert first_line("\n\n  first \x07\nsecond") == "first \\x07"
    Output().print_table(HEADERS, [("\x1b[2J", "[bold]", "[red]not markup[/red]\nsecond")])
    assert (
        capsys.readouterr().out.splitlines()[1] == "\\x1b[2J  [bold]  [red]not markup[/red] second"
    )
