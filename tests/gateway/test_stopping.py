"""Stop strings over the borders of pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.stopping import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    found = StopStrings(stops)
    out = [found.feed(piece) for piece in pieces]
    return [*out, found.flush()], found.found


def reference(stops: list[str], text: str) -> str:
    """Grow the text a character at a time; the first stop string to be complete ends it."""
    for end in range(len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - len(max(completed, key=len))]
    return text


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        ([], ["ab", "c"], ["ab", "c", ""], False),
        (["END"], ["abE", "N", "D more"], ["ab", "", "", ""], True),
        (["END"], ["abE", "N", "x"], ["ab", "", "ENx", ""], False),  # flushed when disproved
        (["END"], ["abEN"], ["ab", "EN"], False),  # flushed at the end
        (["aab"], ["aa", "a", "b"], ["", "a", "", ""], True),  # only what may still match stays back
        (["bc", "abcd"], ["abcd"], ["a", ""], True),  # the first one to be complete
        (["bc", "abc"], ["xabc"], ["x", ""], True),  # complete together: the longer one
        (["\n\n"], ["one\n", "two\n\nthree"], ["one", "\ntwo", ""], True),
        (["é🎉"], ["caf", "é", "🎉"], ["caf", "", "", ""], True),
    ],
)
def test_examples(stops: list[str], pieces: list[str], out: list[str], stopped: bool) -> None:
    assert run(stops, pieces) == (out, stopped)


letters = st.text("ab", min_size=1, max_size=5)


@given(st.lists(letters, max_size=4), st.lists(st.text("abc", max_size=4), max_size=12))
def test_the_cut_does_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    out, _ = run(stops, pieces)
    assert "".join(out) == reference(stops, "".join(pieces))


@given(st.lists(letters, min_size=1, max_size=4), st.lists(letters, max_size=8))
def test_no_more_is_held_back_than_needed(stops: list[str], pieces: list[str]) -> None:
    found, text, out = StopStrings(stops), "", ""
    for piece in pieces:
        text += piece
        out += found.feed(piece)
        if found.found:
            return
        held = text[len(out) :]
        assert any(stop.startswith(held) for stop in stops)


def test_a_stop_string_that_ends_too_early_is_plain_text() -> None:
    stops = StopStrings(["aa"])
    assert stops.feed("xaa", may_end=False) == "xa"  # the second a may begin one that counts
    assert stops.feed("b", may_end=False) == "ab" and not stops.found
    assert stops.feed("a", may_end=False) == ""
    assert stops.feed("ac") == "" and stops.found
