"""Every promise has a test, and every test that names a promise names a real one."""

from collections import defaultdict

import pytest

from tests.requirements import REQUIREMENTS, claims, claims_of


def claimed_by_id() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for claim in claims():
        found[claim.id].append(claim.test)
    return found


def test_every_promise_has_a_test():
    found = claimed_by_id()
    missing = [f"{id_}  {said}" for id_, said in REQUIREMENTS.items() if id_ not in found]
    assert not missing, "no test names these:\n" + "\n".join(missing)


def test_no_test_names_an_unknown_promise():
    unknown = {id_: tests for id_, tests in claimed_by_id().items() if id_ not in REQUIREMENTS}
    assert not unknown, "not in tests/requirements.py"


EXAMPLE = '''
import pytest
pytestmark = [pytest.mark.requirement("S1")]

class TestThings:
    """[S2]"""
    @pytest.mark.requirement("S3", "S4")
    def test_inner(self): ...

async def test_outer():
    """Something happens. [P1, P2]"""

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("L1"))])
def test_rows(x): ...

def helper():
    """[S9]"""
'''


def test_ids_are_read_from_marks_docstrings_classes_and_modules():
    found: dict[str, set[str]] = defaultdict(set)
    for claim in claims_of(EXAMPLE, "example.py"):
        found[claim.test].add(claim.id)
    assert found == {
        "example.py::TestThings::test_inner": {"S1", "S2", "S3", "S4"},
        "example.py::test_outer": {"S1", "P1", "P2"},
        "example.py::test_rows": {"S1", "L1"},
    }


def test_an_id_that_is_not_a_plain_string_is_refused():
    with pytest.raises(ValueError):
        list(claims_of("@pytest.mark.requirement(*IDS)\ndef test_it(): ...", "example.py"))
