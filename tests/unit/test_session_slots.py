"""Who gets a place, who waits, whose place is closed: one decision a test."""

import pytest

from toolkeep._rules.session_slots import PoolActions, Slot, SlotAllocator, SlotGrant


def granted(orders: PoolActions) -> SlotGrant:
    """The one grant there is, and nothing else to be done."""
    assert orders.close == ()
    (grant,) = orders.grants
    return grant


def place_for(pool: SlotAllocator, key: str, *, once: bool = False) -> Slot:
    """A new place that is had at once."""
    ticket, orders = pool.request(key, once=once)
    grant = granted(orders)
    assert (grant.ticket, grant.is_new, grant.slot.key) == (ticket, True, key)
    return grant.slot


def idle(pool: SlotAllocator, *keys: str) -> list[Slot]:
    """Places that were used in this order, and are used no more."""
    places = [place_for(pool, key) for key in keys]
    for place in places:
        assert pool.release(place) == PoolActions()
    return places


@pytest.mark.parametrize("bound", [0, -1])
def test_a_pool_without_room_is_no_pool(bound: int):
    with pytest.raises(ValueError, match="at least 1"):
        SlotAllocator(bound)


def test_a_place_is_made_for_a_key_and_lent_to_all_of_its_calls_at_once():
    pool = SlotAllocator(1)
    assert pool.acquire("ann") is None
    place = place_for(pool, "ann")
    assert pool.acquire("ann") is place
    assert (place.users, pool.in_use, pool.size) == (2, 1, 1)


def test_a_place_that_one_call_gives_back_is_still_the_others():
    pool = SlotAllocator(1)
    place = place_for(pool, "ann")
    pool.acquire("ann")
    pool.request("ben")
    assert pool.release(place) == PoolActions()
    assert pool.release(place) == PoolActions(close=(place,))


def test_a_place_outlives_its_calls_while_nobody_needs_the_room():
    pool = SlotAllocator(2)
    (place,) = idle(pool, "ann")
    assert (pool.size, pool.in_use) == (1, 0)
    assert pool.acquire("ann") is place


def test_when_there_is_no_room_the_place_used_longest_ago_is_closed():
    pool = SlotAllocator(2)
    ann, ben = idle(pool, "ann", "ben")
    ticket, orders = pool.request("cid")
    assert (orders.grants, orders.close) == ((), (ann,))
    assert (pool.size, pool.waiting, ann.closing) == (2, 1, True)
    grant = granted(pool.mark_closed(ann))
    assert (grant.ticket, grant.is_new, grant.slot.key) == (ticket, True, "cid")
    assert set(pool.slots) == {ben, grant.slot}


@pytest.mark.parametrize("used", ["lent", "given back"])
def test_the_last_use_of_a_place_is_its_last_moment_in_use(used: str):
    pool = SlotAllocator(2)
    if used == "lent":
        ann, ben = idle(pool, "ann", "ben")
        assert pool.acquire("ann") is ann
        pool.release(ann)
    else:
        ann, ben = place_for(pool, "ann"), place_for(pool, "ben")
        pool.release(ben)
        pool.release(ann)
    assert pool.request("cid")[1].close == (ben,)


def test_a_place_in_use_is_never_closed_and_whoever_waits_gets_it_when_it_is_not():
    pool = SlotAllocator(1)
    ann = place_for(pool, "ann")
    ticket, orders = pool.request("ben")
    assert orders == PoolActions()
    assert pool.release(ann) == PoolActions(close=(ann,))
    assert granted(pool.mark_closed(ann)).ticket == ticket


def test_a_call_whose_key_has_a_place_does_not_wait_behind_others():
    pool = SlotAllocator(1)
    ann = place_for(pool, "ann")
    pool.request("ben")
    ticket, orders = pool.request("ann")
    assert orders.grants == (SlotGrant(ticket, ann, is_new=False),)


def test_those_who_wait_are_served_in_the_order_of_coming_and_one_place_does_for_a_key():
    pool = SlotAllocator(2)
    ann, ben = place_for(pool, "ann"), place_for(pool, "ben")
    first, _ = pool.request("cid")
    second, _ = pool.request("dan")
    third, _ = pool.request("cid")
    assert pool.release(ben) == PoolActions(close=(ben,))
    orders = pool.mark_closed(ben)
    assert [grant.ticket for grant in orders.grants] == [first, third]
    assert [grant.is_new for grant in orders.grants] == [True, False]
    assert pool.release(ann) == PoolActions(close=(ann,))
    assert granted(pool.mark_closed(ann)).ticket == second


def test_no_more_places_are_closed_than_are_wanted():
    pool = SlotAllocator(3)
    ann, ben, cid = idle(pool, "ann", "ben", "cid")
    assert pool.request("dan")[1].close == (ann,)
    assert pool.request("dan")[1].close == ()  # will share the one that is coming
    assert pool.request("eve")[1].close == (ben,)
    assert not cid.closing


def test_a_ticket_that_was_withdrawn_gets_nothing_and_keeps_nobody_waiting():
    pool = SlotAllocator(1)
    ann = place_for(pool, "ann")
    first, _ = pool.request("ben")
    second, _ = pool.request("cid")
    assert pool.cancel(first) == PoolActions()
    pool.release(ann)
    assert granted(pool.mark_closed(ann)).ticket == second
    assert pool.cancel(12345) == PoolActions()


def test_a_place_for_one_call_is_shared_with_nobody_and_closed_after_it():
    pool = SlotAllocator(3)
    one, other = place_for(pool, "ann", once=True), place_for(pool, "ann", once=True)
    assert one is not other
    assert pool.acquire("ann") is None
    assert pool.release(one) == PoolActions(close=(one,))
    assert pool.size == 2
    assert pool.mark_closed(one) == PoolActions()
    assert pool.size == 1


def test_each_call_that_wants_a_place_of_its_own_makes_room_for_one():
    pool = SlotAllocator(2)
    ann, ben = idle(pool, "ann", "ben")
    assert pool.request("cid", once=True)[1].close == (ann,)
    assert pool.request("cid", once=True)[1].close == (ben,)


def test_a_dismissed_place_is_closed_now_if_it_is_idle():
    pool = SlotAllocator(2)
    (ann,) = idle(pool, "ann")
    assert pool.drain("ann") == PoolActions(close=(ann,))
    assert pool.drain("ann") == PoolActions()
    assert pool.acquire("ann") is None
    assert pool.size == 1


def test_a_dismissed_place_in_use_is_closed_when_it_is_given_back_and_lent_to_nobody_else():
    pool = SlotAllocator(2)
    old = place_for(pool, "ann")
    assert pool.drain("ann") == PoolActions()
    new = place_for(pool, "ann")
    assert new is not old
    assert pool.release(old) == PoolActions(close=(old,))
    assert pool.acquire("ann") is new


def test_a_dismissed_place_in_use_is_no_room_that_is_about_to_come():
    pool = SlotAllocator(2)
    ann = place_for(pool, "ann")
    (ben,) = idle(pool, "ben")
    pool.drain("ann")
    assert pool.request("cid")[1].close == (ben,)
    assert ann.users == 1


@pytest.mark.parametrize("mistake", ["given back twice", "closed while it is open"])
def test_a_mistake_of_the_owner_is_not_passed_over(mistake: str):
    pool = SlotAllocator(1)
    (place,) = idle(pool, "ann")
    with pytest.raises(AssertionError):
        pool.release(place) if mistake == "given back twice" else pool.mark_closed(place)


def test_what_a_pool_says_of_itself_names_nobody():
    pool = SlotAllocator(2)
    place = place_for(pool, "secret-ann")
    ticket, orders = pool.request("secret-ben")
    pool.request("secret-cid")
    assert repr(pool) == "<SlotAllocator 2 of 2, 2 in use, 1 waiting>"
    assert ticket
    assert "secret" not in f"{pool!r}{place!r}{orders!r}"
