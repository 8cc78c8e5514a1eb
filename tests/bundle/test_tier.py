"""A tier's account: what is held, what is leaving, what is on its way in; and who may not be let go yet."""

from __future__ import annotations

import threading

from sie_bundle.residency.tier import Tier


class Thing:
    """Something that can be watched leaving."""


class Clock:
    """A second later at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def tier(limit: int = 100, *pinned: str) -> Tier[Thing]:
    return Tier(limit, pinned, Clock())


def test_what_is_put_is_found_and_counted() -> None:
    some, thing = tier(), Thing()
    some.put("a", thing, 40)
    some.put("b", Thing(), 50)
    assert some.find("a") is thing and some.find("c") is None
    assert some.bytes == 90
    assert some.names() == ("b", "a"), "finding is using"


def test_pins_may_change_while_things_are_held() -> None:
    some = tier(100, "a")
    some.put("a", Thing(), 40)
    some.put("b", Thing(), 40)
    some.pin(["b", "c"])
    some.put("c", Thing(), 10)
    assert [some.relieve(), some.relieve()] == ["a", None]
    assert some.names() == ("b", "c")


def test_putting_under_the_same_name_replaces() -> None:
    some = tier()
    some.put("a", Thing(), 40)
    some.put("a", new := Thing(), 30)
    assert some.find("a") is new and some.bytes == 30


def test_room_is_made_by_the_least_recently_used_and_then_reserved() -> None:
    some = tier()
    some.put("a", Thing(), 40)
    some.put("b", Thing(), 40)
    some.find("a")
    assert some.make_room("c", 50)
    assert some.names() == ("a",) and some.bytes == 90 and some.arriving
    some.put("c", Thing(), 55)
    assert some.bytes == 95 and not some.arriving


def test_what_was_reserved_and_did_not_come_is_free_again() -> None:
    some = tier()
    assert some.make_room("a", 100)
    assert not some.make_room("b", 1)
    some.release("a")
    assert some.make_room("b", 1)


def test_the_bytes_of_one_in_use_count_until_it_is_released() -> None:
    some, user = tier(), Thing()
    some.put("a", user, 80)
    assert not some.make_room("b", 50)
    assert some.names() == () and some.bytes == 80
    assert not some.make_room("b", 50)
    del user
    assert some.make_room("b", 50)
    assert some.bytes == 50


def test_one_that_made_way_and_is_still_in_use_is_found_and_not_taken_twice() -> None:
    some, thing = tier(100, "c"), Thing()
    some.put("a", thing, 60)
    assert not some.make_room("b", 60), "it is in use"
    assert some.names() == () and some.bytes == 60
    assert some.find("a") is thing
    assert some.names() == ("a",) and some.known == {"a"} and some.bytes == 60 and not some.leaving
    assert not some.make_room("b", 60)
    del thing
    assert some.find("a") is None, "nobody uses it any more"
    assert some.make_room("b", 60) and some.bytes == 60


def test_one_that_was_let_go_for_what_it_is_comes_back_to_nobody() -> None:
    some, thing = tier(), Thing()
    some.put("a", thing, 60)
    assert some.let_go("a")
    assert some.find("a") is None and some.bytes == 60
    some.put("a", other := Thing(), 10)
    assert not some.make_room("b", 95)
    some.put("a", Thing(), 10)
    some.let_go("a")
    assert some.find("a") is None and other is not thing


def test_one_that_is_idle_goes_before_one_that_is_in_use_though_it_was_used_later() -> None:
    some, user = tier(), Thing()
    some.put("busy", user, 50)
    some.put("idle", Thing(), 50)
    assert some.make_room("c", 50)
    assert some.names() == ("busy",) and some.find("busy") is user


def test_nobody_more_goes_while_enough_is_leaving() -> None:
    some, user = tier(), Thing()
    some.put("a", user, 50)
    some.let_go("a")
    some.put("b", Thing(), 50)
    assert not some.make_room("c", 50)
    assert some.names() == ("b",)
    del user
    assert some.make_room("c", 50)


def test_pinned_ones_stay_whatever_is_asked() -> None:
    some = tier(100, "a")
    some.put("a", Thing(), 60)
    some.put("b", Thing(), 40)
    assert some.most("c") == 40 and some.most("a") == 100
    assert not some.make_room("c", 50) and some.make_room("c", 40, scarce=1000)
    assert some.names() == ("a",)
    assert some.relieve() is None


def test_memory_that_is_scarce_is_freed_below_the_limit_by_the_largest_first() -> None:
    some = tier(1000)
    for name, size in (("small", 10), ("large", 300), ("middle", 200), ("newest", 400)):
        some.put(name, Thing(), size)
    some.find("newest")
    assert some.make_room("c", 10, scarce=250)
    assert some.names() == ("small", "middle", "newest")


def test_scarce_memory_drives_nobody_out_who_is_in_use() -> None:
    some, user = tier(1000), Thing()
    some.put("a", user, 300)
    assert some.make_room("c", 10, scarce=250)
    assert some.find("a") is user


def test_nobody_goes_in_vain_beside_what_is_on_its_way_in() -> None:
    some = tier()
    some.reserve("a", 80)
    some.put("b", Thing(), 10)
    assert not some.make_room("c", 40) and some.names() == ("b",)
    assert some.make_room("c", 20) and some.names() == ()


def test_relief_comes_from_one_that_is_idle() -> None:
    some, user = tier(), Thing()
    some.put("busy", user, 50)
    some.put("idle", Thing(), 10)
    assert some.relieve() == "idle"
    assert some.relieve() is None
    assert some.find("busy") is user


def test_the_largest_goes_first_where_memory_is_needed_at_once() -> None:
    some = tier()
    for name, size in (("small", 10), ("large", 30), ("middle", 20), ("newest", 10)):
        some.put(name, Thing(), size)
    assert [some.relieve() for _ in range(4)] == ["large", "middle", "small", "newest"]


def test_an_older_version_goes_once_it_was_not_used_for_long_and_is_in_nobody_s_use() -> None:
    clock = Clock()
    some: Tier[Thing] = Tier(100, (), clock)
    user = Thing()
    for name, thing in (("a@1", user), ("a@2", Thing()), ("a@3", Thing()), ("b@1", Thing())):
        some.put(name, thing, 10)
    clock.now = 100.0
    some.find("a@2")
    some.find("a@3")
    assert some.retire(1000.0) == []
    assert some.retire(50.0) == [], "the one that is old enough is in use"
    del user
    assert some.retire(50.0) == ["a@1"]
    assert some.names() == ("b@1", "a@2", "a@3")


def test_many_threads_at_once_keep_the_account() -> None:
    some = tier(1 << 30, "keep")
    some.put("keep", Thing(), 7)

    def turn(number: int) -> None:
        for step in range(200):
            some.put(f"{number}-{step % 3}", Thing(), 10)
            some.find(f"{number}-{step % 2}")
            some.relieve()

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while some.relieve() is not None:
        pass
    assert some.names() == ("keep",) and some.bytes == 7
