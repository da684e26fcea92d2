"""Numbers of things are told as a reader would say them."""

from continua.core.counts import say_count


def test_one_thing_has_no_plural():
    assert [say_count(number, "depth step") for number in (0, 1, 2)] == [
        "0 depth steps",
        "1 depth step",
        "2 depth steps",
    ]
    assert say_count(2200, "update") == "2,200 updates"
