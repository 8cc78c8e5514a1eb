"""The error tree: one class per code, and an error is the same on both ends of a wire or a process boundary."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable

import pytest

from sie_sdk import errors, refusals
from sie_sdk.errors import SIEError
from sie_sdk.refusals import BY_CODE


def family(root: type[SIEError]) -> list[type[SIEError]]:
    return [root, *(cls for child in root.__subclasses__() for cls in family(child))]


# Other tests have some of their own, as callers and adapters may.
CLASSES = [cls for cls in family(SIEError) if cls.__module__ == errors.__name__]


def made(cls: type[SIEError]) -> SIEError:
    return cls("Wrong.", field="items[3].text", limit=7, hint="Fix it.", retry_after=1.5, request_id="r1", job="j1")


def test_every_class_has_a_code_of_its_own() -> None:
    assert list(BY_CODE.values()) == CLASSES


def test_the_module_docstring_draws_every_class() -> None:
    assert errors.__doc__ is not None
    drawn = {word for word in errors.__doc__.split() if word.endswith("Error")}
    assert drawn == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_pickles_and_copies_with_all_it_knows(
    cls: type[SIEError], way: Callable[[SIEError], SIEError]
) -> None:
    error = made(cls)
    error.details |= {"code": "own", "message": "own", "param": "own"}
    error.add_note("said later")
    back = way(error)
    assert type(back) is cls
    assert vars(back) == vars(error)
    assert (str(back), back.args) == (str(error), error.args)


def test_an_error_comes_back_from_a_process_pool_as_it_was_raised() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(errors.ModelNotFoundError) as caught:
        pool.apply(_raise)
    assert (caught.value.request_id, caught.value.details) == ("r1", {"nearest": ["n"]})


def _raise() -> None:
    raise errors.ModelNotFoundError("No model m.", request_id="r1", nearest=["n"])


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_crosses_the_wire(cls: type[SIEError]) -> None:
    error = made(cls)
    back = refusals.read_error(cls.status, {"x-request-id": "r1"}, refusals.error_body(error))
    assert type(back) is cls
    assert vars(back) == vars(error)


def test_a_server_may_name_its_details_as_it_likes() -> None:
    error = refusals.from_wire({"code": "NOT_FOUND", "message": "gone", "field": 1, "request_id": 2, "self": 3})
    assert error.details == {"field": 1, "request_id": 2, "self": 3}


def test_an_unknown_code_is_kept_beside_the_status_family() -> None:
    error = refusals.from_wire({"code": "TEAPOT", "message": "short and stout"}, status=418)
    assert isinstance(error, errors.InvalidInputError)
    assert error.details == {"server_code": "TEAPOT"}


def test_the_hint_follows_the_message() -> None:
    assert str(SIEError("Wrong.", hint="Fix it.")) == "Wrong. Fix it."


@pytest.mark.parametrize(
    "retry_after", ["soon", {}, -1, float("nan"), float("inf"), 10**400, None], ids=lambda given: repr(given)[:8]
)
def test_a_servers_retry_after_that_is_no_time_to_wait_is_left_out(retry_after: object) -> None:
    error = refusals.from_wire(
        {"code": "QUEUE_FULL", "message": "m", "retry_after": retry_after, "param": 1, "hint": []}
    )
    assert error.retry_after is None
    assert (error.field, error.hint) == ("1", "[]")
