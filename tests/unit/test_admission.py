"""Who gets a place, who waits, whose place is closed: one decision a test."""

import pytest

from toolkeep._rules.admission import Admission, Grant, Orders, Place


def granted(orders: Orders) -> Grant:
    """The one grant there is, and nothing else to be done."""
    assert orders.close == ()
    (grant,) = orders.grants
    return grant


def place_for(pool: Admission, key: str, *, once: bool = False) -> Place:
    """A new place that is had at once."""
    ticket, orders = pool.ask(key, once=once)
    grant = granted(orders)
    assert (grant.ticket, grant.fresh, grant.place.key) == (ticket, True, key)
    return grant.place


def idle(pool: Admission, *keys: str) -> list[Place]:
    """Places that were used in this order, and are used no more."""
    places = [place_for(pool, key) for key in keys]
    for place in places:
        assert pool.give_back(place) == Orders()
    return places


@pytest.mark.parametrize("bound", [0, -1])
def test_a_pool_without_room_is_no_pool(bound: int):
    with pytest.raises(ValueError, match="room"):
        Admission(bound)


def test_a_place_is_made_for_a_key_and_lent_to_all_of_its_calls_at_once():
    pool = Admission(1)
    assert pool.lend("ann") is None
    place = place_for(pool, "ann")
    assert pool.lend("ann") is place
    assert (place.lent, pool.lent, pool.size) == (2, 1, 1)


def test_a_place_that_one_call_gives_back_is_still_the_others():
    pool = Admission(1)
    place = place_for(pool, "ann")
    pool.lend("ann")
    pool.ask("ben")
    assert pool.give_back(place) == Orders()
    assert pool.give_back(place) == Orders(close=(place,))


def test_a_place_outlives_its_calls_while_nobody_needs_the_room():
    pool = Admission(2)
    (place,) = idle(pool, "ann")
    assert (pool.size, pool.lent) == (1, 0)
    assert pool.lend("ann") is place


def test_when_there_is_no_room_the_place_used_longest_ago_is_closed():
    pool = Admission(2)
    ann, ben = idle(pool, "ann", "ben")
    ticket, orders = pool.ask("cid")
    assert (orders.grants, orders.close) == ((), (ann,))
    assert (pool.size, pool.waiting, ann.closing) == (2, 1, True)
    grant = granted(pool.closed(ann))
    assert (grant.ticket, grant.fresh, grant.place.key) == (ticket, True, "cid")
    assert set(pool.places) == {ben, grant.place}


@pytest.mark.parametrize("used", ["lent", "given back"])
def test_the_last_use_of_a_place_is_its_last_moment_in_use(used: str):
    pool = Admission(2)
    if used == "lent":
        ann, ben = idle(pool, "ann", "ben")
        assert pool.lend("ann") is ann
        pool.give_back(ann)
    else:
        ann, ben = place_for(pool, "ann"), place_for(pool, "ben")
        pool.give_back(ben)
        pool.give_back(ann)
    assert pool.ask("cid")[1].close == (ben,)


def test_a_place_in_use_is_never_closed_and_whoever_waits_gets_it_when_it_is_not():
    pool = Admission(1)
    ann = place_for(pool, "ann")
    ticket, orders = pool.ask("ben")
    assert orders == Orders()
    assert pool.give_back(ann) == Orders(close=(ann,))
    assert granted(pool.closed(ann)).ticket == ticket


def test_a_call_whose_key_has_a_place_does_not_wait_behind_others():
    pool = Admission(1)
    ann = place_for(pool, "ann")
    pool.ask("ben")
    ticket, orders = pool.ask("ann")
    assert orders.grants == (Grant(ticket, ann, fresh=False),)


def test_those_who_wait_are_served_in_the_order_of_coming_and_one_place_does_for_a_key():
    pool = Admission(2)
    ann, ben = place_for(pool, "ann"), place_for(pool, "ben")
    first, _ = pool.ask("cid")
    second, _ = pool.ask("dan")
    third, _ = pool.ask("cid")
    assert pool.give_back(ben) == Orders(close=(ben,))
    orders = pool.closed(ben)
    assert [grant.ticket for grant in orders.grants] == [first, third]
    assert [grant.fresh for grant in orders.grants] == [True, False]
    assert pool.give_back(ann) == Orders(close=(ann,))
    assert granted(pool.closed(ann)).ticket == second


def test_no_more_places_are_closed_than_are_wanted():
    pool = Admission(3)
    ann, ben, cid = idle(pool, "ann", "ben", "cid")
    assert pool.ask("dan")[1].close == (ann,)
    assert pool.ask("dan")[1].close == ()  # will share the one that is coming
    assert pool.ask("eve")[1].close == (ben,)
    assert not cid.closing


def test_a_ticket_that_was_withdrawn_gets_nothing_and_keeps_nobody_waiting():
    pool = Admission(1)
    ann = place_for(pool, "ann")
    first, _ = pool.ask("ben")
    second, _ = pool.ask("cid")
    assert pool.withdraw(first) == Orders()
    pool.give_back(ann)
    assert granted(pool.closed(ann)).ticket == second
    assert pool.withdraw(12345) == Orders()


def test_a_place_for_one_call_is_shared_with_nobody_and_closed_after_it():
    pool = Admission(3)
    one, other = place_for(pool, "ann", once=True), place_for(pool, "ann", once=True)
    assert one is not other
    assert pool.lend("ann") is None
    assert pool.give_back(one) == Orders(close=(one,))
    assert pool.size == 2
    assert pool.closed(one) == Orders()
    assert pool.size == 1


def test_each_call_that_wants_a_place_of_its_own_makes_room_for_one():
    pool = Admission(2)
    ann, ben = idle(pool, "ann", "ben")
    assert pool.ask("cid", once=True)[1].close == (ann,)
    assert pool.ask("cid", once=True)[1].close == (ben,)


def test_a_dismissed_place_is_closed_now_if_it_is_idle():
    pool = Admission(2)
    (ann,) = idle(pool, "ann")
    assert pool.dismiss("ann") == Orders(close=(ann,))
    assert pool.dismiss("ann") == Orders()
    assert pool.lend("ann") is None
    assert pool.size == 1


def test_a_dismissed_place_in_use_is_closed_when_it_is_given_back_and_lent_to_nobody_else():
    pool = Admission(2)
    old = place_for(pool, "ann")
    assert pool.dismiss("ann") == Orders()
    new = place_for(pool, "ann")
    assert new is not old
    assert pool.give_back(old) == Orders(close=(old,))
    assert pool.lend("ann") is new


def test_a_dismissed_place_in_use_is_no_room_that_is_about_to_come():
    pool = Admission(2)
    ann = place_for(pool, "ann")
    (ben,) = idle(pool, "ben")
    pool.dismiss("ann")
    assert pool.ask("cid")[1].close == (ben,)
    assert ann.lent == 1


@pytest.mark.parametrize("mistake", ["given back twice", "closed while it is open"])
def test_a_mistake_of_the_owner_is_not_passed_over(mistake: str):
    pool = Admission(1)
    (place,) = idle(pool, "ann")
    with pytest.raises(AssertionError):
        pool.give_back(place) if mistake == "given back twice" else pool.closed(place)


def test_what_a_pool_says_of_itself_names_nobody():
    pool = Admission(2)
    place = place_for(pool, "secret-ann")
    ticket, orders = pool.ask("secret-ben")
    pool.ask("secret-cid")
    assert repr(pool) == "<Admission 2 of 2, 2 lent, 1 waiting>"
    assert ticket
    assert "secret" not in f"{pool!r}{place!r}{orders!r}"
