from benchmarks.bars import Check, all_pass, summary


def test_a_check_is_at_least_or_at_most() -> None:
    assert Check("x", 1.5, 1.5).passed
    assert Check("x", 1.5, 1.5, at_most=True).passed
    assert not Check("x", 1.4, 1.5).passed
    assert not Check("x", 1.6, 1.5, at_most=True).passed


def test_a_check_by_a_hair_shows_the_hair() -> None:
    assert str(Check("gloo/ours", 5.998, 6.0)) == "gloo/ours 5.998 >= 6: FAIL"


def test_what_was_not_measured_is_no_pass() -> None:
    found = [Check("x", None, 1.0), Check("y", 2.0, 1.0)]
    assert not all_pass(found)
    assert "x - >= 1: no data" in summary(found)


def test_nothing_is_no_pass() -> None:
    assert not all_pass([])
    assert summary([]) == "no bar applies to what was measured"


def test_the_summary_names_each_bar_once_and_then_what_failed() -> None:
    found = [Check("a", 2.0, 1.0, bar="speed"), Check("b", 0.5, 1.0, bar="speed")]
    found.append(Check("c", 1.0, 1.0, bar="size"))
    assert summary(found).splitlines() == [
        "speed: FAIL (1 of 2 checks, 0 without data)",
        "size: pass (1 of 1 checks, 0 without data)",
        "  b 0.5 >= 1: FAIL",
    ]
